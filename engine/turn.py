"""One turn of a conversation: re-use, prefill, decode, and honest counts of each."""

import logging
import threading
import time
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from engine.attention import AttentionPlan
from engine.cache import PAGE, SPARSE_DECODE, Lineage, Sequence
from engine.config import Sampling
from engine.events import Checkpoint, Done, Event, FinishReason, GenerationStats, Prefilled, Reused, Score, Token
from engine.prefill import chunk_ends, prefill_chunk
from engine.prefix import StoredPrefix, common_prefix, find_in_memory, find_in_snapshots, read_alike, restore
from engine.profiles import peak_memory_bytes
from engine.room import Room
from engine.sampling import Sampler, StopFilter
from engine.snapshot import SnapshotReader, key_in
from engine.split_attention import check_plan
from engine.steps import AheadSteps, SampledSteps, Steps
from kernels import cpu_jit

if TYPE_CHECKING:
    from engine.engine import Engine

log = logging.getLogger(__name__)

# During a long read a checkpoint is made at the end of a chunk once so many tokens or seconds have passed.
CHECKPOINT_TOKENS = 16384
CHECKPOINT_SECONDS = 10.0


class Cancelled(Exception):
    """Raised inside a step when the turn has been cancelled."""


class Turn:
    """State of one call of `Engine.generate`. `run` yields its events; `finish` must follow, however `run` ended."""

    def __init__(
        self,
        engine: "Engine",
        prompt: array,
        sampling: Sampling,
        conversation: str,
        cancel: threading.Event | None,
        checkpoints: SequenceOf[int],
        snapshots: SnapshotReader | None,
        plan: AttentionPlan,
        started: float,
    ) -> None:
        self.engine, self.prompt, self.sampling = engine, prompt, sampling
        self.conversation = engine.conversations.use(conversation)
        self.cancel = cancel or threading.Event()
        self.checkpoints = sorted({at for at in checkpoints if 0 < at < len(prompt)})
        check_plan(engine.cache, plan)
        self.snapshots, self.plan = snapshots, plan
        self.room = Room(engine, self.conversation, len(prompt) + sampling.max_tokens, len(self.checkpoints) + 2)
        self.started = started
        self.reused = self.restored = self.computed = self.answered = 0
        self.sparse = 0  # tokens of the re-used prefix that sparse decode has made
        self.ttft: float | None = None
        self.step_seconds: list[float] = []

    @property
    def live(self) -> Sequence:
        return self.conversation.live

    def run(self) -> Iterator[Event]:
        """All events of the turn; `Done` is the last."""
        reason: FinishReason = "cancelled"
        cpu_jit.set_threads(self.engine.profile.threads)  # numba counts for each Python thread by itself
        try:
            self._poll()
            self._reuse()
            yield Reused(self.reused, self.restored, len(self.prompt))
            yield from self._prefill()
            reason = yield from self._decode()
        except Cancelled:
            pass
        yield Done(self._stats(reason))

    def finish(self) -> None:
        """Give back the pages that were set aside for an answer of full length, and half-restored KV."""
        cache = self.engine.cache
        if not cache.is_complete(self.live):
            cache.free(self.live)
        cache.trim(self.live)

    def _poll(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    # Re-use

    def _reuse(self) -> None:
        """Make the live sequence the longest known prefix of the prompt, and take pages for the rest."""
        engine, cache, policy = self.engine, self.engine.cache, self.plan.reading
        wanted = self.prompt[:-1]  # the last prompt token always goes through decode: its logits are needed
        state, length = find_in_memory(engine.conversations.states(self.conversation), wanted, engine.blocks, policy)
        stored = None
        if self.snapshots:
            stored = find_in_snapshots(self.snapshots, engine.fingerprint, wanted, engine.blocks, policy)
        if stored is not None and stored.tokens > length:
            states = [
                (self._shared_tokens(state, stored), state) for state in engine.conversations.states(self.conversation)
            ]
            length, state = max(states, key=lambda found: found[0], default=(0, None))
        else:
            stored = None
        self._become(state, length)
        in_memory = self.live.length
        self.room.begin()
        if stored is not None and self.snapshots is not None:
            self.room.begin_restoring()
            try:
                restore(cache, self.live, self.snapshots, stored, wanted, engine.blocks, self.room.restore, self._poll)
            finally:  # a cancelled turn tells what it had restored
                self.restored = self.live.length - in_memory
                self.reused = self.live.length
            if not cache.is_complete(self.live):
                log.warning("A stored KV prefix lacks what streaming heads keep; its tokens are computed anew.")
                self._become(None, 0)
                in_memory = self.restored = 0
                self.room.begin()
        self.reused = in_memory + self.restored
        self.sparse = self.live.made_by.count(SPARSE_DECODE)
        if engine.blocks.exact_only:
            self.live.lineage = self.live.lineage_in(0, self.live.length) + self._lineage()

    def _shared_tokens(self, state: Sequence, stored: StoredPrefix) -> int:
        """Of the blocks about to be restored, the tokens of those that `state` has in memory, made in the same way."""
        size, alike = self.engine.blocks.tokens, read_alike(state, self.plan.reading)
        common = int(min(common_prefix(state.ids, self.prompt), len(stored.blocks) * size, alike))
        if self.engine.cache.packs:
            common = min(common, state.packed * PAGE)
        parent = self.engine.fingerprint
        for number, key in enumerate(stored.blocks[: common // size]):
            if key_in(state, number * size, (number + 1) * size, parent) != key:
                return number * size
            parent = key
        return common // size * size

    def _become(self, state: Sequence | None, length: int) -> None:
        self._fork(state, length)
        # What was kept was read as this turn's policy would have (`read_alike`); what follows is read by it.
        self.live.reading, self.live.dense_until = self.plan.reading.key, self.plan.reading.dense_until

    def _lineage(self) -> Lineage:
        """What the KV of the prompt's rest depends on besides its tokens, from checkpoint to checkpoint: where chunks
        are cut, and which tokens read everything. Elsewhere blocks that are known are re-used; where that starts at
        kept states only, tokens whose blocks are stored may be read again and must not mix with them."""
        first = self.live.length
        edges = [first, *(at for at in self.checkpoints if at > first), len(self.prompt)]
        return tuple((start, end, min(max(start, self.plan.tail), end)) for start, end in pairwise(edges))

    def _fork(self, state: Sequence | None, length: int) -> None:
        cache, live = self.engine.cache, self.live
        if state is live and length == live.length:
            return
        if state is not None and length % PAGE:
            self.room.copy(state)
        self.conversation.live = cache.fork(state, length) if state is not None and length else Sequence()
        cache.free(live)

    # Prefill

    def _prefill(self) -> Iterator[Event]:
        engine, live, total = self.engine, self.live, len(self.prompt)
        yield self._prefilled()
        last_mark, marked_at = live.length, time.perf_counter()
        if live.length in self.checkpoints:
            yield self._mark(live.length, pin=True)
        for end in chunk_ends(live.length, total - 1, engine.prefill_chunk, self.checkpoints):
            self.room.grow(end)
            first = live.length
            prefill_chunk(engine.decoder, engine.cache, live, self.prompt[first:end], self._poll, self.plan)
            self.computed += end - first
            yield self._prefilled()
            asked = end in self.checkpoints
            late = end - last_mark >= CHECKPOINT_TOKENS or time.perf_counter() - marked_at >= CHECKPOINT_SECONDS
            if asked or (late and end < total - 1 and end % PAGE == 0):  # a late one need not copy a page
                yield self._mark(end, pin=asked)
                last_mark, marked_at = end, time.perf_counter()

    def _mark(self, length: int, pin: bool) -> Checkpoint:
        self._keep(length, pin)
        return Checkpoint(length)

    def _keep(self, length: int, pin: bool) -> None:
        if length % PAGE:
            self.room.copy()
        self.engine.conversations.mark(self.conversation, length, pin)

    def _prefilled(self) -> Prefilled:
        return Prefilled(self.live.length, len(self.prompt), time.perf_counter() - self.started)

    # Decode

    def _decode(self):
        engine = self.engine
        filter, detokenizer = StopFilter(self.sampling.stop), engine.tokenizer.stream()
        if self.live.length:
            self._keep(self.live.length, pin=False)
        steps = self._steps()
        self._feed(steps, self.prompt[-1])
        self.computed += 1
        yield self._prefilled()
        while True:
            started = time.perf_counter()
            token = steps.next()
            looked = self.plan.evidence.take() if self.plan.evidence is not None else None
            self.answered += 1
            ended = token in engine.tokenizer.eos_ids or token in engine.model.eos_ids
            text, stopped = filter.push("" if ended else detokenizer.push(token))
            reason = self._reason(ended or stopped)
            if reason is not None and not stopped:
                text, stopped = self._tail(text, filter, detokenizer)
                reason = "stop" if stopped else reason
            self._time_token(started)
            held = filter.holds  # then the token waits for the next step: if that is cancelled it brings the held text
            if not held:
                yield Token(token, text, looked)
            if reason is not None:
                return reason
            try:
                self._feed(steps, token)
            except Cancelled:
                if held:
                    yield Token(token, self._tail(text, filter, detokenizer)[0], looked)
                raise
            if held:
                yield Token(token, text, looked)

    # Scoring

    def score(self, continuation: SequenceOf[int]) -> Score:
        """Read the prompt, then put `continuation` in place of an answer. `finish` must follow."""
        self._reuse()
        for _ in self._prefill():
            pass
        if self.live.length:
            self._keep(self.live.length, pin=False)
        nlls, matches, logits = [], [], self._step(self.prompt[-1])
        for number, token in enumerate(continuation, 1):
            nlls.append(torch.logsumexp(logits, 0) - logits[token])
            matches.append(logits.argmax() == token)
            if number < len(continuation):
                logits = self._step(token)
        counts, nll = self.plan.counts, float(torch.stack(nlls).double().sum())  # a card is waited for once, here
        return Score(
            nll,
            len(continuation),
            int(torch.stack(matches).sum()),
            counts.answering.share,
            counts.selecting.share,
            counts.reading.share,
        )

    def _reason(self, stopped: bool) -> FinishReason | None:
        if stopped:
            return "stop"
        if self.answered == self.sampling.max_tokens:
            return "length"
        return "cancelled" if self.cancel.is_set() else None

    @staticmethod
    def _tail(text: str, filter: StopFilter, detokenizer) -> tuple[str, bool]:
        """`text` with everything held back, now that nothing can follow; and whether that held a stop text."""
        more, stopped = filter.push(detokenizer.flush())
        return text + more + ("" if stopped else filter.flush()), stopped

    def _steps(self) -> Steps:
        sampler, graphs = Sampler(self.sampling), self.engine.graphs
        if graphs is None or graphs.refusal(self.plan) is not None or not sampler.greedy:
            return SampledSteps(self._step, sampler)
        return AheadSteps(graphs, self.live, self.plan, self.room.grow, self._poll, self.sampling.max_tokens)

    def _step(self, token: int) -> torch.Tensor:
        self.room.grow(self.live.length + 1)
        return self.engine.decode(self.live, token, self._poll, self.plan)

    def _feed(self, steps: Steps, token: int) -> None:
        started = time.perf_counter()
        steps.feed(token)
        self.step_seconds.append(time.perf_counter() - started)

    def _time_token(self, started: float) -> None:
        now = time.perf_counter()
        self.step_seconds[-1] += now - started
        if self.ttft is None:
            self.ttft = now - self.started

    def _stats(self, reason: FinishReason) -> GenerationStats:
        later = self.step_seconds[1:]  # the first step belongs to the prompt
        return GenerationStats(
            prompt_tokens=len(self.prompt),
            reused_tokens=self.reused,
            restored_tokens=self.restored,
            computed_tokens=self.computed,
            output_tokens=self.answered,
            ttft_s=self.ttft,
            tpot_ms=1000 * sum(later) / len(later) if later else None,
            finish_reason=reason,
            kv_pages_read_share=self.plan.counts.answering.share,
            selected_pages_read_share=self.plan.counts.selecting.share,
            prompt_pages_read_share=self.plan.counts.reading.share,
            peak_memory_bytes=peak_memory_bytes(),
            demoted_pages=self.engine.cache.demoted(self.live),
            sparse_tokens=self.sparse,
        )
