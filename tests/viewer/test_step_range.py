"""Step ranges: what an address may say."""

from __future__ import annotations

import pytest

from agentrl.errors import DataError
from agentrl.viewer.analysis import StepRange


def test_a_range_and_a_single_step() -> None:
    assert StepRange.parse("10..20") == StepRange(10, 20)
    assert StepRange.parse(" 7 ") == StepRange(7, 7)


@pytest.mark.parametrize("text", ["", "a", "20..10", "1..", "..2", "-1..2", "1..2..3", "9" * 40])
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(DataError, match="b must be a step or a range of steps"):
        StepRange.parse(text, "b")
