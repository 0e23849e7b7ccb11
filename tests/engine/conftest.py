"""Engine tests import `engine` before torch, so that its thread settings hold for them too."""

import pytest

from engine import Engine
from tests.engine.tiny_models import make_model
from tests.engine.tools import SPARSE_STEPS, tiny_engine


@pytest.fixture(scope="module")
def sparse_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Reads and answers sparsely from some hundred tokens on."""
    model = make_model("qwen3", layers=3, max_position=4096)
    return tiny_engine(tmp_path_factory.mktemp("tiny"), model=model, sparsity=SPARSE_STEPS, prefill_chunk=256)
