"""The KV cache as a state machine against plain lists: nothing lost, nothing shared wrongly, nothing leaked.

A token's keys and values are made from its id and position, so what a page should hold is known at any time. A model
keeps, for every conversation, the token ids of each kept state. UNABRIDGED_CACHE_STEPS sets the number of steps.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.cache import PAGE, PREFILL, KvCache, Sequence
from engine.config import ModelConfig, RopeScaling
from engine.conversations import Conversations
from engine.demotion import demote
from engine.errors import EngineError
from engine.snapshot import SnapshotBlock, decode_into, export_rows
from kernels.kv_codec import hadamard

MODEL = ModelConfig("llama", 64, 2, 2, 1, 32, 64, 500, 1e-5, 1e4, RopeScaling(), 4096, True, False, False, (), None)
PAGES, EXACT, COLD = 24, 24, 8
NAMES = ("a", "b", "c")
STEPS = int(os.environ.get("UNABRIDGED_CACHE_STEPS", "200"))
PER_RUN = 50


def kv_of(ids: list[int], first: int) -> torch.Tensor:
    """Keys (or values) [tokens, kv_heads, d] that tell the id and the position; small steps, so 2 bits still tell."""
    token = torch.tensor(ids, dtype=torch.float32)[:, None]
    place = torch.arange(first, first + len(ids), dtype=torch.float32)[:, None]
    lane = torch.arange(32, dtype=torch.float32)[None]
    return torch.sin(token * 0.7 + place * 0.13 + lane * (1 + token % 5))[:, None]


class CacheMachine(RuleBasedStateMachine):
    kv_format = "bf16"

    @initialize()
    def begin(self) -> None:
        cold = COLD if self.kv_format == "k8v4" else 0
        self.cache = KvCache(MODEL, self.kv_format, PAGES, EXACT, cold_pages=cold)
        self.conversations = Conversations(self.cache)
        self.live: dict[str, list[int]] = {}
        self.marks: dict[str, list[list[int]]] = {}
        self.rows: dict[str, object] = {}
        self.stored: list[tuple[list[int], list[str]]] = []

    def sequence(self, name: str) -> Sequence:
        return self.conversations.use(name).live

    def become(self, name: str, state: Sequence, length: int, ids: list[int]) -> bool:
        try:
            fork = self.cache.fork(state, length)
        except EngineError:
            assert self.cache.exact.free == 0
            return False
        conversation = self.conversations.use(name)
        self.cache.free(conversation.live)
        conversation.live = fork
        self.live[name] = ids[:length]
        self.marks.setdefault(name, [])
        return True

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 150), seed=st.integers(3, 400))
    def append(self, name: str, count: int, seed: int) -> None:
        sequence, before = self.sequence(name), self.live.setdefault(name, [])
        self.marks.setdefault(name, [])
        ids = [3 + (seed * 7 + at) % 490 for at in range(count)]
        held, table = self.cache.exact.free, list(sequence.table)
        try:
            self.cache.prepare(sequence, len(before) + count)
        except EngineError:
            assert sequence.length == len(before)
            self.cache.trim(sequence)
            assert (self.cache.exact.free, sequence.table) == (held, table)
            return
        if len(sequence.reserve) < self.cache.pages_to_pack(sequence, len(before) + count):  # cold pages are left only
            missing = self.cache.pages_to_pack(sequence, len(before) + count) - len(sequence.reserve)
            own = list(self.conversations.use(name).states())
            others = [
                s for s in self.conversations.states(self.conversations.use(name)) if all(s is not o for o in own)
            ]
            if demote(self.cache, sequence, own, others, missing) < missing:
                self.cache.trim(sequence)
                return
            self.cache.set_aside(sequence, len(before) + count)
        kv = kv_of(ids, len(before))
        slots = self.cache.new_slots(sequence, count)
        for layer in range(MODEL.layers):
            self.cache.memory.write(layer, slots, kv * (1 - 2 * layer), kv * (2 * layer - 1))
        self.cache.commit(sequence, ids, PREFILL)
        self.cache.trim(sequence)
        self.live[name] = before + ids

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Another conversation goes on from some state of one, whole or cut."""
        source = data.draw(st.sampled_from(sorted(self.live)))
        target = data.draw(st.sampled_from([n for n in NAMES if n != source]))
        state, ids = self.sequence(source), self.live[source]
        length = self._cut(data, state)
        if length:
            self.become(target, state, length, ids)
            for name in (source, target):
                self.check(self.sequence(name), self.live[name])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        """Back to an earlier position of its own, or to a kept state."""
        name = data.draw(st.sampled_from(sorted(self.live)))
        marks = self.conversations.use(name).marks
        if marks and data.draw(st.booleans()):
            index = data.draw(st.integers(0, len(marks) - 1))
            self.become(name, marks[index], marks[index].length, self.marks[name][index])
            return
        length = self._cut(data, self.sequence(name))
        if length:
            self.become(name, self.sequence(name), length, self.live[name])

    def _cut(self, data: st.DataObject, state: Sequence) -> int:
        """A length at which a fork may be made: anywhere in exact pages, else at a page's edge behind the sink."""
        length = data.draw(st.integers(0, state.length))
        if length < state.length and state.packed and length < state.packed * PAGE:
            length = length // PAGE * PAGE
        return length

    @precondition(lambda self: self.live)
    @rule(data=st.data(), pin=st.booleans())
    def keep(self, data: st.DataObject, pin: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        conversation = self.conversations.use(name)
        if not conversation.live.length:
            return
        try:
            self.conversations.mark(conversation, conversation.live.length, pin)
        except EngineError:
            assert self.cache.exact.free == 0
        lengths = [mark.length for mark in conversation.marks]
        known = [*self.marks[name], self.live[name]]
        self.marks[name] = [next(ids for ids in reversed(known) if len(ids) == n) for n in lengths]

    @precondition(lambda self: len(self.live) > 1)
    @rule(data=st.data())
    def free_idle(self, data: st.DataObject) -> None:
        """Memory is short: the least recently used conversation goes, or a kept state of the only one."""
        name = data.draw(st.sampled_from(sorted(self.live)))
        busy = self.conversations.use(name)
        oldest = next(iter(self.conversations._by_id))
        assert self.conversations.free_idle(busy, None) == (oldest != name or bool(self.marks[name]))
        if oldest != name:
            assert self.conversations.get(oldest) is None
            self.live.pop(oldest, None)
            self.marks.pop(oldest, None)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.conversations.unload(name)
        del self.live[name], self.marks[name]

    @precondition(lambda self: self.live and self.cache.cold.size)
    @rule(data=st.data(), count=st.integers(1, 4))
    def demote(self, data: st.DataObject, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        conversation = self.conversations.use(name)
        own = list(conversation.states())
        others = [s for s in self.conversations.states(conversation) if all(s is not o for o in own)]
        possible = sum(p < 0 and not self.cache.is_demoted(p) for p in conversation.live.table)
        free = self.cache.cold.free
        assert demote(self.cache, conversation.live, own, others, count) == min(count, possible, free)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        sequence = self.sequence(name)
        if not sequence.length:
            return
        known = dict(self.rows)
        rows = list(export_rows(self.cache, sequence, "root", 2, known))
        self.rows |= {row.key: row for row in rows}
        chain = list(export_rows(self.cache, sequence, "root", 2, ())) if not self.cache.demoted(sequence) else []
        if chain:
            assert [row.key for row in chain if row.key not in known] == [row.key for row in rows]
            assert all(self.rows[row.key].payload == row.payload or self.cache.packs for row in chain)
            self.stored.append((list(self.live[name]), [row.key for row in chain]))

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def restore(self, data: st.DataObject, name: str) -> None:
        ids, keys = data.draw(st.sampled_from(self.stored))
        upto = data.draw(st.integers(1, len(keys)))
        self.conversations.unload(name)
        self.live.pop(name, None)
        self.marks.pop(name, None)
        sequence, free = self.sequence(name), (self.cache.exact.free, self.cache.packed.free, self.cache.cold.free)
        try:
            for key in keys[:upto]:
                row = self.rows[key]
                end = row.first_token + len(row.token_ids)
                self.cache.prepare(sequence, sequence.length if self.cache.packs else end, end)
                decode_into(self.cache, sequence, row.token_ids, row.payload)
        except EngineError:
            self.cache.free(sequence)
            assert (self.cache.exact.free, self.cache.packed.free, self.cache.cold.free) == free
            self.conversations.unload(name)
            return
        self.cache.trim(sequence)
        self.live[name], self.marks[name] = ids[: sequence.length], []
        assert sequence.length == len(ids) or isinstance(self.rows[keys[upto - 1]], SnapshotBlock)
        self.check(sequence, self.live[name])

    def check(self, sequence: Sequence, ids: list[int]) -> None:
        """The sequence holds exactly these tokens, each with its own keys and values."""
        assert sequence.ids.tolist() == ids
        if not ids:
            return
        loose = [0.02 if place >= 0 else 0.85 if self.cache.is_demoted(place) else 0.25 for place in sequence.table]
        kv = kv_of(ids, 0)
        for layer in range(MODEL.layers):
            read = self.cache.view(sequence, len(ids), torch.float32).read(layer, lambda: None)
            keys, values = (part.transpose(0, 1) for part in read)
            values = hadamard(values) if self.cache.packs else values
            for got, expected, bound in ((keys, kv * (1 - 2 * layer), 0.02), (values, kv * (2 * layer - 1), None)):
                error = (got - expected).pow(2).mean(dim=(1, 2)).sqrt()
                limits = torch.tensor(loose if bound is None else [bound] * len(loose)).repeat_interleave(PAGE)
                assert bool((error <= limits[: len(ids)]).all()), (error.max(), layer)

    @invariant()
    def every_state_holds_its_tokens(self) -> None:
        if not hasattr(self, "cache"):
            return
        for name, ids in self.live.items():
            conversation = self.conversations.get(name)
            assert conversation is not None
            assert conversation.live.ids.tolist() == ids
            # Kept states that memory took are no longer expected; those that are there are right.
            kept = [next(i for i in self.marks[name] if len(i) == mark.length) for mark in conversation.marks]
            self.marks[name] = kept
            for mark, expected in zip(conversation.marks, kept):
                assert mark.ids.tolist() == expected
            newest = [conversation.live, *conversation.marks][-1]
            self.check(newest, newest.ids.tolist())

    @invariant()
    def pages_are_counted(self) -> None:
        """Every page has as many references as tables name it: none leaked, none given away while it is in use."""
        if not hasattr(self, "cache"):
            return
        uses = {"exact": [0] * self.cache.exact.size, "packed": [0] * self.cache.packed.size, "cold": [0] * COLD}
        for conversation in self.conversations._by_id.values():
            for state in conversation.states():
                for place in state.table:
                    if place >= 0:
                        uses["exact"][place] += 1
                    elif self.cache.is_demoted(place):
                        uses["cold"][~place - self.cache.packed.size] += 1
                    else:
                        uses["packed"][~place] += 1
                for page in state.reserve:
                    uses["packed"][page] += 1
        for pool, counts in ((self.cache.exact, "exact"), (self.cache.packed, "packed"), (self.cache.cold, "cold")):
            assert [pool.references(page) for page in range(pool.size)] == uses[counts][: pool.size]

    @invariant()
    def unfinished_pages_are_held_once(self) -> None:
        """A page that will be written to belongs to one state alone."""
        if not hasattr(self, "cache"):
            return
        for conversation in self.conversations._by_id.values():
            if conversation.live.length % PAGE:
                last = conversation.live.table[conversation.live.length // PAGE]
                assert last >= 0
                assert self.cache.exact.references(last) == 1

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for name in list(self.live) + [n for n in NAMES if n not in self.live]:
            self.conversations.unload(name)
        for pool in (self.cache.exact, self.cache.packed, self.cache.cold):
            assert pool.free == pool.size


@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
def test_cache_against_plain_lists(kv_format: str) -> None:
    machine = type("Machine", (CacheMachine,), {"kv_format": kv_format})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, STEPS // PER_RUN),
            stateful_step_count=PER_RUN,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def _shared_tail(cache: KvCache, sequence: Sequence, length: int) -> Sequence:
    """A fork as it must not be: an unfinished page is not copied."""
    pages = -(-length // PAGE)
    cache._share(sequence.table[:pages])
    return Sequence(
        sequence.ids[:length], sequence.made_by[:length], sequence.table[:pages], min(sequence.packed, pages)
    )


def test_the_machine_notices_a_page_that_is_shared_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvCache, "fork", _shared_tail)
    once = settings(max_examples=20, stateful_step_count=30, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(CacheMachine, settings=once)
