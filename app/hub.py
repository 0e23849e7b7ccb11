"""Fetches a model from a hub of Hugging Face's kind into the data folder: checked, resumable, nothing unasked.

huggingface_hub knows the API, the mirror (HF_ENDPOINT) and the token (HF_TOKEN); the bytes are streamed here, because
its own download forgets a half-fetched file when the process ends and a model is many gigabytes. A part stays in
`models/.incoming` until it is whole, its SHA-256 agrees with the hub's and the engine can open it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.errors import AppError, BadInput, WrongUse
from app.models import CATALOGUE, INCOMING, ModelInfo, Models, check_free_disk

Progress = Callable[[int, int], None]
"""(bytes that are here, bytes in all)"""

# Of a repository in Hugging Face layout: weights that cannot run code, and the small files that the engine reads.
_FOLDER_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
)
_FOLDER_FILES += ("special_tokens_map.json", "chat_template*", "vocab.json", "merges.txt", "LICENSE*")
_TRIES = 5


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository. size in bytes; sha256 is "" for small files, which the hub does not hash that way."""

    name: str
    size: int
    sha256: str


def get(models: Models, wanted: str, *, name: str = "", progress: Progress | None = None) -> ModelInfo:
    """Fetches a catalogue name, 'owner/repository' or 'owner/repository:FILE' (a name or pattern) and checks it.

    Run again after a cut connection or a stop: it goes on where it was. Raises WrongUse for a name that the hub does
    not know, BadInput for damaged bytes, AppError when the hub cannot be reached or the disk is too small.
    """
    repository, pattern, default_name = parse(wanted)
    name = models.free_name(name or default_name)
    revision, files = list_files(repository, pattern)
    folder = models.folder / INCOMING / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    total = sum(file.size for file in files)
    here = sum(_size(_part(folder, file)) or _size(folder / file.name) for file in files)
    check_free_disk(folder, total - here)
    done = 0
    for file in files:
        before = done
        tell = (lambda n, before=before: progress(before + n, total)) if progress else None
        fetch(repository, revision, file, folder, tell)
        done += file.size
    return models.adopt(folder, name)


def parse(wanted: str) -> tuple[str, str, str]:
    """(repository, file pattern or "", name in the data folder) of what the user asked for."""
    if wanted in CATALOGUE:
        entry = CATALOGUE[wanted]
        return entry.repository, entry.pattern, entry.name
    repository, _, pattern = wanted.removeprefix("hf:").partition(":")
    owner, _, short = repository.partition("/")
    if not owner or not short or "/" in short:
        names = ", ".join(CATALOGUE)
        raise WrongUse(f"{wanted!r} is neither a catalogue name nor owner/repository.", f"The catalogue has: {names}.")
    return repository, pattern, short.lower()


def list_files(repository: str, pattern: str = "") -> tuple[str, list[HubFile]]:
    """(commit, the files to fetch). Without a pattern: the safetensors layout, else the only GGUF file."""
    from huggingface_hub import HfApi, errors

    api = HfApi()
    try:
        info = api.model_info(repository, files_metadata=True)
    except errors.GatedRepoError:
        raise AppError(
            f"{repository} asks for its terms to be accepted first.",
            f"Accept them at {api.endpoint}/{repository}, then set HF_TOKEN to your token.",
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise WrongUse(
            f"The hub {api.endpoint} has no repository {repository!r}.",
            "Check the spelling; a private one needs HF_TOKEN.",
        ) from None
    except (errors.OfflineModeIsEnabled, _http_error(), OSError) as error:
        raise _unreachable(error) from error
    files = [
        HubFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else "")
        for s in info.siblings or ()
        if not Path(s.rfilename).is_absolute() and ".." not in Path(s.rfilename).parts
    ]
    gguf = [file for file in files if file.name.lower().endswith(".gguf")]
    if pattern:
        chosen = [file for file in files if fnmatch.fnmatch(file.name.lower(), pattern.lower())]
    elif any(file.name.endswith(".safetensors") for file in files):
        chosen = [file for file in files if any(fnmatch.fnmatch(file.name, p) for p in _FOLDER_FILES)]
    else:
        chosen = gguf
    if not chosen or (len(chosen) > 1 and all(file in gguf for file in chosen)):
        names = ", ".join(file.name for file in gguf) or "no GGUF and no safetensors file"
        what = f"{len(chosen)} files" if chosen else "no file"
        raise WrongUse(
            f"{repository}: {what} to choose from{f' for {pattern!r}' if pattern else ''}; it has {names}.",
            f"Name one: unabridged models get {repository}:FILE",
        )
    return info.sha or "main", chosen


def fetch(repository: str, revision: str, file: HubFile, folder: Path, tell: Callable[[int], None] | None) -> Path:
    """One file into folder, going on from its part if there is one; tell(bytes that are here)."""
    target, part = folder / file.name, _part(folder, file)
    if _size(target) == file.size and target.exists():
        if tell:
            tell(file.size)
        return target
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _size(part) > file.size:
        part.unlink()
    tries = 0
    while not part.exists() or _size(part) < file.size:
        before = _size(part)
        try:
            _stream(repository, revision, file.name, part, tell)
            if _size(part) >= file.size:
                break
            error: Exception = ConnectionError(f"it ended after {_size(part)} of {file.size} bytes")
        except (_http_error(), ConnectionError, TimeoutError) as caught:
            if getattr(caught, "response", None) is not None and caught.response.status_code < 500:  # type: ignore
                raise _unreachable(caught) from caught
            error = caught
        tries = 1 if _size(part) > before else tries + 1
        if tries >= _TRIES:
            raise _unreachable(error)
        time.sleep(min(2.0 ** (tries - 1), 8) / 2)
    if _size(part) != file.size or (file.sha256 and _sha256(part) != file.sha256):
        part.unlink()
        raise BadInput(f"{file.name} arrived damaged: its checksum is not the hub's.", "Run the same command again.")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part.replace(target)
    return target


def _stream(repository: str, revision: str, name: str, part: Path, tell: Callable[[int], None] | None) -> None:
    """Appends what is missing of one file to part. The token goes to the hub only: redirects to other hosts drop it."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    here = _size(part)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if here:
        headers["Range"] = f"bytes={here}-"
    url = hf_hub_url(repository, name, revision=revision)
    with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=30) as response:
        hf_raise_for_status(response)
        resumed = response.status_code == 206
        with part.open("ab" if resumed else "wb") as out:
            here = here if resumed else 0
            for data in response.iter_bytes():  # as it arrives: a cut loses nothing that came
                out.write(data)
                here += len(data)
                if tell:
                    tell(here)


def _http_error() -> type[Exception]:
    """The HTTP library's base error, whichever one this huggingface_hub is built on."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _unreachable(error: BaseException) -> AppError:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return AppError("This process may not use the network (HF_HUB_OFFLINE is set).", "Unset HF_HUB_OFFLINE.")
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return AppError(
        f"The hub {constants.ENDPOINT} did not deliver: {reason}.",
        "Run the same command again to go on; HF_ENDPOINT names another hub or mirror.",
    )


def clear_incoming(models: Models, name: str) -> None:
    """Forgets the parts of a download that will not be finished."""
    shutil.rmtree(models.folder / INCOMING / name, ignore_errors=True)


def _part(folder: Path, file: HubFile) -> Path:
    return folder / (file.name + ".part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
