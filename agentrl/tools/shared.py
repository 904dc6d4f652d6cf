"""Shared tools: tools of many episodes, closed once at the end of their process."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Iterable, Sequence

from agentrl.tools.base import Tool
from agentrl.tools.owners import close_owner, owners_of

logger = logging.getLogger(__name__)
_lock = threading.Lock()  # guards _shared: episodes share tools on any thread
_shared: weakref.WeakValueDictionary[int, Tool] = weakref.WeakValueDictionary()


def share(tool: Tool) -> None:
    """The tool is used by episodes that do not own it: it is closed at the end of this process."""
    with _lock:
        _shared[id(tool)] = tool


def close_shared_tools() -> None:
    """Close every shared tool of this process; called at its exit."""
    with _lock:
        tools = list(_shared.values())
        _shared.clear()
    close_tools(tools)


def close_tools(tools: Iterable[Tool]) -> None:
    """Close tools from synchronous code, each whatever another one raises; what they raise is
    logged.
    """
    tools = list(tools)
    if not tools:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # as at the interpreter's exit, where no thread can be started
        asyncio.run(_close_all(tools))
        return
    # The caller's loop runs in this thread, and close() is awaited in another.
    closing = threading.Thread(
        target=lambda: asyncio.run(_close_all(tools)), name="agentrl-close-tools"
    )
    closing.start()
    closing.join()


async def _close_all(tools: Sequence[Tool]) -> None:
    names = {id(tool.owner): tool.spec.name for tool in tools}
    for owner in owners_of(tools):
        try:
            await close_owner(owner)
        except Exception as error:  # noqa: BLE001 - boundary: the user's own code
            logger.warning(
                "closing tool %r raised %s: %s",
                names[id(owner)],
                type(error).__name__,
                error,
                extra={"event": "tool_close_failed", "tool": names[id(owner)]},
            )


atexit.register(close_shared_tools)
