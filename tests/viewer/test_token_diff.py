"""Token diff: what a difference costs does not grow with the text."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pytest

from agentrl.viewer.analysis import token_diff
from agentrl.viewer.analysis.token_diff import differing


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(97 + one) for one in ids)


def pieces(ids: Sequence[int]) -> str:
    """26 is one token for "ab"."""
    return letters(ids).replace(chr(97 + 26), "ab")


def test_a_short_difference_decodes_few_beginnings() -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return pieces(ids)

    found = differing([0, 1, 5, 6, 7, 8] * 100, [26, 5, 6, 7, 8] * 100, decode)

    assert [(one.end - one.start, one.other_end - one.other_start) for one in found] == [
        (2, 1)
    ] * 100
    # of each difference the texts of 0 to 4 ids, on both sides
    assert (len(decoded), max(decoded)) == (100 * 2 * 5, 4)


def compared(size: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pairs of ids that are compared where every tenth id is another one."""
    pairs = 0

    class Counting(SequenceMatcher[Any]):
        def __init__(self, junk: None, one: Any, other: Any, *, autojunk: bool) -> None:
            nonlocal pairs
            pairs += len(one) * len(other)
            super().__init__(junk, one, other, autojunk=autojunk)

    monkeypatch.setattr(token_diff, "SequenceMatcher", Counting)
    one = np.random.default_rng(0).integers(0, 24, size).tolist()
    other = [25 if place % 10 == 9 else token for place, token in enumerate(one)]
    found = differing(one, other, letters)
    assert [one[span.start : span.end] for span in found] == [
        [token] for token in one[9::10]
    ]
    return pairs


def test_a_text_of_twice_the_length_takes_twice_the_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, long = (compared(size, monkeypatch) for size in (4000, 8000))
    assert long < 3 * short
    assert long < 8000 * 100


def test_texts_without_a_common_stretch_are_one_difference() -> None:
    (found,) = differing([0, 1] * 1000, [2, 3] * 1000, letters)
    assert (found.start, found.end, found.other_start, found.other_end) == (
        0,
        2000,
        0,
        2000,
    )
