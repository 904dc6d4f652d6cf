"""Shared tools: tools of many episodes, closed once at the end of their process, and the resources
behind them.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from agentrl.tools.base import Tool
from agentrl.tools.owners import close_owner, owners_of
from agentrl.tools.resources import take_opened

logger = logging.getLogger(__name__)
_lock = threading.Lock()  # guards _shared: episodes share tools on any thread
_shared: weakref.WeakValueDictionary[int, Tool] = weakref.WeakValueDictionary()


def share(tool: Tool) -> None:
    """The tool is used by episodes that do not own it: it is closed at the end of this process."""
    with _lock:
        _shared[id(tool)] = tool


def close_shared_tools() -> None:
    """Close every shared tool of this process, then every resource; called at its exit."""
    with _lock:
        tools = list(_shared.values())
        _shared.clear()
    names = {id(tool.owner): tool.spec.name for tool in tools}
    resources = [*_servers(), *take_opened()]
    _close([*owners_of(tools), *resources], names)


def _servers() -> Sequence[object]:
    """The MCP servers that episodes share; none where the package was never needed."""
    module = sys.modules.get("agentrl.tools.mcp.mcp_tool")
    return [] if module is None else module.take_servers()


def close_tools(tools: Iterable[Tool]) -> None:
    """Close tools from synchronous code, each whatever another one raises; what they raise is
    logged.
    """
    tools = list(tools)
    names = {id(tool.owner): tool.spec.name for tool in tools}
    _close(owners_of(tools), names)


def _close(owners: Sequence[object], names: Mapping[int, str]) -> None:
    if not owners:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # as at the interpreter's exit, where no thread can be started
        asyncio.run(_close_all(owners, names))
        return
    # The caller's loop runs in this thread, and close() is awaited in another.
    closing = threading.Thread(
        target=lambda: asyncio.run(_close_all(owners, names)), name="agentrl-close-tools"
    )
    closing.start()
    closing.join()


async def _close_all(owners: Sequence[object], names: Mapping[int, str]) -> None:
    for owner in owners:
        name = names.get(id(owner), f"resource {type(owner).__name__}")
        try:
            await close_owner(owner)
        except Exception as error:  # noqa: BLE001 - boundary: the user's own code
            logger.warning(
                "closing %r raised %s: %s",
                name,
                type(error).__name__,
                error,
                extra={"event": "tool_close_failed", "tool": name},
            )


atexit.register(close_shared_tools)
