"""Where the model looked: the attention that each KV page drew in one decode step, over layers and retrieval heads.

Decode attention gives the mass of every KV page that it lists. Here it is summed behind the first layers, whose
attention is spread out, over the KV heads that do not stream: what a streaming head sees is no finding. On a CPU a
step's masses are put aside as they come and summed in a few operations at its end; CUDA graphs sum on the card
(engine.cuda.graph_decode) and leave the result here.
"""

import numpy as np
import torch

from engine.config import EngineConfig
from engine.patterns import streaming_heads
from engine.patterns.policy import FIRST_LAYERS
from kernels.block_index import BlockIndex


class PageMass:
    """One turn's: what the last decode step drew.

    `weights`: float32 [layers, kv_heads], 1 for KV heads that count and 0 for others; None where all of them count.
    """

    def __init__(self, weights: torch.Tensor | None = None) -> None:
        self._weights = weights
        self._parts: list[tuple[int, BlockIndex, torch.Tensor]] = []
        self._summed: np.ndarray | None = None

    def begin(self) -> None:
        """A step begins; what one that was given up has left is dropped."""
        self._parts.clear()
        self._summed = None

    def add(self, layer: int, index: BlockIndex, mass: torch.Tensor) -> None:
        """mass float32 [listed]: of the pages that `index` lists in `layer`."""
        if layer >= FIRST_LAYERS:
            self._parts.append((layer, index, mass))

    def put(self, summed: np.ndarray) -> None:
        """A step that was summed elsewhere."""
        self._summed = summed

    def take(self) -> np.ndarray:
        """float32 [pages], for the first KV pages of the sequence what the last step drew; behind them nothing."""
        if self._summed is None:
            self._summed = self._sum()
        return self._summed

    def _sum(self) -> np.ndarray:
        if not self._parts:
            return np.zeros(0, np.float32)
        mass = torch.cat([mass for _, _, mass in self._parts])
        pages = torch.cat([index.pages for _, index, _ in self._parts])
        if self._weights is not None:
            layers = [layer for layer, _, _ in self._parts]
            listed = torch.stack([index.offsets for _, index, _ in self._parts]).diff(dim=1).flatten()
            mass = mass * self._weights[layers].flatten().repeat_interleave(listed)
        self._parts.clear()
        return torch.zeros(int(pages.max()) + 1, device=mass.device).index_add_(0, pages, mass).cpu().numpy()


def retrieval_weights(config: EngineConfig, device: torch.device) -> torch.Tensor | None:
    """The weights of `PageMass` by a model's gates; None, all heads, without gates and where none streams or all do."""
    if config.gates is None:
        return None
    streaming = streaming_heads(torch.tensor(config.gates, device=device), config.sparsity.streaming_ratio)
    alike = bool(streaming.all()) or not bool(streaming.any())
    return None if alike else (~streaming).float()
