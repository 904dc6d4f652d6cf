"""The colocated benchmark runs on a CPU at a tiny size, and says what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.figures import NOT_HERE, Figures
from benchmarks.gpu_hybrid import PHASES, SECONDS, main, report

pytestmark = pytest.mark.tooling


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_says_how_to_try_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == NOT_HERE
    assert "needs a CUDA device and finds none" in capsys.readouterr().out


def test_the_first_step_counts_for_memory_alone() -> None:
    figures = Figures()
    rows = [
        {f"time/{name}_s": seconds for name in SECONDS}
        | {f"gpu/{phase}/peak_gib": peak for phase in PHASES}
        for seconds, peak in ((60.0, 3.0), (1.0, 2.0), (2.0, 2.0), (4.0, 2.5))
    ]
    report(figures, rows, 2**30)
    found = {figure.name: figure.value for figure in figures.rows}
    assert found["publish, median a step"] == 2.0
    assert found["publish"] == 0.5
    assert found["rollout: peak of the GPU"] == 3.0


@pytest.mark.slow
def test_it_trains_a_tiny_model_on_a_cpu(tmp_path: Path) -> None:
    small = ["--steps", "2", "--prompts", "2", "--group", "2", "--tokens", "8"]
    told = tmp_path / "figures.json"
    assert (
        main(
            ["--device", "cpu", "--tiny", "--engine", "torch", *small, "--json", str(told)]
        )
        == 0
    )
    names = {figure["name"]: figure["value"] for figure in json.loads(told.read_text())}
    assert names["steps"] == 2
    assert names["engine_wake, median a step"] > 0
