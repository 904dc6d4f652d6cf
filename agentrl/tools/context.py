"""Tool context and output: what a tool is given beside its arguments, and may return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.sandbox import Sandbox
from agentrl.types import Task, ToolErrorKind


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The circumstances of one call. A tool function gets it by a parameter of this type, which the
    model never sees.

    Args:
        seed: for the tool's own random numbers; equal for the same call of the same episode seed.
        episode_id: whose call it is: the id of the episode's trajectory, unique in the run.
        call_id: which call of the turn.
        deadline_s: seconds that the call may take from its start.
        sandbox: the episode's sandbox, where its environment has one.
        task: the episode's task; None outside of an environment.
        state: of the episode: all its tools share it, and a checkpoint keeps it where it can be
            pickled. Calls of one turn run at once.
        offered: the tools on offer by name, each a Tool.
        known: the same, with those of the episode that are not on offer.
    """

    seed: int = 0
    episode_id: str = ""
    call_id: str = ""
    deadline_s: float = 30.0
    sandbox: Sandbox | None = None
    task: Task | None = None
    state: dict[str, Any] = field(default_factory=dict, hash=False)
    offered: Mapping[str, Any] = field(default_factory=dict, hash=False)
    known: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A tool's answer with more to say than text.

    Args:
        content: the text for the model; bytes are read as UTF-8, with U+FFFD for what is not.
        error: what went wrong, by kind; None for success.
        truncated: the tool itself has cut the content already.
        metrics: numbers about the call that are kept with it, such as ``cpu_s``.
        images: for the model, behind the text; each is anything that ``Image.read`` takes.
        reward: joins the reward of the environment's step.
        end: the task has come to its end: the episode is terminated.
        tools: all tools on offer from now on, each a Tool, or the name of one that the environment
            knows; None changes nothing. The call's answer tells the model; the prompt stays as it
            is. Whoever made a new Tool closes it.
    """

    content: str | bytes
    error: ToolErrorKind | None = None
    truncated: bool = False
    metrics: Mapping[str, float] | None = None
    images: Sequence[object] = ()
    reward: float = 0.0
    end: bool = False
    tools: Sequence[object] | None = None
