"""Name lock: lets one process at a time write under a name."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.write_error import os_refusals


def hold_name(path: Path) -> int:
    """Hold a lock file until the returned descriptor is closed or the process dies.

    A POSIX record lock: children forked by the process do not hold it, so that a run can be resumed
    while what a killed one started is still ending.

    Raises:
        StoreError: another process holds it, or the file cannot be made.
    """
    with os_refusals(f"{path} cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        why = f"cannot be locked: {error.strerror or error}"
        if isinstance(error, BlockingIOError):
            why = "is held by another process: end it first, or write under another name"
        raise StoreError(f"{path} {why}") from error
    return file
