"""What the kernels that numba compiles for the CPU share: the decorator, torch to numpy, and number formats.

numba is imported when the first such kernel is used, so that machines without it (a GPU server, say) lose nothing.
Compiled code is kept on disk by numba: the first use of a kernel on a machine takes seconds, later ones milliseconds.
"""

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

# Reordering sums lets dot products use vector registers; results stay the same from run to run. NaN and infinity keep
# their meaning, which a running softmax needs.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}

# numba's simplest pool of threads breaks when two Python threads enter it at once.
parallel_lock = threading.Lock()


@lru_cache
def unavailable_reason() -> str:
    """Why kernels cannot be compiled here, or "" if they can."""
    os.environ.setdefault("NUMBA_THREADING_LAYER_PRIORITY", "omp tbb workqueue")
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported: {error}"
    return ""


def available() -> bool:
    return not unavailable_reason()


def jit(parallel: bool = False, inline: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's compiler with our options, and its cache on disk."""
    import numba

    return numba.njit(
        fastmath=_FAST_MATH,
        error_model="numpy",
        nogil=True,
        cache=True,
        parallel=parallel,
        inline="always" if inline else "never",
    )


@lru_cache
def _most_threads() -> int:
    import numba

    return numba.get_num_threads()


def set_threads(count: int) -> None:
    """How many threads parallel kernels use from now on, at most as many as the machine has."""
    if available():
        import numba

        numba.set_num_threads(max(1, min(count, _most_threads())))


def as_numpy(x: torch.Tensor) -> np.ndarray:
    """The same memory; 16-bit floats as int16, since numpy has no bfloat16 and numba no float16."""
    return (x.view(torch.int16) if x.element_size() == 2 else x).numpy()
