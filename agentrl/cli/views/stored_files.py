"""A stored file that cannot be read is the data's fault on the command line, not the program's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import DataError, StoreError

__all__ = ["reading_stored_files"]


@contextmanager
def reading_stored_files() -> Iterator[None]:
    """Turns a StoreError within into a DataError, which ends the command with exit code 3 and without a traceback."""
    try:
        yield
    except StoreError as error:
        raise DataError(str(error)) from error
