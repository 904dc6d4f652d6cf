"""What the benchmarks of checkpoints and of the start make of what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checkpoints
from benchmarks.checkpoints import MIB, report_export, report_training
from benchmarks.figures import Figure, Figures
from benchmarks.start import bytes_of, read_twice

pytestmark = pytest.mark.tooling


def rows(figures: Figures) -> dict[str, Figure]:
    return {row.name: row for row in figures.rows}


def test_the_first_checkpoint_stands_apart() -> None:
    figures = Figures()
    found = {
        "bytes": 3 * MIB,
        "alone": [2.0, 2.0, 9.0],
        "blocked": [4.0, 0.1, 0.7],
        "beside": [50.0, 2.0, 4.0],
        "written": [9.0, 5.0, 7.0],
    }
    report_training(figures, found)
    own = rows(figures)
    assert own["first checkpoint: training held up"].value == 4
    held_up = own["later checkpoints: training held up at most"]
    assert (held_up.value, held_up.met) == (0.7, False)
    slower = own["a step beside one over one without"]
    assert (slower.value, slower.met) == (1.5, True)
    assert own["later checkpoints: seconds to write one"].value == 6


def test_an_export_is_held_against_its_largest_file(tmp_path: Path) -> None:
    for name, size in (("a", 1), ("b", 3)):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(size * MIB))
    figures = Figures()
    report_export(figures, 516 * MIB, tmp_path)
    over = rows(figures)["export: anonymous memory over that file"]
    assert (over.value, over.met) == (513, False)


def test_bytes_that_both_read_are_those_of_ranges_that_overlap() -> None:
    first = {"w": [[[0, 4], [0, 8]]], "n": [[[0, 3]]]}
    second = {"w": [[[2, 6], [0, 8]], [[6, 8], [0, 8]]], "m": [[[0, 3]]]}
    assert read_twice(first, second) == {"w": 2 * 2 * 8}
    assert bytes_of(second) == 2 * (4 * 8 + 2 * 8 + 3)


@pytest.mark.slow
def test_two_ranks_train_beside_checkpoints_and_one_is_exported(tmp_path: Path) -> None:
    tiny = ("--shape", "tiny", "--export", "tiny", "--checkpoints", "2", "--steps", "1")
    checkpoints.main([*tiny, "--json", str(tmp_path / "figures.json")])
    found = {
        row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())
    }
    # weights and two moments in float32, and what describes them
    size = found["size of a checkpoint"]["value"] * MIB
    assert size > 12e6 * found["parameters in training"]["value"]
    assert found["export: largest file of weights"]["value"] * MIB == pytest.approx(
        4e6 * found["parameters in training"]["value"], rel=0.1
    )
    assert found["export: anonymous memory over that file"]["met"]
