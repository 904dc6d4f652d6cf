"""Terminal log: the package's warnings on the terminal, wherever that is at the moment.

- One place shows them at a time: the command line's standard error, or a run's display while it
  lasts.
- Of warnings that differ by numbers and names alone, one a minute is shown; the next one shown, or
  the end, says how many there were.
- What an engine or a worker overcame reaches the display as an incident, once for the whole run;
  the records of their loggers are kept in the log file alone.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator

_PACKAGE = "agentrl"
_TOLD_AS_INCIDENTS = ("agentrl.engines.", "agentrl.controller.cluster.")
_APART_S = 60.0
_MOST_KINDS = 1000
_WORD = re.compile(r"(?<!\.py:)\b[\w-]++")
"""Any word, but no line of a program. What a policy wrote may be in a message: a pattern that
looked for a number within a word would begin at each of its hyphens again."""
_NUMBER = re.compile(r"\d")


class _TerminalLog(logging.Handler):
    """Shows records of WARNING and above."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show
        # By kind: when one was shown, and how many came since. Guarded by the handler's own lock.
        self._shown: dict[str, tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Called under the handler's own lock, from any thread."""
        told_elsewhere = record.name.startswith(_TOLD_AS_INCIDENTS)
        # who shows the error that ended a run shows it last
        if told_elsewhere or getattr(record, "event", "") == "run_failed":
            return
        text = record.getMessage()
        # what tells one case from another: a number, or a word with one in it
        kind = _WORD.sub(lambda word: "#" if _NUMBER.search(word[0]) else word[0], text)
        shown_at, more = self._shown.get(kind, (-_APART_S, 0))
        if record.created - shown_at < _APART_S:
            self._shown[kind] = (shown_at, more + 1)
        else:
            if len(self._shown) == _MOST_KINDS:
                self._tell_rest()
            self._shown[kind] = (record.created, 0)
            self._show(text + (f" (and {more} more like it before)" if more else ""))

    def close(self) -> None:
        """Says how many there were that nobody saw."""
        self._tell_rest()
        super().close()

    def _tell_rest(self) -> None:
        for kind, (_, more) in self._shown.items():
            if more:
                self._show(f"{more} more like: {kind.partition(chr(10))[0]}")
        self._shown.clear()


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
        handler.close()
        for other in before:
            logger.addHandler(other)
