"""A model is warmed up on exactly the tokens that it will meet in rollouts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.errors import DataError
from agentrl.training.data.demonstrations import demonstration_group
from agentrl.training.data.preferences import preference_group
from agentrl.types import SegmentKind
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    USER,
    BytewiseRenderer,
    add,
    call,
    ids,
    laid_out,
    play,
    say,
)

CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "b": 2}},
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "call_0", "name": "add"},
    {"role": "assistant", "content": "3"},
]


def group_of(row: Any, **settings: Any) -> Any:
    return demonstration_group(
        row, 5, BytewiseRenderer(), **{"max_tokens": 1000} | settings
    )


async def test_its_tokens_are_those_of_a_rollout_that_says_the_same() -> None:
    (demonstrated,) = group_of({"messages": CONVERSATION}).trajectories
    rolled_out = await play([say(call("add", a=1, b=2)), say("3")], tools=[add])
    as_target = [
        [("TARGET" if kind == "POLICY" else kind, tokens) for kind, tokens in turn]
        for turn in laid_out(rolled_out)
    ]
    assert laid_out(demonstrated) == as_target
    assert [turn.parent for turn in demonstrated.turns] == [None, 0]


def test_targets_have_no_logprobs_and_no_version() -> None:
    (trajectory,) = group_of(CONVERSATION).trajectories
    targets = [s for turn in trajectory.turns for s in turn.completion]
    assert {(s.kind, s.logprobs, s.policy_version) for s in targets} == {
        (SegmentKind.TARGET, None, None)
    }


def test_it_counts_as_one_finished_trajectory_of_its_draw() -> None:
    group = group_of(CONVERSATION)
    assert (group.group_index, [t.id for t in group.finished]) == (5, ["5-0-0"])


def test_a_long_one_is_cut_after_the_last_turn_that_fits() -> None:
    first = len(ids(USER, "hi", END, ASSISTANT)) + len(say(call("add", a=1, b=2)))
    (trajectory,) = group_of(CONVERSATION, max_tokens=first).trajectories
    assert len(trajectory.turns) == 1
    (longer,) = group_of(
        CONVERSATION, max_tokens=first + 6
    ).trajectories  # TOOL 3 END ASSISTANT, then 3 END
    assert len(longer.turns) == 2


def test_one_that_does_not_fit_at_all_is_refused() -> None:
    with pytest.raises(
        DataError, match="demonstration 5 has no assistant's message within 9 tokens"
    ):
        group_of(CONVERSATION, max_tokens=9)


def test_a_template_that_rewrites_history_gives_a_sequence_a_turn() -> None:
    renderer = BytewiseRenderer(rewrites=True)
    (trajectory,) = demonstration_group(
        CONVERSATION, 0, renderer, max_tokens=1000
    ).trajectories
    assert [turn.parent for turn in trajectory.turns] == [None, None]
    assert [len(sample.owned) for sample in trajectory.samples()] == [1, 1]


def test_the_tools_of_a_row_are_in_its_prompt() -> None:
    (trajectory,) = group_of(
        {"messages": CONVERSATION, "tools": [add.spec.openai()]}
    ).trajectories
    assert trajectory.turns[0].context[0].token_ids.tolist()[:5] == ids("[add]")


@pytest.mark.parametrize(
    "row", [{}, {"messages": []}, "text", {"messages": [{"content": "no role"}]}, 3, None]
)
def test_a_row_of_another_shape_is_named(row: Any) -> None:
    with pytest.raises(DataError, match="demonstration 5 must be a list of chat messages"):
        group_of(row)


def test_a_row_without_an_assistant_is_named() -> None:
    with pytest.raises(DataError, match="demonstration 5 has no assistant's message"):
        group_of([{"role": "user", "content": "hi"}])


def test_a_message_without_content_is_named() -> None:
    with pytest.raises(
        DataError, match=r"demonstration 5: messages\[0\] needs a content .* None"
    ):
        group_of([{"role": "user", "content": None}, CONVERSATION[-1]])


def as_openai(**changes: Any) -> list[dict[str, Any]]:
    """The same conversation as OpenAI's files have it: arguments as text, null beside calls,
    ``developer``.
    """
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}', **changes}
    call_of_it = {"id": "call_0", "type": "function", "function": function}
    asked, _, *rest = CONVERSATION
    return [
        asked,
        {"role": "assistant", "content": None, "tool_calls": [call_of_it]},
        *rest,
    ]


def test_openais_text_arguments_are_read() -> None:
    (written,) = group_of(as_openai()).trajectories
    (ours,) = group_of(CONVERSATION).trajectories
    assert laid_out(written) == laid_out(ours)
    pair = {"prompt": "hi", "chosen": as_openai()[1:], "rejected": "no"}
    assert preference_group(pair, 0, BytewiseRenderer(), max_tokens=1000).trajectories[
        0
    ].turns[0].message == (ours.turns[0].message)


def test_columns_that_arrow_fills_with_nulls_are_none() -> None:
    columns = {"tool_calls": None, "name": None, "tool_call_id": None}
    (trajectory,) = group_of(
        [{**columns, **message} for message in CONVERSATION]
    ).trajectories
    assert laid_out(trajectory) == laid_out(group_of(CONVERSATION).trajectories[0])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            '{"a": 1',
            r"demonstration 5: messages\[1\]: tool_calls\[0\]\.function\.arguments must be JSON "
            r"text",
        ),
        ("[1]", r"arguments must be a JSON object, got \[1\]"),
        ('{"a": NaN}', r"must be JSON text, got .* \(NaN is no JSON number\)"),
        ('{"a": 1e999}', r"must be JSON text, got .* \(1e999 is too large for a number\)"),
    ],
)
def test_arguments_that_are_no_object_are_named(arguments: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        group_of(as_openai(arguments=arguments))


def test_tools_may_be_json_text_and_what_is_none_is_named() -> None:
    tools = [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]
    (written,) = group_of(
        {"messages": CONVERSATION, "tools": json.dumps(tools)}
    ).trajectories
    (given,) = group_of({"messages": CONVERSATION, "tools": tools}).trajectories
    assert laid_out(written) == laid_out(given)
    with pytest.raises(
        DataError,
        match=r"demonstration 5: 'tools' must be a list of .* \(KeyError: 'name'\)",
    ):
        group_of({"messages": CONVERSATION, "tools": [{"nam": "add"}]})
