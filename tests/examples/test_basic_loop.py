"""The loop for researchers learns: a real engine, a real backward, and weights that move."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from agentrl.types import load_object

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "basic_loop.py"


@pytest.mark.slow
def test_its_reward_rises() -> None:
    curve = load_object(f"{EXAMPLE}:main")(None, 12)

    assert fmean(curve[-4:]) > fmean(curve[:4]) + 0.1


def test_it_is_one_short_file() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 150
