"""Decode steps as CUDA graphs: between a token and its logits the host launches once and waits for nothing.

All that changes from step to step (token, slot, length, budgets, page table) lies in fixed tensors that the recorded
kernels read. Each graph is one combination of how the first layers and the others attend: to everything, to lists of
pages that are selected in the same step, or to those selected in an earlier one (`REUSE`, past 64k tokens).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from engine.attention import AttentionPlan
from engine.cache import DECODE, PAGE, SPARSE_DECODE, KvCache, Sequence
from engine.model import Decoder, LayerWeights
from engine.patterns import AttentionPolicy, MinMax, Scorer
from engine.patterns.policy import FIRST_LAYERS, RECENT, SHARED_FROM, SINK
from engine.patterns.scorer import MASS, MeanStd
from engine.two_pools import TwoPoolCache
from kernels.append_kv.triton import rope_append
from kernels.block_index import PageLists
from kernels.decode_attention.triton import make_scratch, paged_decode
from kernels.linear import activation_dtype, gate_up_swiglu, linear
from kernels.page_scores.triton import score_pages
from kernels.page_selection.triton import select_page_lists
from kernels.rms_norm import add_rms_norm

Reads = Literal["dense", "select", "reuse"]
VARIANTS: tuple[tuple[Reads, Reads], ...] = (
    ("dense", "dense"),
    ("dense", "select"),
    ("select", "select"),
    ("reuse", "reuse"),
    ("select", "dense"),
    ("reuse", "dense"),
)
"""(first layers, other layers): up to 64k tokens the first layers read everything; with a late crossover the others."""
_KINDS: dict[type[Scorer], str] = {MeanStd: "mean_std", MinMax: "min_max"}


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Views into one int64 tensor of 4, so that a step is told everything in one copy."""

    all: torch.Tensor
    host: torch.Tensor  # pinned

    @classmethod
    def on(cls, device: torch.device) -> "_Inputs":
        host = torch.zeros(4, dtype=torch.int64, pin_memory=device.type == "cuda")
        return cls(torch.zeros(4, dtype=torch.int64, device=device), host)

    @property
    def token(self) -> torch.Tensor:
        return self.all[0:1]

    @property
    def slot(self) -> torch.Tensor:
        return self.all[1:2]

    def _small(self, place: int) -> torch.Tensor:
        return self.all.view(torch.int32)[4 + place : 5 + place]

    @property
    def length(self) -> torch.Tensor:
        return self._small(0)

    @property
    def budgets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """In KV pages, of the first layers and of the others."""
        return self._small(1), self._small(2)

    def send(self, token: int, slot: int, length: int, first: int, rest: int) -> None:
        self.host[0], self.host[1] = token, slot
        small = self.host.view(torch.int32)
        small[4], small[5], small[6] = length, first, rest
        self.all.copy_(self.host, non_blocking=True)


