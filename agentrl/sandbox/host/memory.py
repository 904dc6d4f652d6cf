"""What makes the memory of a run countable, and a run the first to die where the machine has none left."""

from __future__ import annotations

import contextlib
import errno

from .landlock import prctl

_PR_SET_THP_DISABLE = 41
_FIRST_TO_DIE = 1000


def without_huge_pages() -> None:
    """No huge page for this process and its descendants: one of its small pages, held anywhere, would keep all of it.

    The filter of a run lets nobody switch them on again.

    Raises:
        OSError: the kernel refused.
    """
    try:
        prctl(_PR_SET_THP_DISABLE, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel without huge pages to switch off (gVisor)
            raise


def die_first() -> None:
    """Let the kernel end this process before its host, and its host's owner, where memory runs out."""
    with contextlib.suppress(FileNotFoundError), open("/proc/self/oom_score_adj", "w") as file:  # no /proc: gVisor
        file.write(str(_FIRST_TO_DIE))
