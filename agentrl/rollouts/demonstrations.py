"""Conversations to imitate, as trajectories whose completions are TARGET segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.errors import DataError
from agentrl.render import Renderer
from agentrl.types import Message, Segment, Status, Task, ToolSpec, Trajectory, TrajectoryGroup, Turn

__all__ = ["demonstration_group"]


def demonstration_group(row: Any, draw: int, renderer: Renderer, *, max_tokens: int) -> TrajectoryGroup:
    """One conversation as a group of one finished trajectory.

    The prompt and everything that the environment said go through the same ``prompt`` and ``extend`` as a
    rollout's, so a model is warmed up on exactly the tokens that it will meet.

    Args:
        row: ``{"messages": [...], "tools": [...]?}`` or a bare list of messages (OpenAI chat shape).
        draw: position in the data order.
        renderer: messages to tokens.
        max_tokens: longest sequence; what is longer is cut after the last assistant's turn that fits.

    Raises:
        DataError: the row has another shape, no assistant's message, or none that fits.
    """
    messages, tools = _read(row, draw)
    turns: list[Turn] = []
    observed: list[Message] = []
    length = 0
    for position, message in enumerate(messages):
        if message["role"] != "assistant":
            observed.append(message)
            continue
        context = None
        if turns:
            context = renderer.extend(turns[-1].completion[0].token_ids, observed)
        starts = context is None
        if context is None:
            context = renderer.prompt(messages[:position], tools)
            length = 0
        target = renderer.target(message)
        length += sum(len(segment) for segment in (*context, target))
        if length > max_tokens:
            break
        turns.append(_turn(len(turns), starts, context, target, message, tuple(observed)))
        observed = []
    if not turns:
        raise DataError(
            f"demonstration {draw} has no assistant's message within {max_tokens} tokens "
            f"(data.max_prompt_tokens + rollout.max_response_tokens); raise them or leave the row out"
        )
    task = Task(id=f"demonstration-{draw}", messages=messages[:1], data_source="demonstrations")
    trajectory = Trajectory(
        task=task,
        draw=draw,
        sibling=0,
        attempt=0,
        purpose="train",
        turns=tuple(turns),
        status=Status("terminated"),
        reward=0.0,
    )
    return TrajectoryGroup(draw, task, (trajectory,))


def _turn(
    index: int,
    starts: bool,
    context: tuple[Segment, ...],
    target: Segment,
    message: Message,
    observed: tuple[Message, ...],
) -> Turn:
    content = message.get("content")
    return Turn(
        index=index,
        parent=None if starts else index - 1,
        context=context,
        completion=(target,),
        text=content if isinstance(content, str) else "",
        message=message,
        observed=observed,
    )


def _read(row: Any, draw: int) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    messages: Any = row.get("messages") if isinstance(row, Mapping) else row
    if (
        not isinstance(messages, Sequence)
        or not messages
        or not all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages)
    ):
        raise DataError(
            f"demonstration {draw} must be a list of chat messages or a mapping with 'messages', got {row!r:.200}"
        )
    tools = row.get("tools") or () if isinstance(row, Mapping) else ()
    return tuple(cast(Message, dict(message)) for message in messages), tuple(_spec(tool) for tool in tools)


def _spec(tool: Any) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    function = tool.get("function", tool)
    return ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {}))
