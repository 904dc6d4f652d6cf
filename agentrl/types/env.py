"""Env types: tasks, actions, observations and steps, in messages, never tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.types.completion import FinishReason
from agentrl.types.messages import CallProblem, CallRecord, Message, ToolCall, ToolSpec

REWARD_STYLE = "reward_style"
"""The key of ``Task.info`` that says what scores the task's episodes: ``rule`` or ``model``, from
verl's column ``reward_model.style``.
"""

MAIN_AGENT = "main"
"""The agent of an episode with a single one."""

MAIN_POLICY = "main"
"""The policy of a run with a single one."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem; ``id`` is unique within its data set.

    Args:
        id: a stable name, by which statistics and evaluation intervals are grouped.
        messages: the prompt as messages, if the data set has one; an Env may build its own.
        answer: the ground truth, JSON; None if no rubric needs one.
        data_source: the data set's name, by which evaluation reports are split.
        info: further data for the environment, JSON.
    """

    id: str
    messages: tuple[Message, ...] = ()
    answer: Any = None
    data_source: str = "default"
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """The assistant's parsed turn; calls and problems are in the order written."""

    text: str
    message: Message
    tool_calls: tuple[ToolCall, ...] = ()
    problems: tuple[CallProblem, ...] = ()
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class Observation:
    """The policy's next input.

    Args:
        messages: new messages; from ``reset``, the whole opening conversation.
        tools: the tools on offer; from ``step``, None means unchanged.
        tools_in_messages: tools that the messages themselves announce, beside those of the prompt's
            head: calls of them are read by their schemas, and the head stays as it is. None means
            unchanged.
        images: images by the names that the messages' parts use, ``{"type": "image", "image":
            NAME}``, in any form that ``Image.read`` takes. A part may also hold its image itself.
        rewrite: a history that replaces everything so far and starts a new sequence.
        agent: the agent whose turn is next, and who alone sees this. Each has a history of its own;
            the first observation that names one is its opening, with its tools.
        info: stored with the turn, JSON. Its key ``state`` names the environment's state, by which
            GiGPO compares turns; without it a state is the whole conversation.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] | None = None
    images: Mapping[str, object] = field(default_factory=dict)
    rewrite: tuple[Message, ...] | None = None
    agent: str = MAIN_AGENT
    info: Mapping[str, Any] = field(default_factory=dict)
    tools_in_messages: tuple[ToolSpec, ...] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, in Gymnasium's terms.

    Args:
        observation: the policy's next input; after the episode's end it is only stored.
        reward: this step's, for the agent that acted; or a mapping with the reward of each agent,
            which counts for its latest turn.
        terminated: the task has ended; the value of what follows is 0.
        truncated: the episode was cut short; the value of what follows is bootstrapped.
        calls: the records of the action's calls, stored with the turn.
        info: stored with the turn, JSON.
    """

    observation: Observation
    reward: float | Mapping[str, float] = 0.0
    terminated: bool = False
    truncated: bool = False
    calls: tuple[CallRecord, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
