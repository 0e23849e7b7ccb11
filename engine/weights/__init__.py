"""Model files: a GGUF file or a folder in Hugging Face layout, opened as one `ModelSource`.

`open_model` reads headers and settings only, checks them against the files' sizes, and maps the weights.
"""

from collections.abc import MutableMapping
from pathlib import Path

from engine.errors import ModelFileError
from engine.weights.gguf import GgufFile
from engine.weights.gguf_header import MAGIC
from engine.weights.safetensors import HuggingFaceFolder
from engine.weights.source import GroupQuantized, ModelSource, TokenizerSource

__all__ = ["GroupQuantized", "ModelSource", "TokenizerSource", "open_model"]


def open_model(path: Path, *, fingerprints: MutableMapping[str, str] | None = None) -> ModelSource:
    """Opens and validates a model before any large allocation.

    `fingerprints`: digests of files seen before, kept by the caller, so that a large file is hashed once.
    Raises ModelFileError (missing, damaged, incomplete) or UnsupportedModelError (names what is not supported).
    """
    try:
        if path.is_dir():
            return _open_folder(path, fingerprints)
        if not path.is_file():
            raise ModelFileError(
                f"There is no model at {path}.", "Give the path of a GGUF file or of a model's folder."
            )
        with path.open("rb") as handle:
            start = handle.read(4)
        if start == MAGIC:
            return GgufFile(path, fingerprints)
    except OSError as error:
        raise ModelFileError(
            f"{path.name} could not be read ({error.strerror or error}).", "Check the path and its permissions."
        ) from error
    if path.suffix == ".safetensors":
        raise ModelFileError(
            f"{path.name} holds weights without a config.", "Give the folder with config.json and tokenizer.json."
        )
    reason = "is empty" if not start else "is not a GGUF file"
    raise ModelFileError(f"{path.name} {reason}.", "Give a GGUF file, or a model's folder in Hugging Face layout.")


def _open_folder(path: Path, fingerprints: MutableMapping[str, str] | None) -> ModelSource:
    """A folder with config.json; or one without, that holds exactly one GGUF file."""
    found = sorted(path.glob("*.gguf"))
    if not (path / "config.json").exists() and found:
        if len(found) == 1:
            return GgufFile(found[0], fingerprints)
        raise ModelFileError(
            f"The folder {path.name} holds {len(found)} GGUF files.", f"Name one of them, such as {found[0].name}."
        )
    return HuggingFaceFolder(path, fingerprints)
