"""Demonstrations: converts conversations to trajectories whose completions are TARGET segments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.llm.wire import stored_message
from agentrl.render import Renderer
from agentrl.types import (
    Message,
    Status,
    Task,
    ToolSpec,
    Trajectory,
    TrajectoryGroup,
    Turn,
    with_images,
)
from agentrl.types.user_code.values import shown


def demonstration_group(
    row: Any, group_index: int, renderer: Renderer, *, max_tokens: int
) -> TrajectoryGroup:
    """One conversation as a group of one finished trajectory.

    The prompt and the environment's messages go through the same ``prompt`` and ``extend`` as a
    rollout's. A warmed-up model therefore meets the same tokens later.

    Args:
        row: ``{"messages": [...], "tools": [...]?}`` or a list of messages in OpenAI's chat shape;
            the arguments of calls may be mappings or JSON text.
        group_index: index in the data order.
        renderer: converts messages to tokens.
        max_tokens: the longest sequence; a longer one ends with the last assistant's turn that
            fits.

    Raises:
        DataError: the row has another shape, no assistant's message, or none that fits.
    """
    messages, tools = read_demonstration(row, group_index)
    turns = _within(assistant_turns(messages, tools, renderer), max_tokens)
    if not turns:
        raise DataError(
            f"demonstration {group_index} has no assistant's message within {max_tokens} tokens "
            "(DataConfig.max_prompt_tokens + RolloutConfig.max_response_tokens, or the positions "
            "of the model); raise them or leave the row out"
        )
    task = Task(
        id=f"demonstration-{group_index}",
        messages=messages[:1],
        data_source="demonstrations",
    )
    trajectory = given_trajectory(task, group_index, turns)
    return TrajectoryGroup(group_index, task, (trajectory,))


def given_trajectory(
    task: Task,
    group_index: int,
    turns: Sequence[Turn],
    rollout_index: int = 0,
    reward: float = 0.0,
) -> Trajectory:
    """A finished trajectory of turns that nobody played."""
    return Trajectory(
        task,
        group_index,
        rollout_index,
        attempt=0,
        purpose="train",
        turns=tuple(turns),
        status=Status("terminated"),
        reward=reward,
    )


def assistant_turns(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    renderer: Renderer,
    *,
    start: int = 0,
) -> list[Turn]:
    """The assistant's messages from position ``start`` on, as turns whose completions are TARGET
    segments.

    Earlier messages go through the same ``prompt`` and ``extend`` as a rollout's. A new sequence
    starts if the renderer cannot extend the one before.
    """
    turns: list[Turn] = []
    observed: list[Message] = list(messages[:start])
    for position, message in enumerate(messages[start:], start):
        if message["role"] != "assistant":
            observed.append(message)
            continue
        context = None
        if turns:
            before = messages[: position - len(observed)]
            context = renderer.extend(
                turns[-1].completion[0].token_ids, observed, before, tools
            )
        content = message.get("content")
        turns.append(
            Turn(
                index=len(turns),
                parent=None if context is None else len(turns) - 1,
                context=renderer.prompt(messages[:position], tools)
                if context is None
                else context,
                completion=(renderer.target(message),),
                text=content if isinstance(content, str) else "",
                message=message,
                observed=tuple(observed),
            )
        )
        observed = []
    return turns


def tool_specs(tools: Any, where: str) -> tuple[ToolSpec, ...]:
    """The tools of a row, in OpenAI's shape or as JSON text.

    Args:
        tools: the row's value.
        where: the row, for the error.

    Raises:
        DataError: an entry is no tool.
    """
    try:
        given = json.loads(tools) if isinstance(tools, str) else tools
        return tuple(_spec(tool) for tool in given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f'{where}: \'tools\' must be a list of {{"name", "description", "parameters"}}, also '
            'as {"type": "function", "function": ...}, got '
            f"{shown(tools, 200)} ({type(error).__name__}: {error})"
        ) from None


def _within(turns: Sequence[Turn], max_tokens: int) -> list[Turn]:
    """The turns before the first one whose sequence is longer than ``max_tokens``."""
    length = 0
    for number, turn in enumerate(turns):
        own = sum(map(len, turn.segments))
        length = own if turn.parent is None else length + own
        if length > max_tokens:
            return list(turns[:number])
    return list(turns)


def read_demonstration(
    row: Any, group_index: int
) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    """The messages and tools of a row, its images read.

    Raises:
        DataError: the row has another shape, no assistant's message, or an image that cannot be
            read.
    """
    where = f"demonstration {group_index}"
    messages: Any = row.get("messages") if isinstance(row, Mapping) else row
    if not is_conversation(messages):
        raise DataError(
            f"{where} must be a list of chat messages or a mapping with 'messages', got "
            f"{shown(row, 200)}"
        )
    read = with_images(stored_messages(messages, f"{where}: messages"))
    if not any(message["role"] == "assistant" for message in read):
        raise DataError(f"{where} has no assistant's message to imitate; leave the row out")
    return read, tool_specs(
        row.get("tools") or () if isinstance(row, Mapping) else (), where
    )


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of at least one chat message."""
    return (
        isinstance(value, Sequence)
        and bool(value)
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in value)
    )


def stored_messages(value: Sequence[Any], where: str) -> tuple[Message, ...]:
    """The messages of a conversation in a data set.

    Args:
        value: a conversation.
        where: its place, for the error.

    Raises:
        DataError: a message cannot be read.
    """
    return tuple(
        stored_message(message, f"{where}[{n}]") for n, message in enumerate(value)
    )


def _spec(tool: Any) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    function = tool.get("function", tool)
    return ToolSpec(
        function["name"], function.get("description", ""), function.get("parameters", {})
    )
