"""Stop request: a run is asked to end, and ends where nothing of it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import RunInterruptedError


class StopRequest:
    """Set once, by a signal's handler or another thread; looked at by the loop wherever it waits.

    While ``deferred`` is set the loop ends by itself at its next look; otherwise nothing could be
    lost yet, and the caller of ``ask`` may end the run at once.
    """

    def __init__(self) -> None:
        # No lock guards these: a signal's handler may interrupt the very thread that would hold it.
        self.by = ""
        """Who asked first, such as ``SIGTERM``; empty while nobody did."""
        self.deferred = False

    def ask(self, by: str) -> None:
        """Asks the run to end; a second time changes nothing."""
        self.by = self.by or by

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """The loop runs within.

        Raises:
            RunInterruptedError: the run was asked to end before.
        """
        self.deferred = True
        try:
            self.check()
            yield
        finally:
            self.deferred = False

    def check(self) -> None:
        """Ends the run where it was asked to.

        Raises:
            RunInterruptedError: it was.
        """
        if self.by:
            raise RunInterruptedError(f"interrupted by {self.by}")
