"""What the engine launches compiles for every card that a profile is for, within its shared memory and registers.

No card is needed: a process of its own (it must not interpret kernels) launches on made-up ones, and Triton compiles
what was launched. `UNABRIDGED_MATRIX=1` runs the full matrix as well and prints its table for docs/performance.md.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.machine import Card, Machine
from engine.profile_rules import GIB, choose_profile, shared_memory
from tests.kernels.card_plan import CARDS, COLD, MOST, PLAN, REFUSED
from tests.kernels.spills import spills_in_loops

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
PLANNED = [(capability, name) for capability, names in PLAN.items() for name in names]
TENSOR_MEMORY_ACCELERATOR = (90, 100)
WAITING = 256  # bytes of a thread that may lie in local memory while a loop runs that does not need them


def compiled(folder: Path, *arguments: str) -> dict[str, Any]:
    wanted = folder / "compiled.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_cards", "--json", wanted, *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    return json.loads(wanted.read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return compiled(tmp_path_factory.mktemp("compiled"))


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with a kernel that had to compile."""
    capability = row["capability"]
    most = shared_memory(divmod(capability, 10))
    found = [f"does not compile: {row['refused']}"] if row["refused"] else []
    if row["shared"] > most:
        found.append(f"takes {row['shared']} bytes of shared memory, of which a program has {most}")
    if row["in_loops"]:
        found.append(f"spills {row['spilled']} bytes, {row['in_loops']} instructions of that in loops")
    elif row["spilled"] > WAITING:
        found.append(f"spills {row['spilled']} bytes")
    if row["descriptors"] and capability not in TENSOR_MEMORY_ACCELERATOR:
        found.append("loads through a tensor memory accelerator, which the card's profile does not count on")
    return [f"{row['name']}, head_dim {row['d']}, sm_{capability}: {fault}" for fault in found]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("capability", "name"), PLANNED, ids=[f"sm_{c}-{name}" for c, name in PLANNED])
def test_kernel_fits_the_card(results: dict[str, Any], capability: int, name: str) -> None:
    (row,) = (row for row in results["rows"] if (row["capability"], row["name"]) == (capability, name))
    assert not faults(row)
    assert row["registers"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fp8_is_refused_by_cards_without_it(results: dict[str, Any]) -> None:
    refused = {(row["capability"], row["name"]): row["refused"] for row in results["rows"] if row["refused"]}
    assert set(refused) == {(capability, name) for capability, names in REFUSED.items() for name in names}
    assert "fp8" in refused[80, "rows to fp8"]
    assert "sm_89" in refused[86, "decode attention, lists, fp8"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_prefill_uses_descriptors_where_the_card_has_them(results: dict[str, Any]) -> None:
    prefill = [row for row in results["rows"] if row["name"].startswith("prefill")]
    assert {row["capability"] for row in prefill} == set(CARDS)
    for row in prefill:
        assert row["descriptors"] == (2 if row["capability"] in TENSOR_MEMORY_ACCELERATOR else 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_few_enough_compile_here(results: dict[str, Any]) -> None:
    assert len(PLANNED) <= results["compiles"] <= MOST


@pytest.mark.parametrize("capability", CARDS)
def test_plan_has_the_format_of_the_profile(capability: int) -> None:
    (first,) = (name for name in PLAN[capability] if name.startswith("decode attention, lists"))
    of_profile = set()
    for size in (24, 80):
        card = Card(0, "card", divmod(capability, 10), size * GIB, size * GIB - GIB // 2)
        profile = choose_profile(Machine((card,), "", "", 64 * GIB, 32 * GIB, 8))
        assert profile.name == CARDS[capability]
        of_profile.add(profile.kv_format)
    assert first.removesuffix(COLD).split(", ")[-1] in of_profile


@pytest.mark.parametrize("capability", [80, 86])
def test_profile_refuses_fp8_without_hardware(capability: int) -> None:
    card = Card(0, "card", divmod(capability, 10), 24 * GIB, 23 * GIB)
    with pytest.raises(ValueError, match="fp8"):
        choose_profile(Machine((card,), "", "", 64 * GIB, 32 * GIB, 8), kv_format="fp8")


def test_spills_are_told_apart_by_loops() -> None:
    code = """
        /*0000*/                   STL [R1], R4 ;
    .L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0020*/                   LDL R5, [R1+0x4] ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   BRA.U UP0, `(.L_x_2) ;
        /*0050*/                   STL [R1+0x4], R5 ;
        /*0060*/                   BRA `(.L_x_0) ;
    .L_x_1:
        /*0070*/                   LDL R4, [R1] ;
        /*0080*/                   EXIT ;
    .L_x_2:
        /*0090*/               @P1 BRA `(.L_x_2) ;
        /*00a0*/                   LDL R6, [R1] ;
        /*00b0*/                   EXIT ;
    """
    assert spills_in_loops(code) == 2


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(os.environ.get("UNABRIDGED_MATRIX") != "1", reason="takes long: set UNABRIDGED_MATRIX=1")
def test_full_matrix(tmp_path: Path) -> None:
    rows = compiled(tmp_path, "--matrix")["rows"]
    meant = [row for row in rows if not (row["refused"] and row["capability"] < 89 and "fp8" in row["name"])]
    wrong = [fault for row in meant for fault in faults(row)]
    assert not wrong, "\n".join(wrong)
