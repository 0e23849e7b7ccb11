"""`unabridged calibrate`: gates made, imported, shown, stored for one model's bytes, and used by the app's engine."""

import json
from pathlib import Path

import pytest

from app.cli import main
from app.errors import DoesNotFit
from app.gates import SHIPPED, GateStore
from app.gates.passkeys import FIRST, NEAR, make_samples
from app.models import describe
from app.settings import Settings
from app.wiring import engine_loader
from engine.gates import read_gates
from engine.kv_memory import bytes_per_token
from tests.engine.tiny_models import make_model, save_folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_folder(make_model("llama", max_position=2048), tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
def calibrate(data_dir, capsys):
    """Runs the command -> (exit code, its JSON or None, stderr)."""

    def run(*words: object) -> tuple[int, dict | None, str]:
        code = main(["calibrate", *map(str, words), "--threads", "1", "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return run


def duo_folder(folder: Path, table: str = "0.1\t0.9\n1.01\t0.2\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "full_attention_heads.tsv").write_text(table)
    (folder / "config.json").write_text('{"sink_size": 64, "recent_size": 256}')
    return folder


def test_trained_gates_are_stored_shown_and_used(calibrate, tiny, data_dir):
    code, made, _ = calibrate(tiny, "--steps", 10, "--seed", 5)
    assert code == 0
    assert (made["method"], made["steps"], made["seed"], made["kv_heads"]) == ("trained", 10, 5, 4)
    stored = read_gates(Path(made["path"]))
    assert Path(made["path"]).parent == data_dir / "gates"
    assert [list(row) for row in stored.gates] == made["gates"]
    assert any(gate < 1 for row in stored.gates for gate in row)
    assert tuple(made["wide_key_layers"]) == stored.wide_key_layers == ()  # two layers: 8 bits in every format
    assert made["streaming_heads"] == sum(gate < 0.5 for row in stored.gates for gate in row)
    code, shown, _ = calibrate(tiny, "--show")
    assert (code, shown) == (0, made | {"seconds": None})
    settings = Settings(data_dir=data_dir, model=str(tiny), threads=1, context=512)
    with engine_loader(settings, describe(tiny, "tiny"))(lambda text, share: None) as engine:
        assert engine.config.gates == stored.gates


def test_a_folder_of_duo_attention_is_imported(calibrate, tiny, tmp_path, data_dir):
    code, made, _ = calibrate(tiny, "--import", duo_folder(tmp_path / "duo"))
    assert code == 0
    assert (made["method"], made["streaming_share"], made["gates"]) == ("imported", 0.5, [[0.1, 0.9], [1.0, 0.2]])
    settings = Settings(data_dir=data_dir, model=str(tiny), threads=1, context=512)
    with engine_loader(settings, describe(tiny, "tiny"))(lambda text, share: None) as engine:
        assert engine.policy("balanced").streaming(1).tolist() == [False, True]
        assert engine.policy("exact").streaming(1) is None


@pytest.fixture(scope="module")
def seven_layers(tmp_path_factory) -> Path:
    model = make_model("llama", layers=7, max_position=2048)
    return save_folder(model, tmp_path_factory.mktemp("seven") / "seven")


def test_layers_that_need_8_bit_keys_are_found_kept_shown_and_used(calibrate, seven_layers, tmp_path, data_dir, capsys):
    code, made, _ = calibrate(seven_layers, "--quick", "--seed", 3)
    wide = made["wide_key_layers"]
    assert code == 0
    assert set(wide) <= {2, 3, 4}
    assert len(wide) > 0
    assert calibrate(seven_layers, "--quick", "--seed", 3)[1]["wide_key_layers"] == wide
    assert calibrate(seven_layers, "--show")[1]["wide_key_layers"] == wide
    assert main(["calibrate", str(seven_layers), "--show"]) == 0
    said = "In KV formats with keys below 8 bits these layers keep 8-bit keys: " + ", ".join(map(str, wide)) + "."
    assert said in capsys.readouterr().out.splitlines()
    settings = Settings(data_dir=data_dir, model=str(seven_layers), threads=1, context=512, kv_format="k4v4")
    with engine_loader(settings, describe(seven_layers, "seven"))(lambda text, share: None) as engine:
        assert list(engine.config.wide_key_layers) == wide
        held = engine.cache.memory.formats
        assert [layer for layer in range(2, 5) if held[layer].key_bits == 8] == wide
        assert engine.kv_bytes_per_token > bytes_per_token(engine.model, "k4v4")
    duo = duo_folder(tmp_path / "duo", "0.1\t0.9\n" * 7)
    code, imported, err = calibrate(seven_layers, "--import", duo)
    assert (code, imported["method"], imported["wide_key_layers"]) == (0, "imported", wide)
    assert "those known stay: " + ", ".join(map(str, wide)) in err
    other = next(layer for layer in range(2, 5) if [layer] != wide)
    file = tmp_path / "own.json"
    file.write_text(json.dumps(json.loads(Path(made["path"]).read_text()) | {"wide_key_layers": [other]}))
    code, own, err = calibrate(seven_layers, "--import", file)
    assert (code, own["wide_key_layers"]) == (0, [other])
    assert "those known stay" not in err
    code, both, _ = calibrate(seven_layers, "--keys", "--seed", 3)
    assert (code, both["wide_key_layers"]) == (0, wide)
    assert both["gates"] == imported["gates"]
    assert both["method"] == "imported"


def test_a_malformed_folder_is_refused_and_what_was_stored_stays(calibrate, tiny, tmp_path):
    calibrate(tiny, "--import", duo_folder(tmp_path / "duo"))
    code, made, err = calibrate(tiny, "--import", duo_folder(tmp_path / "duo", "0.1\t0.9\n"))
    assert (code, made) == (4, None)
    assert err.startswith("error: full_attention_heads.tsv holds 1 layers of 2 KV heads, but the model has 2 layers")
    assert calibrate(tiny, "--show")[1]["gates"] == [[0.1, 0.9], [1.0, 0.2]]


def test_a_file_of_gates_serves_its_own_model_only(calibrate, tiny, tmp_path, data_dir):
    _, made, _ = calibrate(tiny, "--import", duo_folder(tmp_path / "duo"))
    file = tmp_path / "mine.json"
    Path(made["path"]).rename(file)
    assert calibrate(tiny, "--show")[0] == 2
    code, again, _ = calibrate(tiny, "--import", file)
    assert (code, again["gates"]) == (0, made["gates"])
    other = save_folder(make_model("llama", max_position=2048, seed=1), tmp_path / "other")
    code, _, err = calibrate(other, "--import", file)
    assert code == 4
    assert "The gates in mine.json belong to another model" in err
    assert calibrate(other, "--show")[0] == 2
    copy = GateStore.of(data_dir).place(GateStore.of(data_dir).fingerprint(describe(other, "other")))
    file.rename(copy)  # by hand, under the other's name
    code, _, err = calibrate(other, "--show")
    assert code == 1
    assert "belong to another model" in err


def test_a_damaged_stored_file_is_an_error_not_passed_over(calibrate, tiny, tmp_path):
    _, made, _ = calibrate(tiny, "--import", duo_folder(tmp_path / "duo"))
    Path(made["path"]).write_text("{}")
    code, _, err = calibrate(tiny, "--show")
    assert code == 1
    assert Path(made["path"]).name in err
    code, again, err = calibrate(tiny, "--import", duo_folder(tmp_path / "duo"))
    assert (code, again) == (0, made | {"seconds": again["seconds"]})
    assert "is replaced" in err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--steps", "3"), "--steps: got 3"),
        (("--seed", "-1"), "--seed: got -1"),
        (("--quick", "--show"), "not allowed with"),
        (("--show",), "has no gates"),
        (("--keys",), "has no gates to keep"),
    ],
)
def test_wrong_use(calibrate, tiny, words, what):
    code, _, err = calibrate(tiny, *words)
    assert code == 2
    assert what in err


def test_a_model_with_a_short_context_is_refused(calibrate, tmp_path):
    folder = save_folder(make_model("llama", max_position=1024), tmp_path / "short")
    code, _, err = calibrate(folder, "--quick")
    assert code == 3
    assert "the model takes 1024" in err


def test_samples_hide_passkeys_where_streaming_heads_cannot_look():
    def encode(text: str) -> list[int]:
        return [ord(c) for c in text]

    samples = make_samples(encode, 3, 0, 9000, lengths=(6000, 8000))
    assert samples == make_samples(encode, 3, 0, 9000, lengths=(6000, 8000))
    assert samples != make_samples(encode, 3, 1, 9000, lengths=(6000, 8000))
    for sample, length in zip(samples, (6000, 8000, 6000)):
        context, tail = ("".join(map(chr, part)) for part in (sample.context, sample.tail))
        assert length - 150 < len(context) <= length
        foreseen = "".join(tail[at + 1] for at in sample.answers)
        questions = tail.split("\n\nQuestion: ")[1:]
        assert len(questions) == 6
        for question in questions:
            name = question.split("passkey of the ")[1].split("?")[0]
            key = question.split(" is:")[-1].removesuffix(".")
            assert key in foreseen
            assert FIRST <= context.index(f" The passkey of the {name} is:{key}.") < len(context) - NEAR
    with pytest.raises(DoesNotFit, match="takes 1500"):
        make_samples(encode, 1, 0, 1500)


def test_gates_of_the_starter_come_with_the_app(starter_model, data_dir):
    found = GateStore.of(data_dir).find_for(describe(starter_model, "starter"))
    assert found is not None
    gates, path = found
    assert path == SHIPPED / "starter.json"
    assert gates.method == "trained"
    assert (len(gates.gates), len(gates.gates[0])) == (30, 3)
    assert 0.05 < gates.streaming_share < 0.9
    assert 0 < len(gates.wide_key_layers) < 20


@pytest.mark.slow
def test_quick_gates_of_the_starter_replace_those_that_came(calibrate, starter_model):
    code, made, _ = calibrate(starter_model, "--quick")
    assert code == 0
    assert (made["method"], made["kv_heads"]) == ("quick", 90)
    assert 0 < made["streaming_heads"] < 90
    assert calibrate(starter_model, "--show")[1]["gates"] == made["gates"]
    shipped = read_gates(SHIPPED / "starter.json")
    # Layers with a thousandth of the damage or less come and go with the number of threads (decision 0123).
    wide, came = set(made["wide_key_layers"]), set(shipped.wide_key_layers)
    assert {7, 8, 17, 18, 20, 23, 24, 26} <= wide & came
    assert len(wide ^ came) <= 2
    quick, trained = ([gate for row in gates for gate in row] for gates in (made["gates"], shipped.gates))
    needed = [q for q, t in zip(quick, trained) if t > 0.5]
    spare = [q for q, t in zip(quick, trained) if t < 0.5]
    assert sum(needed) / len(needed) > sum(spare) / len(spare)  # both see the same heads
