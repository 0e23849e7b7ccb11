"""Compiles Triton kernels for cards that are not here, and says what ptxas made of them.

Runs in a process without TRITON_INTERPRET: under the interpreter there is nothing to compile.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}


@dataclass(frozen=True, slots=True)
class Compiled:
    """`shared`: bytes of a block; `spilled`: bytes that ptxas stores and loads for lack of registers."""

    name: str
    registers: int
    spilled: int
    shared: int


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
    source = ASTSource(kernel, types, fixed, attributes)
    options = {"enable_fp_fusion": True, **options}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spilled = _assembled(built.asm["ptx"], capability)
    return Compiled(kernel.__name__, registers, spilled, built.metadata.shared)


def _assembled(ptx: str, capability: int) -> tuple[int, int]:
    """(registers, bytes spilled) of one kernel."""
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    assembler = folder / ("ptxas-blackwell" if capability >= 90 else "ptxas")
    suffix = "a" if capability >= 90 else ""
    with TemporaryDirectory() as into:
        code = Path(into) / "kernel.ptx"
        code.write_text(ptx)
        done = subprocess.run(
            [assembler, "-v", f"--gpu-name=sm_{capability}{suffix}", code, "-o", Path(into) / "kernel.cubin"],
            capture_output=True,
            text=True,
            check=True,
        )
    stores, loads = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)[:2]
    (registers,) = re.findall(r"Used (\d+) registers", done.stderr)[:1]
    return int(registers), int(stores) + int(loads)
