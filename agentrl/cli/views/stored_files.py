"""Stored files: reports an unreadable file as an error of the data, not of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import DataError, StoreError


@contextmanager
def reading_stored_files() -> Iterator[None]:
    """Turns a StoreError within into a DataError, which ends the command with exit code 3 and
    without a traceback.
    """
    try:
        yield
    except StoreError as error:
        raise DataError(str(error)) from error
