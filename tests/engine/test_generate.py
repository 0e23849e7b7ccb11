"""`Engine.generate`: events and counts, re-use in memory, limits, stopping, sharing, unloading."""

import threading
import time

import pytest

from engine import DoesNotFitError, Done, EngineError, Prefilled, Reused, Sampling, Token
from engine.decode import decode_token
from engine.patterns import PatternError
from engine.prefill import chunk_ends
from tests.engine.tools import random_ids, tiny_engine, turn

FORMATS = ["f32", "bf16", "k8v4"]


@pytest.fixture(params=FORMATS)
def engine(request, tmp_path):
    with tiny_engine(tmp_path, kv_format=request.param, prefill_chunk=64) as engine:
        yield engine


def test_events_come_in_order_and_add_up(engine):
    ids = random_ids(300)
    result = turn(engine, ids, checkpoints=[100, 299, 300], tokens=5)
    kinds = [type(event) for event in result.events]
    assert kinds[0] is Reused
    assert kinds[-1] is Done
    assert kinds.index(Token) > max(i for i, kind in enumerate(kinds) if kind is Prefilled)
    assert result.checkpoints == [100, 299]
    assert [event.done for event in result.prefilled] == [0, 64, 100, 128, 192, 256, 299, 300]
    assert all(event.total == 300 for event in result.prefilled)
    stats = result.stats
    assert (stats.prompt_tokens, stats.reused_tokens, stats.restored_tokens, stats.computed_tokens) == (300, 0, 0, 300)
    assert stats.output_tokens == len(result.ids) <= 5
    assert stats.ttft_s is not None
    assert stats.ttft_s > 0
    assert stats.kv_pages_read_share == 1.0
    assert stats.peak_memory_bytes > 10**7


def test_chunks_end_at_absolute_multiples():
    assert chunk_ends(0, 200, 64) == [64, 128, 192, 200]
    assert chunk_ends(70, 200, 64, [100, 70, 200, 300]) == [100, 128, 192, 200]
    assert chunk_ends(64, 64, 64) == []
    assert chunk_ends(64, 65, 64) == [65]


def test_the_next_turn_computes_only_what_is_new(engine):
    first = turn(engine, random_ids(200), conversation="a")
    ids = [*random_ids(200), *first.ids, *random_ids(20, seed=1)]
    again = turn(engine, ids, conversation="a")
    assert again.stats.reused_tokens == engine.live_tokens("a") - len(again.ids) + 1 - again.stats.computed_tokens
    assert again.stats.computed_tokens == 21  # the last answer token's KV was never needed before
    assert again.stats.reused_tokens + again.stats.computed_tokens == len(ids)


def test_asking_again_gives_the_same_answer(engine):
    ids = random_ids(500)
    first = turn(engine, ids, conversation="a")
    assert first.stats.reused_tokens == 0
    again = turn(engine, ids, conversation="a")
    assert again.ids == first.ids
    assert again.stats.reused_tokens == 499
    assert again.stats.computed_tokens == 1


def test_another_conversation_shares_the_document(engine):
    document = random_ids(900)
    turn(engine, document + random_ids(10, 1), conversation="a", checkpoints=[900])
    used = engine.cache.packed.size - engine.cache.packed.free + engine.cache.exact.size - engine.cache.exact.free
    fresh = document + random_ids(10, 2)
    shared = turn(engine, fresh, conversation="b")
    assert shared.stats.reused_tokens == 900
    assert shared.stats.restored_tokens == 0
    now = engine.cache.packed.size - engine.cache.packed.free + engine.cache.exact.size - engine.cache.exact.free
    assert now - used < 14  # far from the 15 pages of the document and their packed copies
    engine.unload("a")
    engine.unload("b")
    assert engine.cache.exact.free == engine.cache.exact.size
    assert engine.cache.packed.free == engine.cache.packed.size
    assert turn(engine, fresh, conversation="b", checkpoints=[900]).ids == shared.ids


def test_a_branch_goes_back_to_a_checkpoint(engine):
    ids = random_ids(700)
    turn(engine, ids, conversation="a", checkpoints=[400])
    edited = ids[:450] + random_ids(100, 3)
    branch = turn(engine, edited, conversation="a")
    assert branch.stats.reused_tokens >= 400
    assert branch.stats.reused_tokens < 450 or engine.kv_format != "k8v4"


