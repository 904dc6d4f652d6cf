"""What the benchmark of corrections makes of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import Figures
from benchmarks.sampler_noise import LEVELS, SEEDS, VARIANTS, report, run_of

pytestmark = pytest.mark.tooling

ESS = {"geometric": 0.9, "token": 0.7, "sequence": 0.2}
ACCURACY = {"start": 0.9, "clean": 0.95, "uncorrected": 0.7, "geometric": 0.8}


def write(folder: Path, name: str) -> None:
    """Three runs of a variant, whose accuracies have the mean that is asked."""
    for seed in SEEDS:
        run = run_of(folder, name, seed)
        run.mkdir()
        row = {
            "stage": "rl",
            "step": 0,
            "mismatch/ess": ESS.get(name.removesuffix(", mild"), 0.6),
        }
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        value = ACCURACY.get(name, 0.9) + 0.1 * (seed - 1)
        found = {"sources": {"doors": {"avg@1": {"value": value}}}, "failed_samples": 0}
        kept = run.with_name(f"{run.name}.accuracy.json")
        kept.write_text(json.dumps(found), encoding="utf-8")


def test_a_correction_is_held_against_the_start_and_sizes_are_in_order(
    tmp_path: Path,
) -> None:
    for name in ("start", "clean", *VARIANTS, *(f"{level}, mild" for level in LEVELS)):
        write(tmp_path, name)
    figures = Figures()

    report(figures, tmp_path)

    lost = {
        row.name.removesuffix(", accuracy lost"): (pytest.approx(row.value), row.met)
        for row in figures.rows
        if "lost" in row.name
    }
    assert lost["uncorrected"] == (0.2, True)
    assert lost["geometric"] == (0.1, False)
    assert lost["token"][1]
    assert [row.met for row in figures.rows[-2:]] == [True, True]
    assert figures.rows[-2].value == pytest.approx(-0.2)
