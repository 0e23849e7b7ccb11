"""Finds spilled registers that are stored or loaded inside loops, in the machine code of a compiled kernel."""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import triton

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*);")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


def disassembled(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with TemporaryDirectory() as folder:
        code = Path(folder) / "kernel.cubin"
        code.write_bytes(cubin)
        return subprocess.run([tool, "-c", code], capture_output=True, text=True, check=True).stdout


def spills_in_loops(text: str) -> int:
    """How many instructions of `text`, made by `nvdisasm -c`, store to or load from local memory in a loop."""
    operations, follows = _flow(text)
    looped = _in_cycles(follows)
    return sum(1 for at in looped if operations[at].split(".")[0] in ("STL", "LDL"))


def _flow(text: str) -> tuple[list[str], list[list[int]]]:
    """-> operations, and for each the numbers of those that may come next."""
    labels: dict[str, int] = {}
    found: list[tuple[bool, str, str]] = []
    for line in text.splitlines():
        line = line.strip()
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif one := _INSTRUCTION.match(line):
            found.append((one[1] is not None, one[2], one[3]))
    follows: list[list[int]] = []
    for number, (conditional, operation, rest) in enumerate(found):
        kind = operation.split(".")[0]
        target = _TARGET.search(rest)
        if kind == "BRA":  # uniform predicates stand behind the operation, and divergence is one in itself
            conditional = conditional or bool(re.match(r"(.*\.(DIV|CONV)\b|\S+\s+!?U?P\d)", operation + rest))
        ends = kind in ("EXIT", "RET", "BRA", "BRX") and not conditional
        follows.append([] if ends or number + 1 == len(found) else [number + 1])
        if target and target[1] in labels and labels[target[1]] < len(found):
            follows[-1].append(labels[target[1]])
    return [operation for _, operation, _ in found], follows


def _in_cycles(follows: list[list[int]]) -> set[int]:
    """Nodes from which a path leads back to themselves: strongly connected components, Kosaraju's algorithm."""
    order = _finished(follows, range(len(follows)))
    before: list[list[int]] = [[] for _ in follows]
    for node, nexts in enumerate(follows):
        for following in nexts:
            before[following].append(node)
    looped: set[int] = {node for node, nexts in enumerate(follows) if node in nexts}
    seen: set[int] = set()
    for root in reversed(order):
        component = _finished(before, [root], seen)
        if len(component) > 1:
            looped.update(component)
    return looped


def _finished(follows: list[list[int]], roots: range | list[int], seen: set[int] | None = None) -> list[int]:
    """Nodes reached from `roots`, each behind all that it leads to; `seen` is left out and added to."""
    seen = set() if seen is None else seen
    order: list[int] = []
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((following, False) for following in follows[node] if following not in seen)
    return order