def test_idle_conversations_make_room(tmp_path):
    for kv_format in FORMATS:
        engine = tiny_engine(tmp_path / kv_format, kv_format=kv_format, kv_capacity_tokens=1024, prefill_chunk=64)
        answers = {}
        for name in "abc":
            answers[name] = turn(engine, random_ids(900, ord(name)), conversation=name).ids
        assert engine.live_tokens("a") == 0
        assert engine.live_tokens("c") > 900
        assert turn(engine, random_ids(900, ord("a")), conversation="a").ids == answers["a"]


def test_timed_checkpoints_of_a_long_read_never_run_out_of_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.turn.CHECKPOINT_TOKENS", 96)
    engine = tiny_engine(tmp_path, kv_capacity_tokens=1024, prefill_chunk=32)
    turn(engine, random_ids(920), conversation="idle")
    assert engine.cache.exact.free == 16  # just what the next turn asks for, so that nothing is unloaded before it
    read = turn(engine, random_ids(800, 1), conversation="busy", checkpoints=[700])
    assert read.stats.computed_tokens == 800
    assert 700 in read.checkpoints
    assert all(at % 64 == 0 for at in read.checkpoints if at != 700)


def test_many_turns_do_not_leak_pages(engine):
    ids = random_ids(150)
    for index in range(12):
        result = turn(engine, ids, conversation="a", checkpoints=[len(ids) - 5])
        ids = ids + result.ids + random_ids(7, index)
    engine.unload("a")
    assert engine.cache.exact.free == engine.cache.exact.size
    assert engine.cache.packed.free == engine.cache.packed.size


def test_what_does_not_fit_is_refused_with_numbers(tmp_path):
    engine = tiny_engine(tmp_path, context=256)
    with pytest.raises(DoesNotFitError, match="250 tokens") as caught:
        engine.generate(random_ids(250), Sampling(max_tokens=7))
    assert (caught.value.needed_tokens, caught.value.available_tokens) == (257, 256)
    assert turn(engine, random_ids(250), tokens=6).stats.prompt_tokens == 250
    small = tiny_engine(tmp_path / "small", kv_capacity_tokens=128)
    with pytest.raises(DoesNotFitError, match="memory") as caught:
        small.generate(random_ids(120), Sampling(max_tokens=9))
    assert caught.value.available_tokens == 128
    assert turn(small, random_ids(120), tokens=8).stats.prompt_tokens == 120


@pytest.mark.parametrize(("ids", "message"), [([], "no token"), ([5, 480], "480"), ([-1], "-1")])
def test_impossible_ids_are_refused(tmp_path, ids, message):
    engine = tiny_engine(tmp_path)
    with pytest.raises(ValueError, match=message):
        engine.generate(ids)
    with pytest.raises(PatternError, match="turbo"):
        engine.generate([5], mode="turbo")


def test_one_token_prompt(engine):
    result = turn(engine, [5], tokens=3)
    assert result.stats.computed_tokens == 1
    assert len(result.ids) >= 1


def test_only_one_turn_at_a_time(engine):
    first = engine.generate(random_ids(100))
    next(first)
    with pytest.raises(EngineError, match="already"):
        next(engine.generate(random_ids(10)))
    first.close()
    assert turn(engine, random_ids(10)).ids


def test_stop_texts_end_the_answer_and_are_not_shown(tmp_path):
    engine = tiny_engine(tmp_path)
    ids = random_ids(60)
    plain = turn(engine, ids, tokens=40)
    assert plain.text == engine.tokenizer.decode(plain.ids)
    stop = plain.text[10:14]
    stopped = turn(engine, ids, sampling=Sampling(max_tokens=40, stop=(stop,)))
    assert stopped.text == plain.text[: plain.text.index(stop)]
    assert stopped.stats.finish_reason == "stop"
    assert stopped.stats.output_tokens < plain.stats.output_tokens


def test_end_of_sequence_ends_the_answer(tmp_path):
    engine = tiny_engine(tmp_path)
    answers = [turn(engine, random_ids(30, seed), tokens=200) for seed in range(4)]
    for answer in answers:
        ended = answer.ids[-1] in engine.tokenizer.eos_ids
        assert answer.stats.finish_reason == ("stop" if ended else "length")
        assert not any(id in engine.tokenizer.eos_ids for id in answer.ids[:-1])


