"""Compiles Triton kernels for cards that are not here, and says what ptxas made of them.

Runs in a process without TRITON_INTERPRET: under the interpreter there is nothing to compile.
"""

import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.spills import disassembled, spills_in_loops

SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}


@dataclass(frozen=True, slots=True)
class Compiled:
    """`shared`: bytes of a block; `spilled`: bytes that ptxas stores and loads for lack of registers, `in_loops` by so
    many instructions inside loops."""

    name: str
    registers: int
    spilled: int
    shared: int
    in_loops: int


def compile_for(
    kernel: Any, capability: int, signature: Mapping[str, str], constants: Mapping[str, Any], **options: int
) -> Compiled:
    """`kernel` for a card of `capability` (90 for sm_90). `signature`: Triton's name of each argument's type by the
    argument's name ("*bf16", "i32"), constants left out. Integers are taken as divisible by 16 where called "i32:16",
    pointers always. `options`: num_warps, num_stages."""
    types = {name: signature.get(name, "constexpr").split(":")[0] for name in kernel.arg_names}
    aligned = [
        index
        for index, name in enumerate(kernel.arg_names)
        if types[name].startswith("*") or signature.get(name, "").endswith(":16")
    ]
    attributes = {(index,): [["tt.divisibility", 16]] for index in aligned}
    fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return compile_source(
        ASTSource(kernel, types, fixed, attributes), capability, {"enable_fp_fusion": True, **options}
    )


def compile_source(source: ASTSource, capability: int, options: Mapping[str, Any]) -> Compiled:
    """`options`: all of Triton's that differ from its defaults. PTXASError for what the card's instructions cannot do.
    Nothing is kept on disk."""
    said = StringIO()
    with TemporaryDirectory() as folder, knobs.cache.scope(), knobs.nvidia.scope(), redirect_stdout(said):
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = folder, True
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
    stores, loads = re.findall(r"(\d+) bytes spill (?:stores|loads)", said.getvalue())[:2]
    (registers,) = re.findall(r"Used (\d+) registers", said.getvalue())[:1]
    spilled = int(stores) + int(loads)
    in_loops = spills_in_loops(disassembled(built.asm["cubin"])) if spilled else 0
    return Compiled(source.name, int(registers), spilled, built.metadata.shared, in_loops)
