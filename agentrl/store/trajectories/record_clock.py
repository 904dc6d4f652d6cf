"""Record clock: the time of a run's records, which never falls.

Of several records of one id the newest counts, so a run that goes on after the machine's clock was
set back must not write records that look older than those it replaces.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path


class RecordClock:
    """Seconds since the epoch; each call gives more than the one before it, and more than what
    stands in the run already. Used under its owner's lock.

    Args:
        folders: whose files and folders are older than every time that is given.
    """

    def __init__(self, *folders: Path) -> None:
        self._last = max(map(_newest_change, folders), default=0.0)

    def now(self) -> float:
        """The time of the next record."""
        self._last = max(time.time(), math.nextafter(self._last, math.inf))
        return self._last


def _newest_change(folder: Path) -> float:
    """When something in a folder was last made, removed or written to; 0 where nothing is."""
    try:
        with os.scandir(folder) as entries:
            return max((entry.stat().st_mtime for entry in entries), default=0.0)
    except FileNotFoundError:
        return 0.0
