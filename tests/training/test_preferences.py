"""Preference pairs in the shapes in which the field writes them, rendered as episodes are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.errors import DataError
from agentrl.training.data.preferences import preference_group
from agentrl.types import Segment, SegmentKind, TrajectoryGroup
from tests.rollouts.bytewise import BytewiseRenderer, add, call, laid_out, play, say

USER = {"role": "user", "content": "hi"}
GOOD = {"role": "assistant", "content": "hello"}
BAD = {"role": "assistant", "content": "go away"}
CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "b": 2}},
}


def pair(row: Any, **settings: Any) -> TrajectoryGroup:
    return preference_group(row, 5, BytewiseRenderer(), **{"max_tokens": 1000} | settings)


def tokens(group: TrajectoryGroup) -> list[Any]:
    return [laid_out(trajectory) for trajectory in group.trajectories]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "hello", "rejected": "go away"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
    ids=["texts", "messages", "whole conversations", "both"],
)
def test_every_usual_shape_is_the_same_pair(row: dict[str, Any]) -> None:
    expected = pair({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]})
    found = pair(row)
    assert tokens(found) == tokens(expected)
    assert [t.turns[-1].text for t in found.trajectories] == ["hello", "go away"]
    assert found.task.messages == (USER,)


def test_the_chosen_comes_first_and_its_reward_is_the_margin() -> None:
    found = pair({"prompt": "hi", "chosen": "hello", "rejected": "go away", "margin": 2})
    assert [(t.rollout_index, t.reward) for t in found.finished] == [(0, 2.0), (1, 0.0)]


async def test_a_conversation_with_tools_has_the_tokens_of_a_rollout_that_says_the_same() -> (
    None
):
    result = {"role": "tool", "content": "3", "tool_call_id": "call_0", "name": "add"}
    called = [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        result,
        {"role": "assistant", "content": "3"},
    ]
    found = pair({"prompt": "hi", "chosen": called, "rejected": "3"})
    rolled_out = await play([say(call("add", a=1, b=2)), say("3")], tools=[add])
    as_target = [
        [("TARGET" if kind == "POLICY" else kind, ids) for kind, ids in turn]
        for turn in laid_out(rolled_out)
    ]
    assert tokens(found)[0] == as_target


async def test_stored_episodes_keep_their_own_tokens() -> None:
    better, worse = [
        replace(await play([say(text)]), rollout_index=n)
        for n, text in enumerate(("yes", "no"))
    ]
    found = pair({"chosen": better, "rejected": worse})
    for now, was in zip(found.trajectories, (better, worse), strict=True):
        assert now.sequence(0).tolist() == was.sequence(0).tolist()
        kinds = {segment.kind for segment in now.turns[0].completion}
        assert kinds == {SegmentKind.TARGET}


def test_a_template_that_rewrites_history_leaves_the_last_sequence() -> None:
    rows = [USER, GOOD, USER]
    row = {"prompt": [USER], "chosen": [GOOD, USER, GOOD], "rejected": [*rows[1:], BAD]}
    found = preference_group(row, 0, BytewiseRenderer(rewrites=True), max_tokens=1000)
    assert [[turn.parent for turn in t.turns] for t in found.trajectories] == [
        [None],
        [None],
    ]
    assert [len(t.samples()) for t in found.trajectories] == [1, 1]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("no", "must be a mapping with 'chosen' and 'rejected', got str"),
        ({"prompt": "hi", "chosen": "a"}, r"got \['chosen', 'prompt'\]"),
        (
            {"prompt": "hi", "chosen": "", "rejected": "a"},
            "'chosen' must be text or a list of chat messages, got ''",
        ),
        (
            {"prompt": "hi", "chosen": "a", "rejected": []},
            "'rejected' must be text or a list of chat messages",
        ),
        (
            {"prompt": "hi", "chosen": "a", "rejected": [{"content": "b"}]},
            "'rejected' must be text or a list",
        ),
        ({"chosen": "a", "rejected": "b"}, "has no prompt"),
        (
            {"prompt": "hi", "chosen": "a", "rejected": [USER]},
            "'rejected' must end with an assistant's message",
        ),
        (
            {"prompt": "hi", "chosen": "a", "rejected": "a"},
            "'chosen' and 'rejected' are the same tokens",
        ),
        (
            {"prompt": "hi", "chosen": "a", "rejected": "b", "margin": "much"},
            "'margin' must be a finite number",
        ),
        (
            {"prompt": "hi", "chosen": "a", "rejected": "b", "margin": float("nan")},
            "'margin' must be a finite number",
        ),
        (
            {"prompt": "hi", "chosen": "a" * 99, "rejected": "b"},
            "its chosen conversation has .* more than 40",
        ),
    ],
)
def test_a_row_that_is_no_pair_is_named(row: Any, words: str) -> None:
    with pytest.raises(DataError, match=f"preference pair 5.*{words}"):
        pair(row, max_tokens=40)


async def test_an_episode_without_tokens_is_no_side_of_a_pair() -> None:
    episode = await play([say("yes")])
    with pytest.raises(DataError, match=r"the rejected trajectory .* has no tokens"):
        pair({"chosen": episode, "rejected": replace(episode, turns=())})


def test_a_segment_of_the_prompt_stays_what_it_was() -> None:
    (turn,) = pair({"prompt": "hi", "chosen": "a", "rejected": "b"}).trajectories[0].turns
    assert [type(segment) for segment in turn.context] == [Segment] * len(turn.context)
    assert turn.context[0].kind is SegmentKind.PROMPT
