"""Models: headers, names, import and remove, and downloads from a hub that fails as real ones do."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import app.models as models_module
from app.errors import AppError, BadInput, WrongUse
from app.model_header import read_header
from app.models import CATALOGUE, DEMO_LABEL, Models, describe
from tests.app.cli_runner import ROOT, is_one_error, unabridged
from tests.app.fake_hub import FakeHub


def write_gguf(path: Path, family: str = "llama", rows: int = 64) -> Path:
    """A small but real GGUF file, through the gguf package's own writer."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, family)
    writer.add_context_length(4096)
    writer.add_license("mit")
    writer.add_token_list(["a", "b", "ccc"])
    writer.add_tensor("token_embd.weight", np.zeros((rows, 32), dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path) -> Path:
    from safetensors.numpy import save_file

    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 2048}))
    save_file({"a": np.zeros((8, 4), dtype=np.float32), "b": np.zeros(3, dtype=np.float16)}, path / "model.safetensors")
    return path


@pytest.fixture
def unchecked(monkeypatch):
    """Downloads and imports of files that are no whole models: the engine's check has tests of its own."""
    monkeypatch.setattr(models_module, "check_with_engine", lambda path: None)


def test_header_of_a_gguf_file(tmp_path):
    header = read_header(write_gguf(tmp_path / "m.gguf"))
    assert (header.family, header.parameters, header.context, header.license) == ("llama", 64 * 32 + 32, 4096, "mit")


def test_header_of_a_folder(tmp_path):
    header = read_header(write_folder(tmp_path / "m"))
    assert (header.family, header.parameters, header.context) == ("qwen2", 35, 2048)


def test_header_of_the_starter_agrees_with_the_gguf_package(starter_model):
    header = read_header(starter_model)
    assert (header.family, header.parameters, header.context) == ("llama", 134_515_008, 8192)
    assert header.size == starter_model.stat().st_size


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9])
def test_a_file_cut_short_is_refused(tmp_path, share):
    whole = write_gguf(tmp_path / "m.gguf", rows=4096).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    if share == 0.9:  # inside the last tensor: only the engine can see it, which the command line test covers
        return
    with pytest.raises(BadInput):
        read_header(cut)


def test_folders_cut_short_or_without_weights_are_refused(tmp_path):
    folder = write_folder(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(BadInput, match="cut short"):
        read_header(folder)
    weights.unlink()
    with pytest.raises(BadInput, match=r"no \.safetensors"):
        read_header(folder)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**40))
    with pytest.raises(BadInput):
        read_header(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(BadInput):
        read_header(folder)


def test_a_header_that_lies_about_lengths_ends_in_an_error_not_in_memory(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**62) + b"x" * 64)
    with pytest.raises(BadInput):
        read_header(path)


def test_the_demo_label_and_scaling_follow_the_starter_under_any_name(starter_model, tmp_path):
    path = tmp_path / "my-great-model.gguf"
    path.symlink_to(starter_model)
    info = describe(path, "x")
    assert (info.is_demo, info.label, info.context) == (True, DEMO_LABEL, 12288)
    other = describe(write_gguf(tmp_path / "other.gguf"), "other")
    assert not other.is_demo
    assert other.rope_scaling is None


def test_the_starters_scaling_is_twice_the_rope_base(starter_model):
    torch = pytest.importorskip("torch")
    from engine.rope import resolve_rope
    from engine.weights import open_model

    info = describe(starter_model, "starter")
    source = open_model(starter_model)
    config = source.config
    source.close()
    assert info.rope_scaling is not None
    rope = resolve_rope(config, info.rope_scaling, info.context)
    base = 2 * config.rope_theta
    expected = base ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    torch.testing.assert_close(rope.inv_freq.double(), expected, rtol=1e-5, atol=0)


