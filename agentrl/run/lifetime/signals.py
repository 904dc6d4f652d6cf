"""Signals that ask a run to end: SIGTERM (scancel, Kubernetes) and SIGUSR1
(``sbatch --signal=B:USR1@120``).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from agentrl.controller.stop_request import StopRequest

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stopping_signals(stop: StopRequest) -> Iterator[Callable[[], None]]:
    """Within, such a signal asks ``stop``; where nothing could be lost yet it ends the
    run at once.

    A handler that the caller of the trainer has installed stays, and outside of the main
    thread nothing is installed, since Python allows it there alone.

    Yields:
        Installs the handlers once more, for after Ray has started: it takes SIGTERM to print a
        native stack.

    Raises:
        RunInterruptedError: in the main thread, by a signal.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        first = not stop.by
        stop.ask(signal.Signals(number).name)
        if first and not stop.deferred:
            stop.check()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if _is_free(handler)]

    def install() -> None:
        for number in ours:
            signal.signal(number, ask)

    install()
    try:
        yield install
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _is_free(handler: Any) -> bool:
    """Whether nobody but the system, or Ray, handles a signal."""
    return handler is signal.SIG_DFL or str(getattr(handler, "__module__", "")).startswith(
        "ray."
    )
