"""The figures of a benchmark and the page made of them."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from pathlib import Path

import pytest

from benchmarks import figures as figures_module
from benchmarks.figures import Figures, add_arguments, machine
from benchmarks.report import PAGE, page
from benchmarks.report import main as report_main

pytestmark = pytest.mark.tooling


def measured() -> Figures:
    figures = Figures()
    figures.at_least("ratio", 2.75, "x", 2.5)
    figures.at_most("start", 30.0, "s", 25)
    figures.report("tokens", 1234, "")
    return figures


def arguments(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser, benchmark="step")
    return parser.parse_args(argv)


def test_json_is_the_list_that_scripts_read(tmp_path: Path) -> None:
    measured().finish(arguments("--json", str(tmp_path / "out.json")), seeds=[0])

    assert json.loads((tmp_path / "out.json").read_text()) == [
        {"name": "ratio", "value": 2.75, "unit": "x", "target": ">= 2.5", "met": True},
        {"name": "start", "value": 30.0, "unit": "s", "target": "<= 25", "met": False},
        {"name": "tokens", "value": 1234.0, "unit": "", "target": None, "met": None},
    ]


def test_a_missed_target_is_the_exit_status() -> None:
    assert measured().finish(arguments(), seeds=[0]) == 1
    met = Figures()
    met.at_most("start", 24.0, "s", 25)
    assert met.finish(arguments(), seeds=[0]) == 0


def test_the_table_tells_a_missed_target(capsys: pytest.CaptureFixture[str]) -> None:
    measured().finish(arguments(), seeds=[0])

    assert capsys.readouterr().out.splitlines()[2].split() == [
        "start",
        "30",
        "s",
        "<=",
        "25",
        "NO",
    ]


def test_a_figure_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'ratio' must be a finite number, got nan"):
        Figures().report("ratio", math.nan, "x")


def test_record_writes_what_is_needed_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "RESULTS", tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["step.py", "--steps", "20", "--other=/opt/env/bin/python", "--record"]
    )

    measured().finish(arguments("--record"), seeds=[0, 1])

    result = json.loads((tmp_path / "step.json").read_text())
    assert result["command"] == "python -m benchmarks.step --steps 20 --other=python"
    assert result["seeds"] == [0, 1]
    assert len(result["commit"].removesuffix("+changes")) == 40
    assert result.keys() == {
        "command",
        "commit",
        "date",
        "machine",
        "seeds",
        "figures",
        "notes",
    }


def test_a_machine_is_described_without_its_name() -> None:
    description = json.dumps(machine())

    assert platform.node() not in description
    assert "/" not in description.replace("tokens/s", "")


def test_the_page_has_a_section_for_each_result(tmp_path: Path) -> None:
    for name in ("step", "code"):
        measured().record(
            tmp_path / f"{name}.json", command=f"python -m benchmarks.{name}", seeds=[7]
        )

    text = page(tmp_path)

    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## code",
        "## step",
    ]
    assert "| ratio | 2.75 x | >= 2.5 | yes |" in text
    assert "| start | 30 s | <= 25 | **no** |" in text
    assert "| tokens | 1234 |  |  |" in text
    assert ", seeds 7, " in text


def test_a_result_that_cannot_be_repeated_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text('{"figures": []}')

    with pytest.raises(
        ValueError,
        match=r"step\.json must have .*; it lacks command, commit, date, machine, notes, seeds",
    ):
        page(tmp_path)


def test_docs_benchmarks_is_what_the_results_give() -> None:
    assert PAGE.is_file()
    assert report_main(["--check"]) == 0
