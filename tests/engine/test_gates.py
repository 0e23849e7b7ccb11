"""Gates: found by training and by attention, the same each time, kept in files, and used by the engine."""

import json
import threading
from dataclasses import replace

import pytest
import torch

from engine import EngineConfig
from engine.gates import (
    Cancelled,
    GateFileError,
    GatesMissingError,
    HeadGates,
    Sample,
    attention_outside,
    check_gates,
    gates_from_mass,
    key_damage,
    open_for_calibration,
    read_duo_attention,
    read_gates,
    train_gates,
    wide_layers,
    write_gates,
)
from engine.gates.keys import in_few_bits
from engine.gates.sample import read_context
from engine.gates.tail import TailMasks, answer_hidden
from engine.gates.training import rate
from engine.patterns import BlockContext, QueryBlocks, Sparsity, Streaming
from kernels.block_index import PAGE
from tests.engine.tiny_models import make_model, save_folder
from tests.engine.tools import all_logits, error_ratio, random_ids, tiny_engine, turn

MARKERS, ASKER = range(10, 20), 20  # tokens that are looked for, and the one that looks
SLOW = 7  # of 16 dimensions of a head the one that RoPE hardly turns within some hundred tokens


def model_with_one_retrieval_head():
    """Two layers of two KV heads. In layer 1 head 0 reads the markers, wherever they are; all others read askers."""
    model = make_model("llama", max_position=2048)
    with torch.no_grad():
        embed = model.model.embed_tokens.weight
        embed[:, :2] = 0
        embed[list(MARKERS), 0] = embed[ASKER, 1] = 8
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.o_proj.weight[:2] = 0
            layer.mlp.down_proj.weight[:2] = 0
            q, k = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
            q.zero_()
            k.zero_()
            q[SLOW::16, 1] = 1.5
            k[SLOW::16, 1] = 1.5
            if index == 1:
                k[SLOW, 0], k[SLOW, 1] = 1.5, 0
    return model


def samples(count: int) -> list[Sample]:
    made = []
    for seed in range(count):
        context = [20 + i % 400 + 1 for i in random_ids(600, seed)]
        context[150 + 20 * seed] = MARKERS[seed]
        tail = [30 + i % 300 for i in random_ids(12, 100 + seed)] + [ASKER] * 4
        made.append(Sample(tuple(context), tuple(tail), (12, 13, 14, 15)))
    return made


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = save_folder(model_with_one_retrieval_head(), tmp_path_factory.mktemp("model"))
    return open_for_calibration(EngineConfig(folder, threads=1))


def test_training_keeps_the_head_that_retrieves_and_cuts_the_others(opened):
    shares = []
    gates = opened.train(samples(4), 80, progress=lambda what, share: shares.append(share))
    (_, _), (retrieval, _) = gates.gates
    others = [gate for index, gate in enumerate(sum(gates.gates, ())) if index != 2]
    assert retrieval > 0.85
    assert max(others) < 0.2
    assert gates.streaming().tolist() == [[True, True], [False, True]]
    assert gates.streaming_share == 0.75
    assert (gates.method, gates.steps, gates.model_fingerprint) == ("trained", 80, opened.fingerprint)
    assert shares[-1] == 1.0


def test_quick_mode_finds_it_too(opened):
    outside = attention_outside(opened.decoder, samples(3))
    assert outside[1, 0] > 0.9
    assert float(outside.flatten()[[0, 1, 3]].max()) < 0.1
    assert opened.quick(samples(3)).streaming().tolist() == [[True, True], [False, True]]
    assert gates_from_mass(torch.tensor([0.0, 2.0])).tolist() == [0, 1]


def test_a_seed_gives_the_same_gates_to_the_bit(opened):
    def run(seed: int) -> torch.Tensor:
        return train_gates(opened.decoder, samples(4), steps=6, seed=seed)

    first = run(3)
    assert torch.equal(run(3), first)
    assert not torch.equal(run(4), first)


def test_contexts_that_do_not_fit_into_memory_are_read_again(opened, monkeypatch):
    kept = train_gates(opened.decoder, samples(3), steps=7)
    monkeypatch.setattr("engine.gates.training.KEPT_BYTES", 1)
    assert torch.equal(train_gates(opened.decoder, samples(3), steps=7), kept)


