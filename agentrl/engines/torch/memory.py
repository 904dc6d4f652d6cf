"""Memory: an allocation of torch that failed."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.metrics.memory import OUT_OF_MEMORY, rss_gib


def out_of_memory(what: str, error: BaseException, lower: Iterable[str]) -> str:
    """A sentence on an allocation that failed, on a device or the host; empty for another error.
    What a GPU holds is in the error itself.

    Args:
        what: was done, and of which size.
        error: that was raised.
        lower: the remedies; settings as ``SpecClass.field``.
    """
    found = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error))
    if not (found or isinstance(error, MemoryError)):
        return ""
    why = str(error).strip().partition("\n")[0]
    held = f"this process holds {rss_gib() or 0:.2f} GiB"
    return f"{what} ran out of memory: {why}; {held}; {', or '.join(lower)}"
