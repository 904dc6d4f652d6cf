"""Memory: what a process holds, and how a failed allocation is known."""

from __future__ import annotations

import mmap
import re
from contextlib import suppress
from pathlib import Path

OUT_OF_MEMORY = re.compile(
    "can(no|')t allocate memory|not enough memory|out of ?memory|ALLOC_FAILED",
    re.IGNORECASE,
)
"""In what torch, CUDA or a server says where an allocation failed."""


def rss_gib(pid: int | str = "self") -> float | None:
    """GiB that a process of this machine holds; None where there is none, or it cannot be known."""
    with suppress(OSError):
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * mmap.PAGESIZE / 2**30
    return None
