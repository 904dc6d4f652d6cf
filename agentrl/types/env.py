"""What an environment is given and gives back: parsed messages, never tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.types.completion import FinishReason
from agentrl.types.messages import CallProblem, CallRecord, Message, ToolCall, ToolSpec

__all__ = ["Action", "Observation", "StepResult", "Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. ``id`` is unique within its data set.

    Args:
        id: stable name; it keys statistics and evaluation intervals.
        messages: the prompt as messages, where the data set has one; an Env may build its own.
        answer: ground truth, JSON; None where a rubric needs none.
        data_source: the data set's name, by which evaluation reports are split.
        info: anything else that the environment needs, JSON.
    """

    id: str
    messages: tuple[Message, ...] = ()
    answer: Any = None
    data_source: str = "default"
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """The assistant's turn as parsed: calls and problems in the order written."""

    text: str
    message: Message
    tool_calls: tuple[ToolCall, ...] = ()
    problems: tuple[CallProblem, ...] = ()
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees next.

    Args:
        messages: new messages; from ``reset``, the whole opening conversation.
        tools: the tools on offer; from ``step``, None means unchanged.
        images: images by the names that the messages' parts use, ``{"type": "image", "image": NAME}``; each is
            anything that ``Image.read`` takes. A part may hold its image itself instead.
        rewrite: a new history that replaces everything so far and starts a new sequence.
        agent: whose turn is next.
        info: kept with the turn, JSON.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] | None = None
    images: Mapping[str, object] = field(default_factory=dict)
    rewrite: tuple[Message, ...] | None = None
    agent: str = "main"
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, in Gymnasium's terms.

    Args:
        observation: what the policy sees next; ignored where the episode ended.
        reward: this step's reward.
        terminated: the task itself came to its end; the value of what follows is 0.
        truncated: the episode was cut; the value of what follows is bootstrapped.
        calls: what came of each call of the action, stored with the turn.
        info: kept with the turn, JSON.
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    calls: tuple[CallRecord, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
