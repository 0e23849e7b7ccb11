"""No GGUF file, however damaged, crashes the reader, makes it hang or makes it allocate by the file's own word."""

import random
import resource
import struct
import time
from pathlib import Path

import pytest

from engine.errors import EngineError, ModelFileError
from engine.weights import open_model
from engine.weights.gguf_header import read_gguf_header
from tests.engine.tiny_models import make_model, write_gguf


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    path = write_gguf(make_model("llama"), tmp_path_factory.mktemp("good") / "tiny.gguf", tensor_type="Q4_0")
    return path.read_bytes()


def attempt(data: bytes, path: Path) -> EngineError | None:
    """Opens and reads everything; returns the refusal. Anything but an EngineError fails the test."""
    path.write_bytes(data)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    refusal = None
    try:
        with open_model(path) as source:
            for name in source.names:
                source.tensor(name)
    except EngineError as error:
        refusal = error
    assert time.process_time() - start < 1.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000  # kilobytes
    assert refusal is None or (refusal.message.endswith(".") and refusal.hint)
    return refusal


def test_the_good_file_opens(good, tmp_path):
    assert attempt(good, tmp_path / "good.gguf") is None


def test_every_cut_is_refused(good, tmp_path):
    header = read_header_size(good, tmp_path)
    points = {0, 1, 3, 4, 8, 16, 23, 24, header - 1, header, header + 1, len(good) // 2, len(good) - 64, len(good) - 1}
    points |= {random.Random(1).randrange(len(good)) for _ in range(40)}
    for point in sorted(points):
        error = attempt(good[:point], tmp_path / "cut.gguf")
        assert isinstance(error, ModelFileError), point


def read_header_size(good: bytes, tmp_path: Path) -> int:
    path = tmp_path / "whole.gguf"
    path.write_bytes(good)
    return min(tensor.offset for tensor in read_gguf_header(path).tensors.values())


def test_random_changes_of_the_header(good, tmp_path):
    """Each either still opens (a changed token, say) or is refused in plain words."""
    size = read_header_size(good, tmp_path)
    chance = random.Random(2)
    refused = 0
    for _ in range(200):
        data = bytearray(good)
        # Most of the header is the vocabulary: aim half of the changes at the structure at both ends.
        places = chance.choice([(0, 1500), (size - 3000, size), (0, size)])
        for _ in range(chance.choice([1, 1, 4])):
            data[chance.randrange(*places)] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        refused += attempt(bytes(data), tmp_path / "changed.gguf") is not None
    assert refused > 50


HUGE = (1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("offset", [8, 16, 24])
def test_huge_counts_and_lengths(good, tmp_path, value, offset):
    """Number of tensors, number of entries, length of the first key."""
    data = bytearray(good)
    struct.pack_into("<Q", data, offset, value)
    assert isinstance(attempt(bytes(data), tmp_path / "huge.gguf"), ModelFileError)


@pytest.mark.parametrize("value", HUGE)
def test_huge_lists_and_texts(good, tmp_path, value):
    for key, skip in ((b"tokenizer.ggml.tokens", 8), (b"tokenizer.ggml.merges", 8), (b"general.name", 4)):
        data = bytearray(good)
        struct.pack_into("<Q", data, good.index(key) + len(key) + skip, value)
        assert isinstance(attempt(bytes(data), tmp_path / "huge.gguf"), ModelFileError), key


@pytest.mark.parametrize("value", [0, 7, *HUGE])
@pytest.mark.parametrize("part", ["first dimension", "second dimension", "offset"])
def test_tensors_beyond_the_file(good, tmp_path, value, part):
    """Products that overflow 64 bits included: 2^40 rows of 2^40 do not wrap round to something small."""
    data = bytearray(good)
    entry = good.index(b"blk.1.ffn_down.weight") + len("blk.1.ffn_down.weight") + 4
    place = {"first dimension": 0, "second dimension": 8, "offset": 20}[part]
    struct.pack_into("<Q", data, entry + place, value)
    if part == "first dimension":
        struct.pack_into("<Q", data, entry + 8, value)
    assert isinstance(attempt(bytes(data), tmp_path / "beyond.gguf"), ModelFileError)


def with_value(good: bytes, key: bytes, form: str, value: object) -> bytes:
    """The file with another scalar under `key`, of the same size."""
    data = bytearray(good)
    struct.pack_into(form, data, good.index(key) + len(key) + 4, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"llama.block_count", 0),
        (b"llama.block_count", 2**32 - 1),
        (b"llama.embedding_length", 2**31),
        (b"llama.attention.head_count", 3),
        (b"llama.attention.head_count_kv", 3),
        (b"llama.attention.head_count", 0),
        (b"llama.vocab_size", 481),
        (b"llama.context_length", 0),
        (b"tokenizer.ggml.eos_token_id", 10**6),
    ],
)
def test_numbers_that_do_not_fit_the_tensors(good, tmp_path, key, value):
    assert isinstance(attempt(with_value(good, key, "<I", value), tmp_path / "numbers.gguf"), EngineError)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_rope_base_and_epsilon(good, tmp_path, value):
    for key in (b"llama.rope.freq_base", b"llama.attention.layer_norm_rms_epsilon"):
        assert isinstance(attempt(with_value(good, key, "<f", value), tmp_path / "float.gguf"), ModelFileError)


@pytest.mark.parametrize(("at", "data"), [(0, b"GGML"), (4, b"\1\0\0\0"), (4, b"\0\0\0\3"), (4, b"\xff\0\0\0")])
def test_other_magic_and_versions(good, tmp_path, at, data):
    assert attempt(good[:at] + data + good[at + len(data) :], tmp_path / "magic.gguf") is not None


def test_a_hole_of_gigabytes_is_not_walked(good, tmp_path):
    """A sparse file whose header claims two hundred million empty texts."""
    path = tmp_path / "sparse.gguf"
    at = good.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    path.write_bytes(good[:at] + struct.pack("<Q", 200_000_000))
    with path.open("r+b") as handle:
        handle.truncate(4 << 30)
    start = time.process_time()
    with pytest.raises(ModelFileError):
        open_model(path)
    assert time.process_time() - start < 1