def test_training_can_be_stopped(opened):
    cancel, seen = threading.Event(), []

    def progress(what: str, share: float) -> None:
        seen.append(share)
        if what == "training":
            cancel.set()

    with pytest.raises(Cancelled):
        train_gates(opened.decoder, samples(2), steps=50, progress=progress, cancel=cancel)
    assert max(seen) < 0.1


@pytest.mark.parametrize(("steps", "count"), [(0, 1), (5, 0)])
def test_training_on_nothing_is_refused(opened, steps, count):
    with pytest.raises(ValueError, match="steps"):
        train_gates(opened.decoder, samples(count), steps=steps)


def test_the_learning_rate_rises_and_falls():
    rates = [rate(step, 100) for step in range(100)]
    assert rates[0] == rates[-1] == 0.1
    assert rates[30] == rates[70] == 1.0
    assert rates[10] == pytest.approx(0.55)


def test_streaming_in_training_reads_the_pages_that_decode_lists():
    start, tail = 700, 90
    masks = TailMasks(start, tail, 64, 256, torch.device("cpu"))
    for row in range(tail):
        blocks = QueryBlocks.decode(start + row)
        pages = Streaming(64, 256).listed(BlockContext(blocks, 1))[0, 0]
        keys = pages.repeat_interleave(PAGE)[: start + row + 1]
        assert torch.equal(masks.streaming[row, : start + row + 1], keys)
        assert not masks.streaming[row, start + row + 1 :].any()


def test_the_tail_computes_what_the_engine_does(tmp_path):
    engine = tiny_engine(tmp_path, kv_format="bf16")
    ids = random_ids(400)
    sample = Sample(tuple(ids[:300]), tuple(ids[300:]), tuple(range(100)))
    read = read_context(engine.decoder, sample, lambda: None)
    masks = TailMasks(300, 100, 64, 256, torch.device("cpu"))
    with torch.no_grad():
        hidden = answer_hidden(engine.decoder, read, lambda layer, q, k, v: masks.full(q, k, v), lambda: None)
    logits = torch.nn.functional.linear(hidden, engine.decoder.head.weight)
    assert error_ratio(logits, all_logits(engine, ids, 100)[300:]) < 0.01  # there the tail's keys are bfloat16 too


def four_layers(folder, **options):
    sparse = Sparsity(budget=640, ratio=0.0, reading_budget=640, crossover=0, **options.pop("sparse", {}))
    return tiny_engine(folder, model=make_model("llama", layers=4, max_position=4096), sparsity=sparse, **options)


def test_streaming_heads_read_less_and_exact_is_untouched(tmp_path):
    gates = ((1.0, 1.0), (1.0, 1.0), (0.2, 0.9), (1.0, 0.4))
    plain, gated = four_layers(tmp_path), four_layers(tmp_path, gates=gates)
    ids = random_ids(3000)
    without, within = (turn(engine, ids, tokens=6, mode="balanced") for engine in (plain, gated))
    assert without.stats.selected_pages_read_share == pytest.approx(10 / 47, abs=0.01)
    assert within.stats.selected_pages_read_share == pytest.approx((10 + 6) / 2 / 47, abs=0.02)  # sink + 256, by pages
    assert within.stats.kv_pages_read_share < without.stats.kv_pages_read_share
    exact = [turn(engine, ids, conversation="e", tokens=6) for engine in (plain, gated)]
    assert exact[0].ids == exact[1].ids
    assert [answer.stats.kv_pages_read_share for answer in exact] == [1.0, 1.0]
    assert plain.policy("balanced").key != gated.policy("balanced").key
    assert plain.policy("exact").key == gated.policy("exact").key


def test_a_forced_ratio_streams_the_lowest_gates(tmp_path):
    gates = ((0.9, 1.0), (1.0, 0.8), (0.7, 1.0), (1.0, 1.0))
    none = four_layers(tmp_path, gates=gates).policy("fast")
    assert [none.streaming(layer) for layer in range(4)] == [None] * 4
    forced = four_layers(tmp_path, gates=gates, sparse={"streaming_ratio": 0.25}).policy("fast")
    assert [forced.streaming(layer).tolist() for layer in range(4)] == [
        [False, False], [False, True], [True, False], [False, False],
    ]  # fmt: skip


