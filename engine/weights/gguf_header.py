"""Our own walk over a GGUF header, which trusts nothing: every count, length, product and offset is checked against the
file's size before anything of that size is made.

Format: magic, version, counts, key-value pairs, tensor descriptions, padding, data. Little-endian, versions 2 and 3.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ModelFileError, UnsupportedModelError

MAGIC = b"GGUF"
HEADER_LIMIT = 128 << 20
STRING_LIMIT = 2_000_000
TENSOR_LIMIT = 20_000
NAME_LIMIT = 512
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
AGAIN = "Get the file again; a complete one has the size that its source states."

# ggml type number: (name, weights per block, bytes per block)
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` is [rows, cols] or [size] (GGUF writes it reversed), `offset` counts from byte 0."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata`: str, int, float, bool, list[str] or a numpy vector by key. `tensors`: by GGUF name."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """ModelFileError for a damaged file, UnsupportedModelError for a version or weight type that is not read."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        if handle.read(4) != MAGIC:
            raise ModelFileError(f"{path.name} is not a GGUF file.", AGAIN)
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data, size, path.name).header()


class _Walk:
    """A cursor over the mapped file; `take` is the only way forward and never leaves the file."""

    def __init__(self, data: mmap.mmap, size: int, name: str) -> None:
        self.data, self.size, self.name = data, size, name
        self.limit = min(size, HEADER_LIMIT)
        self.position = len(MAGIC)
        self.strings = 0

    def broken(self, reason: str) -> ModelFileError:
        return ModelFileError(f"{self.name} is cut short or damaged: {reason}.", AGAIN)

    def take(self, count: int) -> int:
        """Moves on by `count` bytes and returns where they start."""
        start = self.position
        if count > self.limit - start:
            raise self.broken("its header does not end inside the file")
        self.position = start + count
        return start

    def number(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def text(self, limit: int = HEADER_LIMIT) -> str:
        length = self.number("<Q")
        if length > limit:
            raise self.broken(f"a name or text of {length} bytes")
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def count(self, what: str, smallest: int, most: int) -> int:
        """A number of things that take at least `smallest` bytes each."""
        value = self.number("<Q")
        if value > min(most, (self.limit - self.position) // smallest):
            raise self.broken(f"{value} {what}")
        return value

    def header(self) -> GgufHeader:
        version = self.number("<I")
        if version not in (2, 3):
            kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise UnsupportedModelError(
                f"{self.name} is a GGUF file of {kind}.", "Supported are little-endian GGUF files of versions 2 and 3."
            )
        tensor_count = self.count("tensors", 24, TENSOR_LIMIT)
        pairs = self.count("metadata entries", 13, 65536)
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self.text(NAME_LIMIT)
            if key in metadata:
                raise self.broken(f"metadata {key[:80]!r} stands there twice")
            metadata[key] = self.value(self.number("<I"))
        entries = [self.tensor_entry() for _ in range(tensor_count)]
        return GgufHeader(metadata, self.place(entries, metadata.get("general.alignment", 32)))

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise self.broken(f"metadata of type {kind}")
        item = self.number("<I")
        if item == STRING:
            count = self.count("texts in a list", 8, STRING_LIMIT - self.strings)
            self.strings += count
            return [self.text() for _ in range(count)]
        if item not in SCALARS:
            raise self.broken(f"a list of items of type {item}")
        dtype = (
            np.dtype(bool)
            if SCALARS[item] == "<?"
            else np.dtype(SCALARS[item].replace("<q", "<i8").replace("<Q", "<u8"))
        )
        count = self.count("numbers in a list", dtype.itemsize, HEADER_LIMIT)
        start = self.take(count * dtype.itemsize)
        return np.frombuffer(self.data[start : self.position], dtype)

    def tensor_entry(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Name, type, shape, offset in the data, bytes."""
        name = self.text(NAME_LIMIT)
        dimensions = self.number("<I")
        if not 1 <= dimensions <= 4:
            raise self.broken(f"tensor {name[:80]!r} with {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        kind, offset = self.number("<I"), self.number("<Q")
        if kind not in TYPES:
            raise UnsupportedModelError(
                f"{self.name} stores {name[:80]!r} in a format (ggml type {kind}) that this engine does not read.",
                "Choose a file with " + ", ".join(type_name for type_name, _, _ in TYPES.values()) + " weights.",
            )
        type_name, block, block_bytes = TYPES[kind]
        elements = math.prod(shape)
        if elements == 0 or shape[-1] % block:
            raise self.broken(f"tensor {name[:80]!r} of shape {list(shape)}")
        return name, type_name, shape, offset, elements // block * block_bytes

    def place(self, entries: list[tuple[str, str, tuple[int, ...], int, int]], alignment: Any) -> dict[str, GgufTensor]:
        """Absolute offsets, inside the file, aligned and without overlap."""
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.broken(f"an alignment of {alignment!r}")
        start = -(-self.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        end = start
        for name, kind, shape, offset, size in sorted(entries, key=lambda entry: entry[3]):
            absolute = start + offset
            if name in tensors:
                raise self.broken(f"tensor {name[:80]!r} stands there twice")
            if offset % alignment or absolute < end:
                raise self.broken(f"tensor {name[:80]!r} is misaligned or overlaps another")
            if absolute + size > self.size:
                raise self.broken(f"tensor {name[:80]!r} ends at byte {absolute + size}, the file at {self.size}")
            end = absolute + size
            tensors[name] = GgufTensor(name, kind, shape, absolute, size)
        return tensors
