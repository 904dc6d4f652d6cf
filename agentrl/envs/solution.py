"""Solution: the assistant's messages that solve a task, by which `agentrl check` tries its rewards.

A task brings it as ``info["solution"]`` (the column ``solution`` of a data set), an environment by
its method ``solution``. It is one text, or a list of turns: each a text, or an assistant's message
with ``content`` and ``tool_calls``, whose calls may be short: ``{"name", "arguments"}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.envs.env import Env
from agentrl.errors import DataError
from agentrl.llm.wire import stored_message
from agentrl.types import Message, Task


def solution_of(task: Task, env: Env | None = None) -> tuple[Message, ...] | None:
    """The reference solution of a task; None where neither the environment nor the task gives one.

    Args:
        task: the problem.
        env: its environment after ``reset``; what its ``solution`` gives goes first.

    Raises:
        DataError: what is given is no solution.
    """
    given: Any = None if env is None else env.solution()
    if given is None:
        given = task.info.get("solution")
    if given is None:
        return None
    where = f"the solution of task {task.id!r}"
    turns = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(turns, Sequence) or not turns:
        raise DataError(
            f"{where} must be a text or a list of the assistant's turns, each a text or a message "
            f"with content and tool_calls, got {given!r:.200}"
        )
    return tuple(_turn(turn, f"{where}: turn {number}") for number, turn in enumerate(turns))


def _turn(turn: Any, where: str) -> Message:
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    if not isinstance(turn, Mapping) or turn.get("role", "assistant") != "assistant":
        raise DataError(
            f"{where} must be a text, or an assistant's message with content and tool_calls, got "
            f"{turn!r:.200}"
        )
    calls = turn.get("tool_calls") or ()
    if not isinstance(calls, Sequence):
        raise DataError(f"{where}: tool_calls must be a list of calls, got {calls!r:.200}")
    message = {
        **turn,
        "role": "assistant",
        "tool_calls": [_call(call, number) for number, call in enumerate(calls)],
    }
    return stored_message(message, where)


def _call(call: Any, number: int) -> Any:
    """A call in OpenAI's shape; what is none is left for ``stored_message`` to name."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function") or {
        name: call[name] for name in ("name", "arguments") if name in call
    }
    return {"id": call.get("id") or f"call_{number}", "type": "function", "function": function}
