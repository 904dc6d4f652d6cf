"""The example of training from Python runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import DEADLINE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SHORT = (
    "placement.mode=inline",
    "stages.warmup.steps=2",
    "stages.rl.steps=1",
    "stages.rl.eval.sets.code.num_tasks=2",
    "stages.rl.eval.sets.code_sharpened.num_tasks=1",
    "stages.rl.eval.sets.code_without_tool.num_tasks=1",
)


@pytest.mark.slow
def test_it_trains_examines_and_plays(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(EXAMPLES / "from_python.py"),
        f"run.dir={tmp_path / 'run'}",
        *SHORT,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    results, played = done.stdout.strip().split("\n", 1)
    assert results.startswith("{'code': {'before': {'sampled': ")
    assert played.rsplit(" ", 1)[1] in {"0.0", "0.5", "1.0"}


def test_it_is_short() -> None:
    assert len((EXAMPLES / "from_python.py").read_text(encoding="utf-8").splitlines()) <= 30
