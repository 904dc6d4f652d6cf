"""Math answers: whether two expressions are equal, by math-verify (``pip install
'math-verify>=0.9'``).

- Expressions are compared in worker processes, since computer algebra has no bound of its own.
- The policy's text can end a worker by its time or memory; that is a wrong answer. A worker that
  fails before it has read the task's own answer is a failure.
- Workers end with their standard input, so with this process at the latest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agentrl.envs.rewards.answers import said_text, true_answers
from agentrl.envs.score import Score
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.types.user_code.optional_packages import install

_WORKER = Path(__file__).with_name("math_worker.py")
_START_S = 60.0
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
    worker = _Worker.idle()
    request = {"gold": golds, "said": said, "cpu_s": cpu_s}
    wall_s = _START_S + 4 * cpu_s
    kept = False
    try:
        readable = worker.ask(request, wall_s)
        if readable is None:
            raise RewardError(
                f"math_answer could not read the answer of task {task_id!r} within its limits, got "
                f"{golds!r:.200}; correct it, or raise cpu_s={cpu_s:g}"
            )
        if not readable["readable"]:
            kept = worker.answer(wall_s) is not None
            raise RewardError(
                f"math_answer cannot read the answer of task {task_id!r} as an expression, got "
                f"{golds!r:.200}; correct it"
            )
        found = worker.answer(wall_s)
        kept = found is not None
        if found is None:
            return {"correct": False, "read": None, "ended": f"more than {cpu_s:g} s, or memory"}
        return found
    finally:
        worker.put_back() if kept else worker.end()


class _Worker:
    """A worker process, used by one thread at a time."""

    _idle: list[_Worker] = []  # noqa: RUF012 - of all threads; list.append and pop are atomic

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._rest = b""

    @classmethod
    def idle(cls) -> _Worker:
        """One that waits for a request, or a new one."""
        try:
            worker = cls._idle.pop()
        except IndexError:
            return cls()
        if worker._process.poll() is not None:
            worker.end()
            return cls()
        return worker

    def put_back(self) -> None:
        """Lets others use it."""
        self._idle.append(self)

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "both were asked for"
            pipe.close()

    def ask(self, request: dict[str, Any], wall_s: float) -> dict[str, Any] | None:
        """Sends a request; the first of its two answers, None where the process ended."""
        assert self._process.stdin is not None, "it was asked for"
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.answer(wall_s)

    def answer(self, wall_s: float) -> dict[str, Any] | None:
        """The next answer; None where the process ended.

        Raises:
            RewardError: it neither answered nor ended in time, since the machine is too busy.
        """
        assert self._process.stdout is not None, "it was asked for"
        end = time.monotonic() + wall_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], max(end - time.monotonic(), 0.0))[0]:
                raise RewardError(
                    f"a worker of math_answer gave no answer within {wall_s:g} s; the machine is "
                    "too busy, so run fewer episodes at once"
                )
            more = os.read(descriptor, 65536)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


_workers_allowed = threading.BoundedSemaphore(max(os.cpu_count() or 1, 2))
"""Comparisons at once in this process; further threads wait."""
