"""A model is warmed up on exactly the tokens that it will meet in rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import DataError
from agentrl.rollouts import demonstration_group
from agentrl.types import SegmentKind
from tests.rollouts.bytewise import ASSISTANT, END, USER, BytewiseRenderer, add, call, ids, laid_out, play, say

CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "call_0", "name": "add"},
    {"role": "assistant", "content": "3"},
]


def group_of(row: Any, **settings: Any) -> Any:
    return demonstration_group(row, 5, BytewiseRenderer(), **{"max_tokens": 1000} | settings)


async def test_its_tokens_are_those_of_a_rollout_that_says_the_same() -> None:
    (demonstrated,) = group_of({"messages": CONVERSATION}).trajectories
    rolled_out = await play([say(call("add", a=1, b=2)), say("3")], tools=[add])
    as_target = [
        [("TARGET" if kind == "POLICY" else kind, tokens) for kind, tokens in turn] for turn in laid_out(rolled_out)
    ]
    assert laid_out(demonstrated) == as_target
    assert [turn.parent for turn in demonstrated.turns] == [None, 0]


def test_targets_have_no_logprobs_and_no_version() -> None:
    (trajectory,) = group_of(CONVERSATION).trajectories
    targets = [s for turn in trajectory.turns for s in turn.completion]
    assert {(s.kind, s.logprobs, s.policy_version) for s in targets} == {(SegmentKind.TARGET, None, None)}


def test_it_counts_as_one_finished_trajectory_of_its_draw() -> None:
    group = group_of(CONVERSATION)
    assert (group.draw, [t.id for t in group.finished]) == (5, ["5-0-0"])


def test_a_long_one_is_cut_after_the_last_turn_that_fits() -> None:
    first = len(ids(USER, "hi", END, ASSISTANT)) + len(say(call("add", a=1, b=2)))
    (trajectory,) = group_of(CONVERSATION, max_tokens=first).trajectories
    assert len(trajectory.turns) == 1
    (longer,) = group_of(CONVERSATION, max_tokens=first + 6).trajectories  # TOOL 3 END ASSISTANT, then 3 END
    assert len(longer.turns) == 2


def test_one_that_does_not_fit_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="demonstration 5 has no assistant's message within 9 tokens"):
        group_of(CONVERSATION, max_tokens=9)


def test_a_template_that_rewrites_history_gives_a_sequence_a_turn() -> None:
    renderer = BytewiseRenderer(rewrites=True)
    (trajectory,) = demonstration_group(CONVERSATION, 0, renderer, max_tokens=1000).trajectories
    assert [turn.parent for turn in trajectory.turns] == [None, None]
    assert [len(sample.owned) for sample in trajectory.samples()] == [1, 1]


def test_the_tools_of_a_row_are_in_its_prompt() -> None:
    (trajectory,) = group_of({"messages": CONVERSATION, "tools": [add.spec.openai()]}).trajectories
    assert trajectory.turns[0].context[0].token_ids.tolist()[:5] == ids("[add]")


@pytest.mark.parametrize("row", [{}, {"messages": []}, "text", {"messages": [{"content": "no role"}]}, 3, None])
def test_a_row_of_another_shape_is_named(row: Any) -> None:
    with pytest.raises(DataError, match="demonstration 5 must be a list of chat messages"):
        group_of(row)


def test_a_row_without_an_assistant_is_named() -> None:
    with pytest.raises(DataError, match="demonstration 5 has no assistant's message"):
        group_of([{"role": "user", "content": "hi"}])
