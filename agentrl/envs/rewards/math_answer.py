"""Math answers: whether two expressions are equal, by math-verify (``pip install
'math-verify>=0.9'``).

- Expressions are compared in worker processes, since computer algebra has no bound of its own.
- The policy's text can end a worker by its time or memory; that is a wrong answer. A worker that
  fails before it has read the task's own answer is a failure.
- Workers are kept for later answers, and end with this process at the latest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import Any

from agentrl.envs.rewards.answers import said_text, true_answers
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.guards.child_process import ChildEndedError, ChildLimits, ask_child
from agentrl.types.user_code.load import install

_WORKER = Path(__file__).with_name("math_worker.py")
_START_S = 60.0
_MEMORY_BYTES = 4 * 2**30
_READ_CHARS = 20_000
"""Of the end of a text, where the answer is."""


def math_answer(view: EpisodeView, *, cpu_s: float = 5.0) -> Score:
    """1.0 where the last expression of the text, or the submitted one, equals the task's answer (or
    one of them), else 0.0.

    Args:
        view: the episode; ``task.answer`` is LaTeX, a number or an expression.
        cpu_s: seconds of processor time for one comparison; what takes longer is 0.0.

    Raises:
        ConfigError: math-verify is not installed.
        RewardError: the task has no answer that can be read, or the machine was too slow.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError(f"math_answer needs math-verify; {install('math')}")
    golds = true_answers(view, "math_answer")
    with _workers_allowed:
        answer = _compare(golds, said_text(view)[-_READ_CHARS:], cpu_s, view.task.id)
    return Score(float(answer["correct"]), {"answer": view.task.answer, **answer})


def _compare(golds: list[str], said: str, cpu_s: float, task_id: str) -> dict[str, Any]:
    limits = ChildLimits(_START_S + 4 * cpu_s, cpu_s, _MEMORY_BYTES)
    try:
        readable = _ask({"gold": golds}, limits)
    except ChildEndedError as error:
        raise RewardError(
            f"math_answer could not read the answer of task {task_id!r} within its limits, got "
            f"{golds!r:.200}; correct it, or raise cpu_s={cpu_s:g}"
        ) from error
    if not readable:
        raise RewardError(
            f"math_answer cannot read the answer of task {task_id!r} as an expression, got "
            f"{golds!r:.200}; correct it"
        )
    try:
        found: dict[str, Any] = _ask({"gold": golds, "said": said}, limits)
    except ChildEndedError:
        return {"correct": False, "read": None, "ended": f"more than {cpu_s:g} s, or memory"}
    return found


def _ask(request: dict[str, Any], limits: ChildLimits) -> Any:
    """A worker's answer.

    Raises:
        ChildEndedError: a limit of its processor time or memory ended it.
        RewardError: it neither answered nor ended in time, since the machine is too busy.
    """
    try:
        return json.loads(ask_child(_WORKER, json.dumps(request).encode(), limits, keep=True))
    except ChildEndedError as error:
        if not error.is_late:
            raise
        raise RewardError(
            f"a worker of math_answer gave no answer within {limits.time_s:g} s; the machine is "
            "too busy, so run fewer episodes at once"
        ) from error


_workers_allowed = threading.BoundedSemaphore(max(os.cpu_count() or 1, 2))
"""Comparisons at once in this process; further threads wait."""
