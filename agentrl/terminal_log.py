"""Terminal log: the package's warnings on the terminal, wherever that is at the moment.

- One place shows them at a time: the command line's standard error, or a run's display while it
  lasts.
- What an engine or a worker overcame reaches the display as an incident, once for the whole run;
  the records of their loggers are kept in the log file alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

_PACKAGE = "agentrl"
_TOLD_AS_INCIDENTS = ("agentrl.engines.", "agentrl.controller.cluster.")


class _TerminalLog(logging.Handler):
    """Shows records of WARNING and above."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's own lock, from any thread."""
        if not record.name.startswith(_TOLD_AS_INCIDENTS):
            self._show(record.getMessage())


@contextlib.contextmanager
def warnings_on(show: Callable[[str], None]) -> Iterator[None]:
    """Shows the package's warnings by ``show`` until the block ends, in place of who showed them
    before.
    """
    logger = logging.getLogger(_PACKAGE)
    before = [handler for handler in logger.handlers if isinstance(handler, _TerminalLog)]
    handler = _TerminalLog(show)
    for other in before:
        logger.removeHandler(other)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for other in before:
            logger.addHandler(other)