def test_seeds_repeat(engine):
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=5, max_tokens=20)
    first, second = (turn(engine, random_ids(50), conversation=name, sampling=sampling) for name in "ab")
    assert first.ids == second.ids


def test_cancel_during_prefill(tmp_path):
    engine = tiny_engine(tmp_path, prefill_chunk=32)
    cancel, ids = threading.Event(), random_ids(1500)
    events = []
    for event in engine.generate(ids, Sampling(max_tokens=5), conversation="a", cancel=cancel):
        events.append(event)
        if isinstance(event, Prefilled) and event.done >= 500:
            cancel.set()
    stats = events[-1].stats
    assert stats.finish_reason == "cancelled"
    assert stats.ttft_s is None
    assert stats.output_tokens == 0
    assert 500 <= stats.computed_tokens < 600
    resumed = turn(engine, ids, conversation="a", tokens=5)
    assert resumed.stats.reused_tokens == stats.computed_tokens
    assert resumed.ids == turn(engine, ids, conversation="fresh", tokens=5).ids


def test_cancel_inside_a_chunk_leaves_whole_chunks(tmp_path):
    engine = tiny_engine(tmp_path, prefill_chunk=64)
    ids = random_ids(400)

    class AfterPolls(threading.Event):
        polls = 0

        def is_set(self) -> bool:
            self.polls += 1
            return self.polls > 20

    events = list(engine.generate(ids, Sampling(max_tokens=5), conversation="a", cancel=AfterPolls()))
    assert events[-1].stats.finish_reason == "cancelled"
    assert engine.live_tokens("a") % 64 == 0
    assert turn(engine, ids, conversation="a", tokens=5).ids == turn(engine, ids, conversation="b", tokens=5).ids


def test_cancel_during_decode(engine):
    cancel, seen = threading.Event(), []
    for event in engine.generate(random_ids(50), Sampling(max_tokens=500, seed=1), cancel=cancel):
        seen.append(event)
        if sum(isinstance(e, Token) for e in seen) == 3:
            cancel.set()
    assert seen[-1].stats.finish_reason in ("cancelled", "stop")
    assert seen[-1].stats.output_tokens <= 4


def test_cancel_during_decode_shows_what_was_held_back(tmp_path, monkeypatch):
    engine, ids, cancel = tiny_engine(tmp_path), random_ids(60), threading.Event()
    plain = turn(engine, ids, tokens=40)
    stop, steps = plain.text[:12] + "never", []

    def decode(*arguments):
        steps.append(arguments)
        if len(steps) == 4:
            cancel.set()
        return decode_token(*arguments)

    monkeypatch.setattr("engine.engine.decode_token", decode)
    stopped = turn(engine, ids, sampling=Sampling(max_tokens=40, stop=(stop,)), cancel=cancel)
    assert stopped.stats.finish_reason == "cancelled"
    assert stopped.stats.output_tokens == len(stopped.ids) == 3
    assert stopped.text == engine.tokenizer.decode(plain.ids[:3])


def test_closing_the_iterator_frees_what_was_set_aside(engine):
    events = engine.generate(random_ids(200), Sampling(max_tokens=500), conversation="a")
    for event in events:
        if isinstance(event, Token):
            break
    events.close()
    engine.unload("a")
    assert engine.cache.exact.free == engine.cache.exact.size


@pytest.mark.slow
def test_stop_is_seen_within_300_ms(starter_model):
    from engine import Engine, EngineConfig

    engine = Engine.load(EngineConfig(starter_model, threads=2))
    ids = engine.tokenizer.encode("The cat sat on the mat and looked at the moon. " * 400)[:4000]
    cancel, set_at = threading.Event(), []
    timer = threading.Timer(3.0, lambda: (set_at.append(time.perf_counter()), cancel.set()))
    timer.start()
    events = list(engine.generate(ids, Sampling(max_tokens=300), cancel=cancel))
    stopped = time.perf_counter()
    assert events[-1].stats.finish_reason == "cancelled"
    assert stopped - set_at[0] < 0.3
