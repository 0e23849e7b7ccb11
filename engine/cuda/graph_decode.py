"""Decode steps as CUDA graphs: between a token and its logits the host launches once and waits for nothing.

All that changes from step to step (token, slot, length, budgets, page table) lies in fixed tensors that the recorded
kernels read. Each graph is one combination of how the first layers and the others attend: to everything, to lists of
pages that are selected in the same step, or to those selected in an earlier one (`REUSE`, past 64k tokens).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from engine.attention import AttentionPlan
from engine.cache import DECODE, PAGE, SPARSE_DECODE, KvCache, Sequence
from engine.cuda.step_inputs import StepInputs
from engine.cuda.warm_up import read_something
from engine.model import Decoder, LayerWeights
from engine.patterns import AttentionPolicy, CoarseKeys, MinMax, Scorer
from engine.patterns.policy import FIRST_LAYERS, RECENT, SHARED_FROM, SINK
from engine.patterns.scorer import MASS, MeanStd
from engine.two_pools import TwoPoolCache
from kernels.append_kv.triton import rope_append
from kernels.block_index import PageLists
from kernels.decode_attention.triton import make_scratch, paged_decode
from kernels.linear import activation_dtype, gate_up_swiglu, linear
from kernels.page_scores.triton import score_pages
from kernels.page_scores.triton_coarse import score_pages_by_coarse_keys
from kernels.page_selection.triton import select_page_lists
from kernels.rms_norm import add_rms_norm
from kernels.sample.triton import copy_and_choose

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
_SCORERS = (CoarseKeys, *_KINDS)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was launched: its input token, where known, and what is told when it is committed."""

    token: int | None
    made_by: int
    pages: int
    variant: tuple[Reads, Reads]
    chosen: "_Chosen"

    def choice(self) -> int:
        """The likeliest next token; waits for the step."""
        self.chosen.done.synchronize()
        return int(self.chosen.token)

    def looked(self) -> np.ndarray:
        """float32 [pages]: the attention that each KV page drew; waits for the step. Before two more are launched."""
        self.chosen.done.synchronize()
        return self.chosen.looked[: self.pages].numpy().copy()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A pinned int64 [1] and float32 [KV pages] that a step's choice and masses are copied to, and the event behind
    these copies."""

    token: torch.Tensor
    looked: torch.Tensor
    done: torch.cuda.Event


class _NoEvent:
    """In place of an event where steps run at once, on a CPU."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class GraphDecoder:
    """Serves one engine's decode steps, batch 1; `capture` records the graphs, before the first question.

    `refusal` says why a plan cannot be served; then the caller takes the torch path.
    `evidence`: float32 [layers, kv_heads], which KV heads' page masses are summed (`PageMass`); None: nobody asks.
    """

    def __init__(
        self, decoder: Decoder, cache: KvCache, scorer: Scorer, context: int, evidence: torch.Tensor | None = None
    ) -> None:
        config, device = decoder.config, cache.device
        self._decoder, self._cache, self._scorer = decoder, cache, scorer
        self._scale = config.head_dim**-0.5
        layers, heads, pages = config.layers, config.kv_heads, -(-context // PAGE)
        self._inputs = StepInputs(device)
        self._choice = torch.zeros(1, dtype=torch.int64, device=device)
        self._weights = evidence
        seen = 0 if evidence is None else pages
        self._mass = torch.zeros(heads, seen, device=device)  # of the step that runs, in all layers so far
        self._looked = torch.zeros(seen, device=device)
        self._chosen = [self._new_chosen() for _ in range(2)]
        self._steps = 0
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
        self._scratch = make_scratch(1, config.heads, heads, config.head_dim, pages, device, seen > 0)
        self._read = torch.zeros(2, dtype=torch.int64, device=device)  # KV pages listed in all layers, in later ones
        self._logits = torch.zeros(config.vocab_size, device=device)
        self._reads: deque[torch.Tensor] = deque()  # of steps not yet committed
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
        if policy.mode != "exact" and type(self._scorer) not in _SCORERS:
            return f"KV pages are scored by {self._scorer.name}"
        return None

    def capture(self, progress: Callable[[float], None] = lambda share: None) -> None:
        """Compile all kernels, those of prefill too, and record all graphs, over pages that are taken for that long."""
        read_something(self._decoder, self._cache, self._scorer)
        (page,) = self._cache.exact.take(1)
        self._table.fill_(page)
        self._table_host = []
        self._inputs.send(None, page * PAGE, 1, (1, 1))
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
        step = self.launch(sequence, token, plan, sequence.length)
        self.commit(sequence, step, plan)
        if plan.evidence is not None:
            plan.evidence.put(step.looked())
        return self._logits

    @torch.inference_mode()
    def launch(self, sequence: Sequence, token: int | None, plan: AttentionPlan, position: int) -> Step:
        """Begin the step of `token`, None for the one that the step before chose, at `position`: the length of
        `sequence`, or one more while the step before is not committed. `commit` must follow, in order.

        Where the step before completes a KV page, it has to be committed first: its page has no summary until then.
        """
        if position == sequence.length:
            self._reads.clear()  # of a step that was begun and not wanted
        policy = plan.answering
        length, pages = position + 1, position // PAGE + 1
        maker = policy.selection_position(position)
        budgets = [policy.selected(layer, maker + 1) for layer in (0, FIRST_LAYERS)]
        variant = self._variant(plan, maker, length, budgets)
        self._place(sequence, pages)
        place = sequence.table[position // PAGE]
        in_pages = [pages if budget is None else -(-budget // PAGE) for budget in budgets]
        self._inputs.send(token, place * PAGE + position % PAGE, length, (in_pages[0], in_pages[1]))
        if variant != ("dense", "dense"):
            self._set_streaming(policy)
        if "select" in variant:
            self._made = (plan, maker) if position == maker and position >= SHARED_FROM else None
        graph = self._graphs.get(variant)
        if graph is None:  # not captured: launched one by one
            self._forward(*variant)
        else:
            graph.replay()
        sparse = any(reads != "dense" and n < pages for reads, n in zip(variant, in_pages)) or (
            variant[1] != "dense" and policy.streaming(FIRST_LAYERS) is not None
        )
        if variant != ("dense", "dense"):
            self._reads.append(self._read.clone())
        chosen = self._chosen[self._steps % len(self._chosen)]
        self._steps += 1
        chosen.token.copy_(self._choice, non_blocking=True)
        if self._weights is not None:
            chosen.looked[:pages].copy_(self._looked[:pages], non_blocking=True)
        chosen.done.record()
        return Step(token, SPARSE_DECODE if sparse else DECODE, pages, variant, chosen)

    def commit(self, sequence: Sequence, step: Step, plan: AttentionPlan, token: int | None = None) -> None:
        """Declare a step's KV part of the sequence. `token`: the step's input, where it was launched without."""
        self._count(plan, step.pages, step.variant)
        id = step.token if token is None else token
        if id is None:
            raise ValueError("token: got None, need the id that this step was launched with")
        self._cache.commit(sequence, [id], step.made_by)

    @property
    def recorded(self) -> Mapping[tuple[Reads, Reads], torch.cuda.CUDAGraph]:
        """What was captured, to be timed: a replay repeats the last step that was launched, over the same inputs."""
        return self._graphs

    def _new_chosen(self) -> _Chosen:
        on_card = self._cache.device.type == "cuda"
        token = torch.zeros(1, dtype=torch.int64, pin_memory=on_card)
        looked = torch.zeros(self._looked.shape[0], pin_memory=on_card)
        return _Chosen(token, looked, torch.cuda.Event() if on_card else _NoEvent())  # type: ignore[arg-type]

    def _variant(self, plan: AttentionPlan, maker: int, length: int, budgets: list[int | None]) -> tuple[Reads, Reads]:
        made = self._made is not None and self._made[0] is plan and self._made[1] == maker and length - 1 != maker
        chosen: Reads = "reuse" if made else "select"
        first, rest = budgets
        return "dense" if first is None else chosen, "dense" if rest is None else chosen

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
            read = self._reads.popleft()
            counts.answering.add(read[0], first + rest)
            counts.selecting.add(read[1], rest)

    # What is recorded

    def _forward(self, first: Reads, rest: Reads) -> None:
        decoder, inputs, eps = self._decoder, self._inputs, self._decoder.config.norm_eps
        if self._weights is not None:
            self._mass.zero_()
        position = inputs.length - 1
        angles = decoder.rope.at(position)
        token = torch.where(inputs.token >= 0, inputs.token, self._choice)
        x, delta = decoder.embed[token].float(), None
        for index, layer in enumerate(decoder.decode_layers):
            reads = first if index < FIRST_LAYERS else rest
            x, normed = add_rms_norm(x, delta, layer.attn_norm, eps, activation_dtype(layer.qkv))
            self._attend(index, layer, linear(normed, layer.qkv), angles, reads)
            delta = linear(self._out.flatten(1), layer.o)
            x, normed = add_rms_norm(x, delta, layer.ffn_norm, eps, activation_dtype(layer.gate_up))
            delta = linear(gate_up_swiglu(normed, layer.gate_up), layer.down)
        _, normed = add_rms_norm(x, delta, decoder.norm, eps, activation_dtype(decoder.head))
        copy_and_choose(linear(normed, decoder.head)[0], self._logits, self._choice)
        if self._weights is not None:
            torch.sum(self._mass, 0, out=self._looked)
        if (first, rest) != ("dense", "dense"):
            listed = self._ends - self._starts
            dense = ((position // PAGE + 1) * listed.shape[1])[0]
            earlier, later = listed[:FIRST_LAYERS], listed[FIRST_LAYERS:]
            self._read[1].copy_(dense * later.shape[0] if rest == "dense" else later.sum())
            self._read[0].copy_(self._read[1] + (dense * earlier.shape[0] if first == "dense" else earlier.sum()))

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
            self._score(index, q[0], budget)
            select_page_lists(self._scores, inputs.length, budget, SINK, RECENT, self._streaming[index], lists)
        mass = weights = None
        if self._weights is not None and index >= FIRST_LAYERS:
            mass, weights = self._mass, self._weights[index]
        paged_decode(
            q, kv, self._table, lists, inputs.length, self._scale, self._out, self._scratch, mass, weights=weights
        )

    def _score(self, index: int, q: torch.Tensor, budget: torch.Tensor) -> None:
        memory = self._cache.memory
        summary = [memory.of_layer(part, index) for part in memory.summaries[self._scorer.summary]]
        rest = memory.exact_pages, self._inputs.length, budget, self._streaming[index], self._scores
        if isinstance(self._scorer, CoarseKeys):
            codes, scale, minimum = summary
            score_pages_by_coarse_keys(q, codes, scale, minimum, self._scale, self._table, *rest)
        else:
            first, second = summary
            score_pages(q, first, second, _KINDS[type(self._scorer)], self._table, *rest)
