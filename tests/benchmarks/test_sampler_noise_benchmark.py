"""What the benchmark of corrections makes of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import Figures
from benchmarks.sampler_noise import CORRECTIONS, LAST, report

ESS = {"geometric": 0.9, "token": 0.7, "sequence": 0.2}


def write(folder: Path, reward: float, ess: float) -> None:
    """A run whose last steps have these numbers, and whose first ones are worse."""
    folder.mkdir()
    rows = [
        {"stage": "rl", "step": step, "reward/mean": value, "mismatch/ess": ess}
        for step, value in enumerate([0.0] * 30 + [reward] * LAST)
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def test_a_correction_is_held_against_none_and_sizes_are_in_order(tmp_path: Path) -> None:
    write(tmp_path / "clean", 0.9, 1.0)
    write(tmp_path / "uncorrected-1", 0.4, 1.0)
    for name in CORRECTIONS:
        write(tmp_path / f"{name}-1", 0.45 if name == "icepop" else 0.8, ESS.get(name, 0.6))
    figures = Figures()
    report(figures, tmp_path, 1.0)
    gained = {row.name: row.met for row in figures.rows if "gained" in row.name}
    assert [name for name, met in gained.items() if not met] == [
        "icepop, reward gained on uncorrected"
    ]
    assert [row.met for row in figures.rows[-2:]] == [True, True]
    assert figures.rows[-2].value == pytest.approx(-0.2)
