"""Episodes: messages, turns and trajectories that no engine played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.types import (
    Action,
    Message,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    Turn,
)

BEFORE = -1
"""The parent of a turn that goes on from the one before it."""


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def said(text: str, **more: Any) -> Message:
    """What the assistant wrote, as a message."""
    return {"role": "assistant", "content": text, **more}  # type: ignore[typeddict-item]


def spoken(text: str, **more: Any) -> Action:
    """The same as an action without calls."""
    return Action(text, said(text, **more))


def sampled(
    ids: npt.ArrayLike, logprob: float = -0.5, version: int = 0, **fields: Any
) -> Segment:
    """Tokens of the policy, all as likely."""
    tokens = np.asarray(ids, np.int32)
    logprobs = np.full(tokens.size, logprob, np.float32)
    return Segment(SegmentKind.POLICY, tokens, logprobs, version, **fields)


def turn(
    index: int,
    context: Sequence[Segment] = (),
    completion: Sequence[Segment] = (),
    text: str = "",
    parent: int | None = BEFORE,
    **fields: Any,
) -> Turn:
    """A turn, by default after the one before it; ``fields`` are others of ``Turn``."""
    if parent == BEFORE:
        parent = index - 1 if index else None
    message = fields.pop("message", None) or said(text)
    return Turn(index, parent, tuple(context), tuple(completion), text, message, **fields)


def trajectory(*turns: Turn, group: int = 0, rollout: int = 0, **fields: Any) -> Trajectory:
    """A finished episode of training; ``fields`` are others of ``Trajectory``."""
    given: dict[str, Any] = {
        "task": Task("t"),
        "attempt": 0,
        "purpose": "train",
        "status": Status("terminated"),
        **fields,
    }
    return Trajectory(group_index=group, rollout_index=rollout, turns=turns, **given)
