"""What kernels compiled by numba for the CPU share: the decorator, torch to numpy, and where compiled code is kept.

numba is imported when the first such kernel is used, so that machines without it (a GPU server, say) lose nothing.
Compiled code is kept on disk by numba: the first use of a kernel on a machine takes seconds, later ones milliseconds.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Reordering sums lets dot products use vector registers; results stay the same from run to run. NaN and infinity keep
# their meaning, which a running softmax needs.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}

FLOATS = (torch.float32, torch.bfloat16)  # the types that such kernels take
FEW_ROWS = 8  # up to so many rows a second thread costs more than it saves
ROWS = 32  # of a part that one thread takes

# numba's simplest pool of threads breaks when two Python threads enter it at once.
parallel_lock = threading.Lock()

_HERE = Path(__file__).parent
_places = [_HERE / "__pycache__"]


def keep_compiled(folder: Path) -> None:
    """Where compiled code may go if not beside the source. Call before the first kernel is used."""
    if folder not in _places:
        _places.append(folder)


@lru_cache
def unavailable_reason() -> str:
    """Why kernels cannot be compiled here, or "" if they can."""
    os.environ.setdefault("NUMBA_THREADING_LAYER_PRIORITY", "omp tbb workqueue")
    try:
        import numba.core.config
    except ImportError as error:
        return f"numba cannot be imported: {error}"
    folder = cache_folder()
    if folder is not None:
        numba.core.config.CACHE_DIR = str(folder)  # pyright: ignore[reportAttributeAccessIssue]
    return ""


@lru_cache
def cache_folder() -> Path | None:
    """The folder of compiled code, or None if no place can be written: then it is compiled anew in each process.

    numba looks only at the file of a compiled function, not at what that takes from other files, so the name of the
    folder stands for all of them.
    """
    digest = hashlib.sha256()
    for source in sorted(_HERE.rglob("*.py")):
        digest.update(source.read_bytes())
    try:
        digest.update(version("numba").encode())
    except PackageNotFoundError:
        return None
    for place in _places:
        folder = place / f"compiled-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def available() -> bool:
    return not unavailable_reason()


def jit(parallel: bool = False, inline: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's compiler with our options, and its cache on disk."""
    if reason := unavailable_reason():
        raise ImportError(reason)
    import numba

    return numba.njit(
        fastmath=_FAST_MATH,
        error_model="numpy",
        nogil=True,
        cache=cache_folder() is not None,
        parallel=parallel,
        inline="always" if inline else "never",
    )


def by_rows(rows: int, one: Callable[..., None], several: Callable[..., None], *arrays: Any) -> None:
    """`one` on few rows; on many `several`, which is compiled as parallel."""
    if rows <= FEW_ROWS:
        one(*arrays)
        return
    with parallel_lock:
        several(*arrays)


def takes(*inputs: torch.Tensor) -> bool:
    """Whether such a kernel can work on them: on the CPU, of a type that it knows, and no gradient is asked for."""
    known = all(
        x.device.type == "cpu" and x.dtype in FLOATS and not (x.requires_grad and torch.is_grad_enabled())
        for x in inputs
    )
    return known and available()  # asked last: it imports numba, which a card has no use for


@lru_cache
def _most_threads() -> int:
    import numba

    return numba.get_num_threads()


def set_threads(count: int) -> None:
    """How many threads parallel kernels use when called from this Python thread, at most as many as there are cores."""
    if available():
        import numba

        numba.set_num_threads(max(1, min(count, _most_threads())))


def as_numpy(x: torch.Tensor) -> np.ndarray:
    """The same memory; 16-bit floats as int16, since numpy has no bfloat16 and numba no float16."""
    return (x.view(torch.int16) if x.element_size() == 2 else x).numpy()