def test_names_paths_and_what_is_not_there(tmp_path):
    models = Models(tmp_path / "models")
    models.folder.mkdir()
    write_gguf(models.folder / "one.gguf")
    write_folder(models.folder / "two")
    (models.folder / ".incoming").mkdir()
    assert {"one", "two"} <= {info.name for info in models.list()}
    assert models.resolve("two").path == models.folder / "two"
    assert models.resolve(str(models.folder / "one.gguf")).parameters == 64 * 32 + 32
    with pytest.raises(WrongUse, match="nearest name is 'one'"):
        models.resolve("onne")
    with pytest.raises(WrongUse, match="not on this machine") as caught:
        models.resolve("qwen3-4b")
    assert "models get qwen3-4b" in caught.value.hint
    for path in (tmp_path / "no.gguf", tmp_path / "no/folder", tmp_path):
        with pytest.raises(BadInput):
            models.resolve(str(path))


def test_a_damaged_model_does_not_hide_the_others(tmp_path):
    models = Models(tmp_path)
    write_gguf(tmp_path / "good.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    assert "good" in {info.name for info in models.list()}
    assert [error.message for _, error in models.check() if error] != []


def test_import_copies_or_links_and_remove_stays_inside(tmp_path, unchecked):
    outside = write_gguf(tmp_path / "outside.gguf")
    folder = write_folder(tmp_path / "folder")
    models = Models(tmp_path / "data/models")
    told: list[tuple[int, int]] = []
    copied = models.add(outside, progress=lambda done, total: told.append((done, total)))
    assert copied.name == "outside"
    assert told[-1] == (outside.stat().st_size,) * 2
    linked = models.add(folder, "linked", link=True)
    assert linked.path.is_symlink()
    with pytest.raises(WrongUse, match="here already"):
        models.add(outside)
    for name in ("../x", "a/b", "", ".hidden", "starter"):
        with pytest.raises(WrongUse):
            models.free_name(name)
    for name in ("../outside", str(outside), "..", ".", "starter", "nothing"):
        with pytest.raises(WrongUse):
            models.remove(name)
    models.remove("linked")
    models.remove("outside")
    assert outside.exists()
    assert (folder / "model.safetensors").exists()
    assert models.list() == [info for info in models.list() if info.name == "starter"]


def test_an_import_that_does_not_fit_says_so_and_leaves_nothing(tmp_path, unchecked, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(models_module.shutil, "disk_usage", lambda path: usage)
    models = Models(tmp_path / "models")
    with pytest.raises(AppError, match="only 10 B of disk are free"):
        models.add(write_gguf(tmp_path / "m.gguf"))
    assert [p for p in models.folder.rglob("*") if p.is_file()] == []


# Downloads run in processes of their own, because huggingface_hub reads HF_ENDPOINT when it is imported.

GET = """
import sys
import app.models
app.models.check_with_engine = lambda path: None
from app.cli import main
sys.exit(main(["models", "get", *sys.argv[1:], "--json"]))
"""
GET_EACH = """
import contextlib, io, json, sys
from app.cli import main
for name in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        code = main(["models", "get", name])
    print(json.dumps([name, code, stderr.getvalue()]))
"""


def get(hub: FakeHub, data_dir: Path, *words: str, script: str = GET, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("UNABRIDGED_", "HF_"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(data_dir / "hf"), "UNABRIDGED_DATA_DIR": str(data_dir)}
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment | more, cwd=ROOT, check=False
    )


@pytest.fixture
def gguf_bytes(tmp_path):
    return write_gguf(tmp_path / "source.gguf", rows=40_000).read_bytes()  # about 5 MB


def test_get_resumes_after_cut_connections_and_checks_the_bytes(tmp_path, gguf_bytes):
    hub = FakeHub({"Qwen/Qwen3-4B-GGUF": {"Qwen3-4B-Q4_K_M.gguf": gguf_bytes, "Qwen3-4B-Q8_0.gguf": b"x"}})
    hub.cut_after, hub.cuts_left = 2_000_000, 2
    with hub.serving():
        done = get(hub, tmp_path, "qwen3-4b")
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert Path(info["path"]).read_bytes() == gguf_bytes
    assert Path(info["path"]).parent == tmp_path / "models/qwen3-4b"
    assert hub.ranges == [None, "bytes=2000000-", "bytes=4000000-"]
    assert not list((tmp_path / "models/.incoming").iterdir())
    assert hub.tokens == [None] * len(hub.tokens)


def test_get_goes_on_in_a_later_run_where_an_earlier_one_failed(tmp_path, gguf_bytes):
    hub = FakeHub({"a/b": {"m.gguf": gguf_bytes}})
    hub.cut_after, hub.cuts_left = 1000, 1
    with hub.serving():
        part = tmp_path / "models/.incoming/b/m.gguf.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(gguf_bytes[:3_000_000])
        done = get(hub, tmp_path, "a/b")
    assert done.returncode == 0, done.stderr
    assert hub.ranges[0] == "bytes=3000000-"
    assert Path(json.loads(done.stdout)["path"]).read_bytes() == gguf_bytes


def test_a_damaged_download_is_thrown_away(tmp_path, gguf_bytes):
    hub = FakeHub({"a/b": {"m.gguf": gguf_bytes}})
    hub.corrupt = True
    with hub.serving():
        done = get(hub, tmp_path, "a/b")
    assert done.returncode == 4
    assert is_one_error(done.stderr)
    assert "checksum" in done.stderr
    assert not list((tmp_path / "models").rglob("*.gguf*"))


def test_get_a_folder_takes_weights_and_small_files_only(tmp_path):
    source = write_folder(tmp_path / "src")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    extra = {"pytorch_model.bin": b"pickle", "evil.py": b"x", "tokenizer.json": b"{}", "README.md": b"x"}
    hub = FakeHub({"Own/Model-7B": files | extra})
    with hub.serving():
        done = get(hub, tmp_path / "data", "Own/Model-7B", HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["path"])
    assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert "hf_secret" not in done.stdout + done.stderr


def test_get_says_what_is_wrong(tmp_path, gguf_bytes):
    hub = FakeHub({"a/many": {"x-q4.gguf": b"1", "x-q8.gguf": b"2"}, "a/gated": {"m.gguf": gguf_bytes}, "a/none": {}})
    hub.gated.add("a/gated")
    expected = {
        "a/many": (2, "x-q4.gguf, x-q8.gguf"),
        "a/many:*q9*": (2, "no file"),
        "a/none": (2, "no GGUF and no safetensors"),
        "a/missing": (2, "no repository"),
        "a/gated": (1, "terms"),
        "nonsense": (2, "neither a catalogue name"),
    }
    with hub.serving():
        done = get(hub, tmp_path, *expected, script=GET_EACH)
        offline = get(hub, tmp_path, "a/many:*q4*", HF_HUB_OFFLINE="1")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in results] == list(expected), done.stderr
    for name, code, stderr in results:
        assert (code, is_one_error(stderr)) == (expected[name][0], True), (name, stderr)
        assert expected[name][1] in stderr
    assert "HF_HUB_OFFLINE" in offline.stderr
    assert is_one_error(offline.stderr)


def test_a_hub_that_is_not_there_is_named(tmp_path):
    hub = FakeHub({})
    with hub.serving():
        pass
    done = get(hub, tmp_path, "a/b")
    assert done.returncode == 1
    assert is_one_error(done.stderr)
    assert hub.url in done.stderr


def test_the_catalogue_is_open_and_named_by_its_keys():
    assert all(entry.name == name and entry.license == "apache-2.0" for name, entry in CATALOGUE.items())


def test_a_model_cut_in_half_is_one_sentence_and_exit_code_4(tmp_path, starter_model):
    cut = tmp_path / "half.gguf"
    cut.write_bytes(starter_model.read_bytes()[: starter_model.stat().st_size // 2])
    document = tmp_path / "a.txt"
    document.write_text("The sky is blue.")
    for words in (["ask", document, "-q", "What?", "--model", cut], ["models", "import", cut]):
        done = unabridged(*words, data_dir=tmp_path / "data")
        assert done.returncode == 4, done.stderr
        assert is_one_error(done.stderr)
        assert "half" in done.stderr
