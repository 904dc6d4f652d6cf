"""Episodes for rewards: what was said last, and the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.envs import EpisodeView
from agentrl.types import Message, Status, Task, Turn


def episode(
    said: str,
    answer: Any = None,
    *,
    question: str = "?",
    info: Mapping[str, Any] | None = None,
) -> EpisodeView:
    """An episode of one turn."""
    opening: Message = {"role": "user", "content": question}
    message: Message = {"role": "assistant", "content": said}
    task = Task("t-1", (opening,), answer=answer, info=info or {})
    turn = Turn(0, None, (), (), said, message)
    return EpisodeView(task, (opening, message), (turn,), Status("terminated"))