def test_a_ratio_without_gates_and_gates_of_another_shape_are_refused(tmp_path):
    engine = four_layers(tmp_path, sparse={"streaming_ratio": 0.25})
    assert turn(engine, random_ids(50), tokens=2).ids
    with pytest.raises(GatesMissingError, match=r"streaming_ratio.*calibrate"):
        turn(engine, random_ids(50), tokens=2, mode="balanced")
    assert issubclass(GatesMissingError, ValueError)
    with pytest.raises(ValueError, match="gates: got 1 layers of 2 KV heads, need 4 layers of 2"):
        four_layers(tmp_path, gates=((1.0, 1.0),))


# Layers that need 8-bit keys


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """Seven layers that hardly look at anything by its key; only in layer 3 a small error moves all attention."""
    model = make_model("llama", layers=7, max_position=2048)
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.q_proj.weight.mul_(6 if index == 3 else 0.02)
    return open_for_calibration(EngineConfig(save_folder(model, tmp_path_factory.mktemp("fragile")), threads=1))


def test_a_layer_made_fragile_is_the_one_that_keeps_8_bit_keys(fragile):
    shares = []
    damage = key_damage(fragile.decoder, samples(6), progress=lambda what, share: shares.append((what, share)))
    assert torch.equal(key_damage(fragile.decoder, samples(6)), damage)
    assert torch.equal(key_damage(fragile.decoder, samples(4)), damage)  # more samples are for training
    assert damage.argmax() == 3
    assert damage[[0, 1, 5, 6]].tolist() == [0] * 4  # 8 bits in every format
    assert (damage[[2, 3, 4]] > 0).all()
    assert shares[-1] == ("keys", 1.0)
    assert fragile.quick(samples(4)).wide_key_layers == wide_layers(damage) == (3,)
    assert fragile.train(samples(5), 10).wide_key_layers == (3,)


def test_judging_keys_can_be_stopped_and_needs_samples(fragile):
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        key_damage(fragile.decoder, samples(2), progress=lambda what, share: cancel.set(), cancel=cancel)
    with pytest.raises(ValueError, match="samples: got none"):
        key_damage(fragile.decoder, [])


def test_damage_is_that_of_replacing_one_layers_keys(fragile):
    sample = samples(1)[0]
    read = read_context(fragile.decoder, sample, lambda: None)
    masks = TailMasks(read.start, len(sample.tail), 64, 256, torch.device("cpu"))
    coarse = in_few_bits(read, 4)
    same = (coarse == read.keys[4].float()).all(-1).all(0)
    assert same[:PAGE].all()
    assert same[len(sample.context) // PAGE * PAGE :].all()
    assert not same[PAGE : len(sample.context) // PAGE * PAGE].any()

    def hidden(layer: int | None) -> torch.Tensor:
        def attend(index, q, k, v):
            return masks.full(q, torch.cat((coarse, k[:, read.start :]), 1) if index == layer else k, v)

        with torch.no_grad():
            return answer_hidden(fragile.decoder, read, attend, lambda: None)

    expected = (hidden(4) - hidden(None)).double().square().mean()
    torch.testing.assert_close(key_damage(fragile.decoder, [sample])[4], expected, rtol=1e-6, atol=0)


def test_the_worst_layers_are_marked_until_little_remains():
    damage = torch.tensor([0.0, 5.0, 1.0, 3.0, 1.0])
    assert wide_layers(damage, 1.0) == ()
    assert wide_layers(damage, 0.5) == (1,)
    assert wide_layers(damage, 0.2) == (1, 3)
    assert wide_layers(damage, 0.1) == (1, 2, 3)
    assert wide_layers(damage, 0.0) == (1, 2, 3, 4)
    assert wide_layers(torch.zeros(5)) == ()


# Files


GATES = HeadGates("f" * 64, "trained", 7, 100, 64, 256, ((0.0, 0.25), (1.0, 0.5)), (1,))


def test_a_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "g.json"
    write_gates(path, GATES)
    assert read_gates(path) == read_gates(path, "f" * 64) == GATES
    assert json.loads(path.read_text())["version"] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_the_first_version_have_no_wide_layers(tmp_path):
    path = tmp_path / "g.json"
    write_gates(path, GATES)
    old = json.loads(path.read_text()) | {"version": 1}
    del old["wide_key_layers"]
    path.write_text(json.dumps(old))
    assert read_gates(path) == replace(GATES, wide_key_layers=())
    path.write_text(json.dumps(old | {"version": 2}))
    with pytest.raises(GateFileError, match="wide_key_layers"):
        read_gates(path)


def test_gates_of_another_model_are_refused_by_name(tmp_path):
    write_gates(tmp_path / "mine.json", GATES)
    with pytest.raises(GateFileError, match=r"mine\.json belong to another model.*ffffffffffff.*aaaaaaaaaaaa"):
        read_gates(tmp_path / "mine.json", "a" * 64)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"gates": [[0.5, 1.5]]}, "1.5"),
        ({"gates": [[0.5], [0.5, 0.5]]}, "1 or 2 KV heads"),
        ({"gates": [[0.5, None]]}, "None"),
        ({"gates": [[0.5, True]]}, "True"),
        ({"gates": []}, "need some layers"),
        ({"gates": "many"}, "got str"),
        ({"seed": -1}, "seed"),
        ({"sink": "64"}, "sink"),
        ({"method": "guessed"}, "method"),
        ({"model_fingerprint": ""}, "model_fingerprint"),
        ({"more": 1}, "more"),
        ({"version": 3}, "version 3"),
        ({"version": True}, "version True"),
        ({"wide_key_layers": [2]}, "wide_key_layers"),
        ({"wide_key_layers": [1, 0]}, "wide_key_layers"),
        ({"wide_key_layers": "all"}, "wide_key_layers"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, what):
    path = tmp_path / "g.json"
    write_gates(path, GATES)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(GateFileError, match=what):
        read_gates(path)


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"\xff\xfe", b'{"gates": NaN}', b"[" * 100_000])
def test_what_is_no_file_of_gates_is_refused(tmp_path, data):
    path = tmp_path / "g.json"
    path.write_bytes(data)
    with pytest.raises(GateFileError, match=r"g\.json"):
        read_gates(path)
    with pytest.raises(GateFileError, match="cannot be read"):
        read_gates(tmp_path / "absent.json")


