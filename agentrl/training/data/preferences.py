"""Preferences: converts preference pairs to groups of two trajectories, the better one first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from agentrl.errors import DataError
from agentrl.render import Renderer
from agentrl.training.data.demonstrations import (
    assistant_turns,
    given_trajectory,
    is_conversation,
    stored_messages,
    tool_specs,
)
from agentrl.types import (
    Message,
    Segment,
    SegmentKind,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.types.user_code.values import shown

_SIDES = ("chosen", "rejected")

Conversation: TypeAlias = tuple[Message, ...]


def preference_group(
    row: Any, group_index: int, renderer: Renderer, *, max_tokens: int
) -> TrajectoryGroup:
    """One pair as a group: rollout 0 was chosen, rollout 1 rejected; a margin is the chosen one's
    reward.

    Both are rendered as episodes are. A stored trajectory keeps its sampled tokens.

    Args:
        row: ``{"chosen", "rejected", "prompt"?, "tools"?, "margin"?}``. ``prompt`` is text or
            messages. ``chosen`` and ``rejected`` are text, messages after the prompt, whole
            conversations if there is no prompt, or two ``Trajectory`` of one task.
        group_index: index in the data order.
        renderer: converts messages to tokens.
        max_tokens: the longest sequence.

    Raises:
        DataError: the row has another shape, an answer is missing or too long, or both are the
            same.
    """
    margin = check_pair(row, group_index)
    if all(isinstance(row[side], Trajectory) for side in _SIDES):
        task = row["chosen"].task
        both = [_given_turns(row[side], group_index, side) for side in _SIDES]
    else:
        tools = tool_specs(row.get("tools") or (), f"preference pair {group_index}")
        prompt, *sides = _conversations(row, group_index)
        task = Task(id=f"pair-{group_index}", messages=prompt, data_source="preferences")
        both = [
            _last_sequence(assistant_turns(messages, tools, renderer, start=len(prompt)))
            for messages in sides
        ]
    for side, turns in zip(_SIDES, both, strict=True):
        length = sum(len(segment) for turn in turns for segment in turn.segments)
        if length > max_tokens:
            raise DataError(
                f"preference pair {group_index}: its {side} conversation has {length} tokens, more "
                f"than {max_tokens} (DataConfig.max_prompt_tokens + "
                "RolloutConfig.max_response_tokens, or the positions of the model); raise them or "
                "leave the row out"
            )
    if _ids(both[0]) == _ids(both[1]):
        raise DataError(
            f"preference pair {group_index}: 'chosen' and 'rejected' are the same tokens; leave "
            f"the row out"
        )
    trajectories = (
        given_trajectory(task, group_index, turns, rollout_index, reward)
        for rollout_index, (turns, reward) in enumerate(
            zip(both, (margin, 0.0), strict=True)
        )
    )
    return TrajectoryGroup(group_index, task, tuple(trajectories))


def check_pair(row: Any, group_index: int) -> float:
    """The margin of a row, whose shape is validated.

    Raises:
        DataError: the row is no preference pair.
    """
    if not isinstance(row, Mapping) or not row.keys() >= set(_SIDES):
        found = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise DataError(
            f"preference pair {group_index} must be a mapping with 'chosen' and 'rejected', got "
            f"{found}"
        )
    if row.get("images") is not None:
        raise DataError(
            f"preference pair {group_index} has 'images', and reward models read text alone; leave "
            "the column out"
        )
    margin = row.get("margin") or 0.0
    if (
        isinstance(margin, bool)
        or not isinstance(margin, int | float)
        or not math.isfinite(margin)
    ):
        raise DataError(
            f"preference pair {group_index}: 'margin' must be a finite number, got "
            f"{shown(margin, 80)}"
        )
    if not all(isinstance(row[side], Trajectory) for side in _SIDES):
        _conversations(row, group_index)
    return float(margin)


def _conversations(
    row: Mapping[str, Any], group_index: int
) -> tuple[Conversation, Conversation, Conversation]:
    """The prompt, and both whole conversations.

    Raises:
        DataError: there is no prompt, or a side does not end with an assistant's message.
    """
    chosen, rejected = (
        _messages(row[side], group_index, side, "assistant") for side in _SIDES
    )
    prompt: Conversation = ()
    if row.get("prompt") is not None:
        prompt = _messages(row["prompt"], group_index, "prompt", "user")
        chosen, rejected = (
            side if side[: len(prompt)] == prompt else prompt + side
            for side in (chosen, rejected)
        )
    else:
        prompt = _common(chosen, rejected)
    if not prompt:
        raise DataError(
            f"preference pair {group_index} has no prompt: give 'prompt', or conversations that "
            f"begin alike"
        )
    for side, messages in (("chosen", chosen), ("rejected", rejected)):
        if len(messages) == len(prompt) or messages[-1]["role"] != "assistant":
            raise DataError(
                f"preference pair {group_index}: {side!r} must end with an assistant's message "
                f"after the prompt"
            )
    return prompt, chosen, rejected


def _messages(value: Any, group_index: int, side: str, role: str) -> Conversation:
    """A text as one message of ``role``, or a list of messages unchanged."""
    if isinstance(value, str) and value:
        return (cast(Message, {"role": role, "content": value}),)
    where = f"preference pair {group_index}: {side!r}"
    if not is_conversation(value):
        raise DataError(
            f"{where} must be text or a list of chat messages, got {shown(value, 200)}"
        )
    return stored_messages(value, where)


def _common(chosen: Conversation, rejected: Conversation) -> Conversation:
    """The common prefix of both conversations, without the last message of either."""
    limit = min(len(chosen), len(rejected)) - 1
    length = next((i for i in range(limit) if chosen[i] != rejected[i]), limit)
    return chosen[:length]


def _given_turns(trajectory: Trajectory, group_index: int, side: str) -> tuple[Turn, ...]:
    """The last sequence of a stored trajectory, with its sampled tokens as TARGET."""
    leaves = trajectory.samples()
    if not leaves:
        raise DataError(
            f"preference pair {group_index}: the {side} trajectory {trajectory.id} has no tokens "
            f"to learn from"
        )
    return tuple(
        replace(
            turn,
            context=tuple(map(_as_target, turn.context)),
            completion=tuple(map(_as_target, turn.completion)),
            sampling=None,
        )
        for turn in _chain(trajectory.turns[index] for index in leaves[-1].turns)
    )


def _as_target(segment: Segment) -> Segment:
    sampled = segment.kind is SegmentKind.POLICY
    return Segment(SegmentKind.TARGET, segment.token_ids) if sampled else segment


def _last_sequence(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of the last sequence, at whose end the score is read."""
    first = max(turn.index for turn in turns if turn.parent is None)
    return _chain(turns[first:])


def _chain(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Turns of one sequence as a trajectory of their own."""
    return tuple(
        replace(turn, index=index, parent=index - 1 if index else None)
        for index, turn in enumerate(turns)
    )


def _ids(turns: Sequence[Turn]) -> list[int]:
    return [
        token
        for turn in turns
        for segment in turn.segments
        for token in segment.token_ids.tolist()
    ]
