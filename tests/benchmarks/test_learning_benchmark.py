"""The learning benchmark's figures: from accuracies that are known already, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import Figures
from benchmarks.fresh import vision
from benchmarks.learning import main, report_code, report_fresh, report_vision

pytestmark = pytest.mark.tooling

BEFORE = {
    "sampled": 0.30,
    "greedy": 0.10,
    "majority of 8": 0.40,
    "sampled at 0.75": 0.35,
    "sampled at 0.5": 0.45,
    "sampled at 0.25": 0.20,
}


def known(folder: Path, name: str, **after: float) -> None:
    """The accuracies of a run whose models were examined."""
    text = json.dumps({"before": BEFORE, "after": after})
    (folder / f"{name}.fresh.json").write_text(text, encoding="utf-8")


def test_a_gain_is_over_the_best_decoding_before(tmp_path: Path) -> None:
    known(tmp_path, "code-1", sampled=0.90, greedy=0.58)
    figures = Figures()
    report_code(figures, tmp_path, {"code-1"})
    told = {row.name: row for row in figures.rows if row.target}
    gain = told["code, seed 1, fresh problems, greedy gain"]
    above = told[
        "code, seed 1, fresh problems, greedy after less best before (sampled at 0.5)"
    ]
    assert (gain.value, gain.met) == (pytest.approx(0.48), True)
    assert (above.value, above.met) == (pytest.approx(0.13), False)


def test_shuffled_rewards_may_not_gain(tmp_path: Path) -> None:
    known(tmp_path, "code-shuffled", sampled=0.0, greedy=0.2)
    figures = Figures()
    report_code(figures, tmp_path, {"code-shuffled"})
    assert [row.met for row in figures.rows] == [True, False]


def test_the_gain_on_fresh_tasks_is_of_what_is_sampled(tmp_path: Path) -> None:
    known(tmp_path, "game-0", sampled=0.49, greedy=0.95)
    (tmp_path / "game-0").mkdir()
    summary = json.dumps({"seconds": {"total": 100.0, "eval": 30.0}})
    (tmp_path / "game-0" / "summary.json").write_text(summary, encoding="utf-8")
    known(tmp_path, "game-shuffled", sampled=0.34, greedy=0.16)
    figures = Figures()
    report_fresh(figures, tmp_path, {"game-0", "game-shuffled"}, "game")
    told = {row.name: (row.value, row.met) for row in figures.rows}
    assert told["game, seed 0, sampled gain"] == (pytest.approx(0.19), False)
    assert told["game, seed 0, warm-up and RL"] == (70.0, None)
    # against the warm-up of seed 0, from which it started
    assert told["game, rewards shuffled, sampled gain"] == (pytest.approx(0.04), True)
    assert told["game, rewards shuffled, greedy gain"] == (pytest.approx(0.06), False)


def test_a_run_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "code-0,code-9"])
    assert "got code-9" in capsys.readouterr().err


def test_pictures_must_bring_what_blank_ones_do_not(tmp_path: Path) -> None:
    known(tmp_path, "vision-0", sampled=0.56, greedy=0.9)
    (tmp_path / "vision-0").mkdir()
    summary = json.dumps({"seconds": {"total": 1300.0, "eval": 30.0}})
    (tmp_path / "vision-0" / "summary.json").write_text(summary, encoding="utf-8")
    known(tmp_path, "vision-blank", sampled=0.36, greedy=0.1)
    figures = Figures()
    report_vision(figures, tmp_path, {"vision-0", "vision-blank"})
    told = {row.name: (row.value, row.met) for row in figures.rows}
    assert told["vision, seed 0, sampled gain"] == (pytest.approx(0.26), True)
    assert told["vision, seed 0, warm-up and RL"] == (1270.0, False)
    assert told["vision, blank pictures, sampled gain"] == (pytest.approx(0.06), False)


def test_blank_pictures_have_the_questions_of_the_others() -> None:
    for seen, blank in zip(vision.tasks(20), vision.blank_tasks(20), strict=True):
        assert (seen.id, seen.answer) == (blank.id, blank.answer)
        assert seen.messages[0]["content"][1] == blank.messages[0]["content"][1]
        assert seen.messages[0]["content"][0] != blank.messages[0]["content"][0]