class GraphDecoder:
    """Serves one engine's decode steps, batch 1; `capture` records the graphs, before the first question.

    `refusal` says why a plan cannot be served; then the caller takes the torch path.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, scorer: Scorer, context: int) -> None:
        config, device = decoder.config, cache.device
        self._decoder, self._cache, self._scorer = decoder, cache, scorer
        self._scale = config.head_dim**-0.5
        self._pages = -(-context // PAGE)
        layers, heads, pages = config.layers, config.kv_heads, self._pages
        self._inputs = _Inputs.on(device)
        self._table = torch.zeros(pages, dtype=torch.int32, device=device)
        self._table_host: list[int] = []
        self._streaming = torch.zeros(layers, heads, dtype=torch.uint8, device=device)
        self._streams: AttentionPolicy | None = None
        rows = torch.zeros(layers, heads, dtype=torch.int32, device=device)
        self._starts, self._ends = rows, rows.clone()
        self._listed = torch.zeros(layers, heads * pages, dtype=torch.int32, device=device)
        self._scores = torch.zeros(heads, pages, device=device)
        dtype = activation_dtype(decoder.layers[0].qkv)
        self._out = torch.zeros(1, config.heads, config.head_dim, dtype=dtype, device=device)
        self._scratch = make_scratch(1, config.heads, heads, config.head_dim, pages, device, mass=False)
        self._read = torch.zeros(2, dtype=torch.int64, device=device)  # KV pages listed in all layers, in later ones
        self._logits = torch.zeros(config.vocab_size, device=device)
        self._made: tuple[AttentionPlan, int] | None = None
        self._graphs: dict[tuple[Reads, Reads], torch.cuda.CUDAGraph] = {}

    def refusal(self, plan: AttentionPlan) -> str | None:
        """Why steps under `plan` run outside graphs; None if they do not."""
        policy, memory = plan.answering, self._cache.memory
        if isinstance(self._cache, TwoPoolCache):
            return "streaming heads have a pool of their own"
        if policy.named is not None:
            return f"{policy.mode} is a pattern of its own"
        if MASS in memory.summaries:
            return "attention drawn by each KV page is being summed up"
        if self._cache.cold.size:
            return "KV pages may be demoted, and what they draw is being summed up"
        if policy.mode != "exact" and type(self._scorer) not in _KINDS:
            return f"KV pages are scored by {self._scorer.name}"
        return None

    def capture(self, progress: Callable[[float], None] = lambda share: None) -> None:
        """Compile all kernels and record all graphs, over a page that is taken for that long."""
        (page,) = self._cache.exact.take(1)
        self._table.fill_(page)
        self._table_host = []
        self._inputs.send(0, page * PAGE, 1, 1, 1)
        with torch.inference_mode():
            for number, variant in enumerate(VARIANTS):
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    self._forward(*variant)  # compiles, and lets libraries make their workspaces
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._forward(*variant)
                self._graphs[variant] = graph
                progress((number + 1) / len(VARIANTS))
        torch.cuda.synchronize()
        self._cache.exact.release([page])

    @torch.inference_mode()
    def step(self, sequence: Sequence, token: int, plan: AttentionPlan) -> torch.Tensor:
        """As `engine.decode.decode_token`; the logits stay valid until the next step."""
        policy, position = plan.answering, sequence.length
        length, pages = position + 1, position // PAGE + 1
        maker = policy.selection_position(position)
        budgets = [policy.selected(layer, maker + 1) for layer in (0, FIRST_LAYERS)]
        variant = self._variant(plan, maker, length, budgets)
        self._place(sequence, pages)
        place = sequence.table[position // PAGE]
        in_pages = [pages if budget is None else -(-budget // PAGE) for budget in budgets]
        self._inputs.send(token, place * PAGE + position % PAGE, length, *in_pages)
        if variant != ("dense", "dense"):
            self._set_streaming(policy)
        if "select" in variant:
            self._made = (plan, maker) if position == maker and position >= SHARED_FROM else None
        graph = self._graphs.get(variant)
        if graph is None:  # not captured: launched one by one
            self._forward(*variant)
        else:
            graph.replay()
        self._count(plan, pages, variant)
        sparse = any(reads != "dense" and n < pages for reads, n in zip(variant, in_pages)) or (
            variant[1] != "dense" and policy.streaming(FIRST_LAYERS) is not None
        )
        self._cache.commit(sequence, [token], SPARSE_DECODE if sparse else DECODE)
        return self._logits

    def _variant(self, plan: AttentionPlan, maker: int, length: int, budgets: list[int | None]) -> tuple[Reads, Reads]:
        made = self._made is not None and self._made[0] is plan and self._made[1] == maker and length - 1 != maker
        first, rest = ("dense" if budget is None else "reuse" if made else "select" for budget in budgets)
        return first, rest

    def _place(self, sequence: Sequence, pages: int) -> None:
        """Send the page table, if it is not the one sent last."""
        table = sequence.table[:pages]
        if table != self._table_host:
            self._table[:pages].copy_(torch.tensor(table, dtype=torch.int32))
            self._table_host = table

    def _set_streaming(self, policy: AttentionPolicy) -> None:
        if policy is self._streams:
            return
        for layer in range(self._streaming.shape[0]):
            heads = policy.streaming(layer)
            if heads is None:
                self._streaming[layer].zero_()
            else:
                self._streaming[layer].copy_(heads)
        self._streams = policy

    def _count(self, plan: AttentionPlan, pages: int, variant: tuple[Reads, Reads]) -> None:
        counts, config = plan.counts, self._decoder.config
        held = config.kv_heads * pages
        first, rest = FIRST_LAYERS * held, max(0, config.layers - FIRST_LAYERS) * held
        if variant == ("dense", "dense"):
            counts.answering.add(first + rest, first + rest)
            counts.selecting.add(rest, rest)
        else:  # lists are counted on the device, from the lists themselves
            counts.answering.add(self._read[0], first + rest)
            counts.selecting.add(self._read[1], rest)

    # What is recorded

    def _forward(self, first: Reads, rest: Reads) -> None:
        decoder, inputs, eps = self._decoder, self._inputs, self._decoder.config.norm_eps
        position = inputs.length - 1
        angles = decoder.rope.at(position)
        x, delta = decoder.embed[inputs.token].float(), None
        for index, layer in enumerate(decoder.decode_layers):
            reads = first if index < FIRST_LAYERS else rest
            x, normed = add_rms_norm(x, delta, layer.attn_norm, eps, activation_dtype(layer.qkv))
            self._attend(index, layer, linear(normed, layer.qkv), angles, reads)
            delta = linear(self._out.flatten(1), layer.o)
            x, normed = add_rms_norm(x, delta, layer.ffn_norm, eps, activation_dtype(layer.gate_up))
            delta = linear(gate_up_swiglu(normed, layer.gate_up), layer.down)
        _, normed = add_rms_norm(x, delta, decoder.norm, eps, activation_dtype(decoder.head))
        self._logits.copy_(linear(normed, decoder.head)[0])
        if (first, rest) != ("dense", "dense"):
            listed = self._ends - self._starts
            dense = (position // PAGE + 1) * listed.shape[1] * FIRST_LAYERS
            later = listed[FIRST_LAYERS:].sum()
            self._read[1].copy_(later)
            self._read[0].copy_(later + (dense[0] if first == "dense" else listed[:FIRST_LAYERS].sum()))

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        qkv: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        reads: Reads,
    ) -> None:
        cache, inputs = self._cache, self._inputs
        kv, config = cache.memory.layers[index], self._decoder.config
        q = rope_append(
            qkv, layer.q_norm, layer.k_norm, config.norm_eps, *angles, kv.keys, kv.values, inputs.slot, cache.packs,
            config.heads,
        )  # fmt: skip
        lists = None
        if reads != "dense":
            lists = PageLists(self._starts[index], self._ends[index], self._listed[index])
        if reads == "select" and lists is not None:
            budget = inputs.budgets[index >= FIRST_LAYERS]
            summary = [cache.memory.of_layer(part, index) for part in cache.memory.summaries[self._scorer.summary]]
            score_pages(
                q[0], *summary, _KINDS[type(self._scorer)], self._table, cache.memory.exact_pages, inputs.length,
                budget, self._streaming[index], self._scores,
            )  # fmt: skip
            select_page_lists(self._scores, inputs.length, budget, SINK, RECENT, self._streaming[index], lists)
        paged_decode(q, kv, self._table, lists, inputs.length, self._scale, self._out, self._scratch)
