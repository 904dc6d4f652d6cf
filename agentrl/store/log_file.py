"""Log file: the records of the package's loggers, one JSON object a line, in the run directory.

- Each process of a run writes a file of its own, ``logs/NAME.jsonl``.
- INFO and above are kept; what was passed as ``extra`` stands beside the message.
- A record that cannot be written is reported once on standard error; logging never ends a run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.jsonl import JsonlWriter
from agentrl.store.masking import SecretMask

_PACKAGE = "agentrl"
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
"""Attributes that every record has; the others were passed as ``extra``."""


class LogFile(logging.Handler):
    """Appends records to a file of JSON lines.

    Args:
        path: the file; its folder is made.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._lines = JsonlWriter(path, mask=SecretMask())
        self._host = socket.gethostname()
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; called under the handler's own lock, from any thread."""
        try:
            self._lines.append(self._fields(record))
        except StoreError as error:
            if not self._failed:
                self._failed = True
                sys.stderr.write(f"the log is incomplete from here on: {error}\n")

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._lines.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        # a name that begins with _ is another library's, such as Ray's own time
        extra = {
            name: value
            for name, value in record.__dict__.items()
            if name not in _OWN and not name.startswith("_")
        }
        fields = {
            **extra,
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "host": self._host,
            "pid": os.getpid(),
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        return fields


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Keeps the package's records of this process in ``path`` until the block ends.

    Raises:
        StoreError: the file cannot be opened.
    """
    logger = logging.getLogger(_PACKAGE)
    handler = LogFile(path)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
