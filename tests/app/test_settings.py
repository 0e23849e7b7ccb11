"""Settings: precedence and origins, the rule of every key, unknown and later keys, amounts, writing the file."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import WrongUse
from app.paths import Paths, resolve_data_dir
from app.settings import KEYS, LATER_KEYS, Settings, known_key, load_settings, store_setting
from app.units import format_size, parse_length, parse_size
from app.wiring import sparsity_of


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "settings.toml").write_text(text, encoding="utf-8")
    return folder


def test_each_source_wins_over_the_ones_before_it(tmp_path):
    folder = write(tmp_path, 'threads = 3\nkv_format = "f32"\ntemperature = 1\n[cache]\nquota = "2GB"\n')
    environment = {"UNABRIDGED_KV_FORMAT": "k8v4", "UNABRIDGED_TEMPERATURE": "0.5"}
    settings = load_settings({"temperature": "0.25", "seed": None}, environment, folder)
    assert (settings.max_answer_tokens, settings.origin("max_answer_tokens")) == (512, "default")
    assert (settings.threads, settings.origin("threads")) == (3, "settings.toml")
    assert (settings.value("cache.quota"), settings.origin("cache.quota")) == (2 * 10**9, "settings.toml")
    assert (settings.kv_format, settings.origin("kv_format")) == ("k8v4", "environment UNABRIDGED_KV_FORMAT")
    assert (settings.temperature, settings.origin("temperature")) == (0.25, "flag --temperature")
    assert settings.origin("seed") == "default"


def test_data_folder_comes_from_flag_then_environment_then_user_folder(tmp_path):
    environment = {"UNABRIDGED_DATA_DIR": str(tmp_path / "env")}
    assert resolve_data_dir(tmp_path / "flag", environment) == (tmp_path / "flag", "flag --data-dir")
    assert resolve_data_dir(None, environment) == (tmp_path / "env", "environment UNABRIDGED_DATA_DIR")
    folder, origin = resolve_data_dir(None, {})
    assert folder.name == "unabridged"
    assert folder.is_absolute()
    assert origin == "default"
    assert load_settings({}, environment).data_dir == tmp_path / "env"


@pytest.mark.parametrize(
    ("given_", "nearest"),
    [
        ("kvformat", "kv_format"),
        ("cache.qota", "cache.quota"),
        ("temprature", "temperature"),
        ("cache_quota", "cache.quota"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path, given_, nearest):
    with pytest.raises(WrongUse, match=f"nearest is '{nearest}'"):
        known_key(given_)
    with pytest.raises(WrongUse, match=r"settings\.toml"):
        load_settings({}, {}, write(tmp_path, f"{given_} = 1\n"))


def test_an_unknown_environment_variable_is_named_with_the_nearest(tmp_path):
    with pytest.raises(WrongUse, match="UNABRIDGED_THREDS is no setting; the nearest is UNABRIDGED_THREADS"):
        load_settings({}, {"UNABRIDGED_THREDS": "2"}, tmp_path)
    assert load_settings({}, {"UNABRIDGED_TEST_MODEL": "x", "PATH": "y"}, tmp_path).threads is None


@pytest.mark.parametrize("key", sorted(LATER_KEYS))
def test_a_later_key_is_refused_by_name_wherever_it_stands(tmp_path, key):
    for flags, environment in (({key: "1"}, {}), ({}, {"UNABRIDGED_" + key.replace(".", "_").upper(): "1"})):
        with pytest.raises(WrongUse, match=key.replace(".", r"\.")):
            load_settings(flags, environment, tmp_path)
    with pytest.raises(WrongUse, match="in this version"):
        load_settings({}, {}, write(tmp_path, f"{key} = 1\n"))


def test_sparsity_reaches_the_engine(tmp_path):
    text = "mode = 'fast'\n[sparsity]\nbudget = '2k'\ncrossover = 0\nscore = 'min_max'\n"
    settings = load_settings(
        {"sparsity.ratio": "0.1"}, {"UNABRIDGED_SPARSITY_REUSE_INTERVAL": "2"}, write(tmp_path, text)
    )
    sparsity = sparsity_of(settings)
    assert (sparsity.budget, sparsity.crossover, sparsity.score) == (2048, 0, "min_max")
    assert (sparsity.ratio, sparsity.reuse_interval, settings.mode) == (0.1, 2, "fast")


@pytest.mark.parametrize(
    ("key", "value"),
    [("kv_format", "widest")],
)
def test_a_later_value_says_that_it_is_not_in_this_version(tmp_path, key, value):
    with pytest.raises(WrongUse, match="version"):
        load_settings({key: value}, {}, tmp_path)


@pytest.mark.parametrize(("given_", "device"), [("1", "cuda:1"), (0, "cuda:0"), ("cuda", "cuda"), ("cuda:3", "cuda:3")])
def test_a_card_may_be_named_by_its_number(tmp_path, given_, device):
    assert load_settings({"device": given_}, {}, tmp_path).device == device


BAD_VALUES = [
    ("threads", "0"),
    ("threads", "2.5"),
    ("threads", True),
    ("context", "many"),
    ("context", 5),
    ("temperature", "nan"),
    ("temperature", "3"),
    ("top_p", 0),
    ("cache.quota", "-1"),
    ("cache.quota", "20XB"),
    ("reading", "half"),
    ("decode_weights", "int2"),
    ("mode", "Not A Name"),
    ("kv_format", "k5v5"),
    ("profile", "volta"),
    ("device", "cuda:x"),
    ("device", "cuda:01"),
    ("device", True),
    ("sparsity.budget", "12"),
    ("sparsity.ratio", "1.5"),
    ("sparsity.logical_pages", "24"),
    ("sparsity.score", "best"),
    ("model", " "),
    ("seed", "-4"),
    ("prefill_chunk", [1]),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_bad_value_names_key_origin_and_need(tmp_path, key, value):
    with pytest.raises(WrongUse) as caught:
        load_settings({key: value}, {}, tmp_path)
    assert key in caught.value.message
    assert "flag --" in caught.value.message
    assert "need" in caught.value.message
    assert KEYS[key].meaning in caught.value.hint


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_the_dataclass_itself_refuses_bad_values(tmp_path, key, value):
    with pytest.raises(ValueError, match=r"got .* need"):
        Settings(data_dir=tmp_path, **{KEYS[key].attribute: value})


def test_the_dataclass_wants_ready_values_not_text(tmp_path):
    with pytest.raises(ValueError, match="context: got '12k'"):
        Settings(data_dir=tmp_path, context="12k")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="data_dir"):
        Settings(data_dir=Path("relative"))
    assert Settings(data_dir=tmp_path, context=12288).context == 12288
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings(data_dir=tmp_path).threads = 2  # type: ignore[misc]


def test_broken_toml_and_unreadable_text_are_one_sentence(tmp_path):
    with pytest.raises(WrongUse, match="not valid TOML"):
        load_settings({}, {}, write(tmp_path, "threads 2\n"))
    (tmp_path / "settings.toml").write_bytes(b'model = "\xff"\n')
    with pytest.raises(WrongUse, match="cannot be read"):
        load_settings({}, {}, tmp_path)


def test_rows_show_every_key_once_with_meaning(tmp_path):
    rows = Settings(data_dir=tmp_path).rows()
    assert [row["key"] for row in rows] == ["data_dir", *KEYS]
    assert all(row["meaning"] and row["origin"] == "default" for row in rows)


def test_storing_keeps_comments_and_other_lines(tmp_path):
    folder = write(tmp_path, '# mine\nthreads = 2 # few\n\n[cache]\nquota = "1GB"\n')
    store_setting(folder, "kv_format", "k8v4")
    store_setting(folder, "threads", "4")
    store_setting(folder, "temperature", "0.7")
    text = (folder / "settings.toml").read_text(encoding="utf-8")
    assert "# mine" in text
    assert tomllib.loads(text) == {"threads": 4, "kv_format": "k8v4", "temperature": 0.7, "cache": {"quota": "1GB"}}
    store_setting(folder, "threads", None)
    assert load_settings({}, {}, folder).threads is None
    with pytest.raises(WrongUse, match="table"):
        store_setting(folder, "cache.quota", "3GB")
    with pytest.raises(WrongUse, match="need"):
        store_setting(folder, "threads", "none")
    assert load_settings({}, {}, folder).cache_quota == 10**9


def test_storing_into_an_empty_folder_makes_it(tmp_path):
    store_setting(tmp_path / "new", "cache.quota", "20GB")
    assert load_settings({}, {}, tmp_path / "new").cache_quota == 20 * 10**9


@pytest.mark.parametrize(
    ("text", "size"), [("20GB", 20 * 10**9), ("1.5 MiB", 1572864), ("10", 10), ("3k", 3000), ("2tb", 2 * 10**12)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "tokens"), [("12k", 12288), ("12288", 12288), ("1M", 1048576), ("0.5k", 512)])
def test_lengths(text, tokens):
    assert parse_length(text) == tokens


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e5", "12kk", "1 000"])
def test_what_is_no_amount(text):
    for parse in (parse_size, parse_length):
        with pytest.raises(ValueError):
            parse(text)


@given(st.integers(0, 10**16))
def test_a_formatted_size_reads_back_within_five_percent(size):
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.055)


def test_documented_variables_that_are_no_settings_are_let_through(tmp_path):
    environment = {"UNABRIDGED_TORCH": "cpu", "UNABRIDGED_DATA_DIR": str(tmp_path)}
    assert load_settings({}, environment).data_dir == tmp_path


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_files_are_private_in_a_folder_that_was_open_to_others(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    root.chmod(0o755)
    names = ("library.db", "library.db-wal", "kvcache.db", "kvcache.db-shm", "settings.toml", "app.lock")
    for name in (*names, "notes.txt"):
        (root / name).touch()
        (root / name).chmod(0o644)
    Paths(root).prepare()
    assert {(root / name).stat().st_mode & 0o777 for name in names} == {0o600}
    assert (root / "notes.txt").stat().st_mode & 0o777 == 0o644


def test_folders_are_private(tmp_path):
    paths = Paths(tmp_path / "data").prepare()
    for folder in (paths.root, paths.models, paths.documents, paths.temp, paths.logs):
        assert folder.stat().st_mode & 0o777 == 0o700
