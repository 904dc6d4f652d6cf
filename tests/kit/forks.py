"""Forks: processes of a test, of a server that has imported what takes long and started nothing."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.kit.waiting import DEADLINE_S

FORKS = multiprocessing.get_context("forkserver")
# One server forks for all tests of a process.
FORKS.set_forkserver_preload(
    [
        "agentrl.cli.main",
        "agentrl.run.trainer",
        "agentrl.engines.torch.engine",
        "transformers.models.qwen3.modeling_qwen3",
        "tests.training.harness",
        "tests.run.tiny_run",
        __name__,
    ]
)


def agentrl(
    words: Iterable[str | Path],
    log: Path,
    sent: tuple[signal.Signals, str, int] | None = None,
) -> BaseProcess:
    """``agentrl WORDS`` in a session of its own, whose output is added to a log; ``sent`` is what
    ``send_itself`` is given there.
    """
    # The server has the environment of the test that started it, such as another home, in which Ray
    # would look for the token of a cluster.
    given = ([str(word) for word in words], log, sent, dict(os.environ))
    process = FORKS.Process(target=_command_line, args=given)
    process.start()
    return process


def _command_line(
    words: list[str],
    log: Path,
    sent: tuple[signal.Signals, str, int] | None,
    environment: dict[str, str],
) -> None:
    from agentrl.cli.main import main

    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(told, 1)
    os.dup2(told, 2)
    sys.argv = ["agentrl", *words]
    if sent is not None:
        send_itself(*sent)
    main()


def finish(process: BaseProcess, code: int = 0) -> None:
    """Waits for the end of a process, which must come by itself and with this exit code."""
    try:
        process.join(DEADLINE_S)
        assert process.exitcode == code
    finally:
        process.kill()


def send_itself(sign: signal.Signals, at: str, call: int) -> None:
    """Makes this process send itself a signal before call number ``call`` of
    ``module:Class.method``.

    By SIGKILL it dies as one that is shot: nothing is flushed, closed or cleaned up.
    """
    module, _, path = at.partition(":")
    *owners, method = path.split(".")
    holder: Any = import_module(module)
    for owner in owners:
        holder = getattr(holder, owner)
    real, calls = getattr(holder, method), itertools.count()

    def shot(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), sign)
        return real(*args, **kwargs)

    setattr(holder, method, shot)
