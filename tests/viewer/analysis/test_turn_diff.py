"""Two trajectories turn by turn: where they part, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from typing import Any

import numpy as np
import pytest

from agentrl.types import Segment, SegmentKind, Task, Trajectory, Turn
from agentrl.viewer.analysis.side_by_side import turn_diff
from tests.kit.episodes import sampled, user
from tests.kit.episodes import trajectory as made_trajectory
from tests.kit.episodes import turn as made_turn


def turn(index: int, text: str, *ids: int, observed: str = "go on") -> Turn:
    prompt = Segment(SegmentKind.PROMPT, np.array([1, 2]))
    return made_turn(index, [prompt], [sampled(ids, 0.0)], text, observed=(user(observed),))


def trajectory(*turns: Turn, rollout: int = 0, **changes: Any) -> Trajectory:
    task = Task("t", (user("go on"),), None, "x")
    return made_trajectory(*turns, task=task, rollout=rollout, **{"reward": 1.0, **changes})


def test_equal_trajectories_have_no_difference() -> None:
    found = turn_diff(trajectory(turn(0, "a", 5)), trajectory(turn(0, "a", 5), rollout=1))
    assert found["first_divergence"] is None
    assert found["result"] == {}
    assert [(pair["a"], pair["b"], pair["equal"]) for pair in found["turns"]] == [
        (0, 0, True)
    ]


def test_the_first_token_that_differs_is_named_with_its_turn() -> None:
    a = trajectory(turn(0, "a", 5), turn(1, "say one", 6, 7))
    b = trajectory(turn(0, "a", 5), turn(1, "say two", 6, 8), rollout=1, reward=0.0)
    found = turn_diff(a, b)
    # 2 + 1 tokens of turn 0, 2 of the prompt of turn 1, then 6
    assert found["first_divergence"] == {
        "token": 6,
        "turn_a": 1,
        "id_a": 7,
        "kind_a": "policy",
        "turn_b": 1,
        "id_b": 8,
        "kind_b": "policy",
    }
    assert found["result"] == {"reward": {"a": 1.0, "b": 0.0}}
    differences = found["turns"][1]["differences"]
    assert list(differences) == ["text"]
    assert differences["text"]["changes"] == [["=", "say "], ["a", "one"], ["b", "two"]]


def test_a_turn_without_a_partner_stands_alone_and_later_ones_align() -> None:
    a = trajectory(turn(0, "a", 5), turn(1, "b", 6), turn(2, "c", 7))
    b = trajectory(turn(0, "a", 5), turn(1, "c", 7), rollout=1)
    found = turn_diff(a, b)
    assert [(pair["a"], pair["b"]) for pair in found["turns"]] == [
        (0, 0),
        (1, None),
        (2, 1),
    ]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each search for a match looks at."""
    taken: list[int] = []
    find = SequenceMatcher.find_longest_match

    def counted(self: SequenceMatcher[Any], *place: int) -> Match:
        own = self.a[place[0] : place[1]]
        taken.append(sum(1 + len(self.b2j.get(one, ())) for one in own))
        return find(self, *place)

    monkeypatch.setattr(SequenceMatcher, "find_longest_match", counted)
    return taken


SAME = [0] * 300
OFTEN_A = [0 if place % 2 else place for place in range(1, 301)]
OFTEN_B = [0 if place % 2 else -place for place in range(1, 301)]


@pytest.mark.parametrize(
    ("a", "b", "first", "last"),
    [
        pytest.param(SAME, SAME, (0, 0), (299, 299), id="equal"),
        pytest.param([1, *SAME, 2], [3, *SAME, 4], (0, 0), (301, 301), id="other ends"),
        pytest.param([1, *SAME], [*SAME, 2], (0, 0), (300, 300), id="moved"),
        pytest.param(OFTEN_A, OFTEN_B, (0, 0), (299, 299), id="every second one"),
        pytest.param(
            [1, *range(9, 309)], range(9, 309), (0, None), (300, 299), id="one more"
        ),
    ],
)
def test_turns_that_repeat_take_steps_in_proportion_to_their_number(
    steps: list[int],
    a: Sequence[int],
    b: Sequence[int],
    first: tuple[int, int | None],
    last: tuple[int, int],
) -> None:
    made = [
        trajectory(*(turn(i, str(own), 5) for i, own in enumerate(one))) for one in (a, b)
    ]
    pairs = [(pair["a"], pair["b"]) for pair in turn_diff(*made)["turns"]]
    assert (pairs[0], pairs[-1]) == (first, last)
    assert [own for own, _ in pairs if own is not None] == list(range(len(a)))
    assert [own for _, own in pairs if own is not None] == list(range(len(b)))
    # of the turns, and a few of the one word of each
    assert sum(steps) <= 100 * (len(a) + len(b)) + 10 * len(pairs)


def test_words_that_repeat_take_steps_in_proportion_to_their_number(
    steps: list[int],
) -> None:
    # a hundred words, each just seldom enough to be one of meaning
    words = [[f"w{place * by % 101}" for place in range(1500)] for by in (7, 17)]
    texts = list(map(" ".join, words))
    found = turn_diff(*(trajectory(turn(0, text, 5)) for text in texts))
    changes = found["turns"][0]["differences"]["text"]["changes"]
    for side, text in zip("ab", texts, strict=True):
        assert "".join(part for own, part in changes if own in ("=", side)) == text
    assert sum(steps) <= 100 * 2 * 2999


def test_a_trajectory_that_ended_earlier_has_no_token_there() -> None:
    found = turn_diff(
        trajectory(turn(0, "a", 5)), trajectory(turn(0, "a", 5), turn(1, "b", 6))
    )
    divergence = found["first_divergence"]
    assert (divergence["token"], divergence["turn_a"], divergence["turn_b"]) == (3, None, 1)


def test_long_texts_are_compared_line_by_line_and_soon() -> None:
    words = "word " * 6000
    a = trajectory(turn(0, f"{words}\none\n{words}", 5))
    b = trajectory(turn(0, f"{words}\ntwo\n{words}", 5), rollout=1)
    changes = turn_diff(a, b)["turns"][0]["differences"]["text"]["changes"]
    assert [side for side, _ in changes] == ["=", "a", "b", "="]