def test_check_gates_takes_numbers_from_0_to_1():
    check_gates([[0, 1], [0.5, 0.25]], 2, 2)
    with pytest.raises(ValueError, match="nan"):
        check_gates([[float("nan")]])


def duo_folder(folder, table="0.9\t-0.03\n1.02\t0.1\n", config='{"sink_size": 128, "recent_size": 256, "lr": 0.02}'):
    folder.mkdir(exist_ok=True)
    (folder / "full_attention_heads.tsv").write_text(table)
    (folder / "config.json").write_text(config)
    return folder


def test_a_folder_of_duo_attention_is_imported(tmp_path):
    gates = read_duo_attention(duo_folder(tmp_path / "duo"), "f" * 64, 2, 2)
    assert gates == HeadGates("f" * 64, "imported", 0, 0, 128, 256, ((0.9, 0.0), (1.0, 0.1)))
    assert gates.streaming_share == 0.5


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"table": "0.9\t0.1\n"}, "holds 1 layers of 2 KV heads, but the model has 2 layers of 2"),
        ({"table": "0.9\n0.1\n"}, "2 layers of 1 KV heads"),
        ({"table": "0.9\t0.1\n0.5\n"}, "1 or 2 KV heads"),
        ({"table": ""}, "holds no gates"),
        ({"table": "0.9\t0.1\n0.5\tx\n"}, "line 2 holds 'x'"),
        ({"table": "0.9\t0.1\n0.5\t\n"}, "line 2 holds ''"),
        ({"table": "0.9\t0.1\n0.5\tnan\n"}, "line 2 holds nan"),
        ({"table": "0.9\t7\n0.5\t0.5\n"}, "line 1 holds 7.0"),
        ({"config": "{}"}, "sink_size is None"),
        ({"config": '{"sink_size": 64, "recent_size": 2.5}'}, "recent_size is 2.5"),
        ({"config": "[]"}, "sink_size"),
        ({"config": "no"}, "readable JSON"),
    ],
)
def test_a_malformed_folder_of_duo_attention_is_refused(tmp_path, files, what):
    with pytest.raises(GateFileError, match=what):
        read_duo_attention(duo_folder(tmp_path / "duo", **files), "f" * 64, 2, 2)


def test_a_folder_without_the_table_is_refused(tmp_path):
    with pytest.raises(GateFileError, match=r"full_attention_heads\.tsv cannot be read"):
        read_duo_attention(tmp_path, "f" * 64, 2, 2)
