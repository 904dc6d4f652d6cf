"""Resources: what the tools of a process share, and how what tools hold is set up and closed.

- ``env.resources`` names a function each; it is called once in a process, at the first need.
- A resource is passed to tools by parameter name.
- At the process's end the tools that episodes shared are closed, then all else, the last opened
  first.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import keyword
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from agentrl.errors import ConfigError, ToolError
from agentrl.tools.base import FunctionTool, Tool
from agentrl.tools.context import ToolContext
from agentrl.tools.factory import EPISODE_PARAMETERS
from agentrl.tools.threads import TOOL_THREADS
from agentrl.types import users_traceback
from agentrl.types.section import Arguments, Section
from agentrl.types.user_code.load import check_takes, load_function
from agentrl.types.user_code.place import described
from agentrl.types.user_code.wall import InThread, call_user, failed_as, wall

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RESERVED = EPISODE_PARAMETERS | {"self", "cls", "state", "sandbox"}

# Guards both below: environments are made in threads. One that waits for another's opening needs
# that same resource, or one that is opened behind it.
_lock = threading.RLock()
_opened: dict[Hashable, Any] = {}
_tools: weakref.WeakValueDictionary[int, Tool] = weakref.WeakValueDictionary()


class ResourceReference(Section):
    """One resource of the tools. A plain text is short for ``function`` alone."""

    function: str
    """``file.py:name`` or ``module:name`` of a synchronous function that opens it. It is called
    once in each process that plays episodes; what it gives is closed at the end by its ``close``,
    where it has one."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function."""


def opened(key: Hashable, opens: Callable[[], T]) -> T:
    """What all of this process share under a key, opened where it is not yet."""
    with _lock:
        if key not in _opened:
            _opened[key] = opens()
        found: T = _opened[key]
        return found


def share(tool: Tool) -> None:
    """The tool is used by episodes that do not own it: it is closed at the end of this process."""
    with _lock:
        _tools[id(tool)] = tool


def owners_of(tools: Iterable[Tool]) -> list[tuple[object, str]]:
    """The objects that own the tools, each once, in order, with the name of a tool."""
    return list({id(tool.owner): (tool.owner, tool.spec.name) for tool in tools}.values())


async def set_up(owner: object, context: ToolContext) -> None:
    """Await the owner's ``setup``, where it has one; a synchronous one runs in a tool's thread.

    Args:
        owner: of an episode's own tools.
        context: given to a ``setup`` that takes a ``context``; of the episode, without a sandbox.

    Raises:
        ToolError: it raised; another attempt may succeed.
    """
    setup = getattr(owner, "setup", None)
    if setup is None:
        return
    given = {"context": context} if "context" in inspect.signature(setup).parameters else {}

    def failed(error: BaseException) -> ToolError:
        made = ToolError(
            f"{type(owner).__name__}.setup raised {described(error)}; no call was made yet",
            retryable=True,
        )
        made.add_note(users_traceback(error))
        return made

    await call_user(partial(setup, **given), failed=failed, in_thread=TOOL_THREADS.run)


async def close_owner(owner: object, in_thread: InThread = TOOL_THREADS.run) -> None:
    """Await the owner's ``close``, where it has one; a synchronous one runs in a tool's thread.

    Raises:
        ToolError: it raised.
    """
    closing = getattr(owner, "close", None)
    if closing is not None:
        failed = failed_as(ToolError, f"{type(owner).__name__}.close raised")
        await call_user(closing, failed=failed, in_thread=in_thread)


def close_tools(tools: Iterable[Tool]) -> None:
    """Close tools from synchronous code, each whatever another one raises; what they raise is
    logged.
    """
    _close(owners_of(tools))


def close_shared_tools() -> None:
    """Close every shared tool of this process, then every resource; called at its exit."""
    with _lock:
        owners = owners_of(_tools.values())
        owners += [
            (one, f"resource {type(one).__name__}") for one in reversed(_opened.values())
        ]
        _tools.clear()
        _opened.clear()
    _close(owners)


def _close(owners: Iterable[tuple[object, str]]) -> None:
    """Closes each in this thread, or beside the loop that runs in it."""

    async def close_all() -> None:
        for owner, name in owners:
            try:
                # At the interpreter's exit no thread can be started.
                await close_owner(owner, _here)
            except Exception as error:  # noqa: BLE001
                # The boundary: this is the user's own code.
                logger.warning(
                    "closing %r raised %s: %s",
                    name,
                    type(error).__name__,
                    error,
                    extra={"event": "tool_close_failed", "tool": name},
                )

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(close_all())
        return
    closing = threading.Thread(
        target=lambda: asyncio.run(close_all()), name="agentrl-close-tools"
    )
    closing.start()
    closing.join()


async def _here(work: Callable[[], Any]) -> Any:
    return work()


atexit.register(close_shared_tools)


def check_resources(
    resources: Mapping[str, object], base_dir: str | Path | None = None
) -> Mapping[str, object]:
    """The resources themselves, if their names and functions can be used; nothing is opened.

    Raises:
        ConfigError: a name is reserved or no parameter's, or text names nothing.
    """
    for name, entry in resources.items():
        broken = partial(_broken, name)
        if not name.isidentifier() or keyword.iskeyword(name) or name in _RESERVED:
            raise broken(
                f" must be the name of a parameter, and none of {', '.join(sorted(_RESERVED))}, "
                "which tools are given anyway; rename it"
            )
        if isinstance(entry, ResourceReference):
            takes = f"({', '.join(f'{key}=' for key in entry.args)})"
            function = load_function(entry.function, base_dir, broken, takes)
            check_takes(function, entry.function, broken, takes, **entry.args)
            if inspect.iscoroutinefunction(function):
                raise broken(
                    f"={entry.function!r} must be synchronous, since episodes of several event "
                    "loops share what it opens; open what belongs to a loop in a toolset's setup"
                )
    return resources


def open_resources(
    resources: Mapping[str, object], base_dir: str | Path | None = None
) -> dict[str, Any]:
    """The resources by name, each opened once in this process; objects as they are.

    Raises:
        ConfigError: as ``check_resources``.
        ToolError: a function raised; another attempt may succeed.
    """
    unopened = {
        name: entry
        for name, entry in resources.items()
        if not isinstance(entry, ResourceReference) or _key(entry, base_dir) not in _opened
    }
    check_resources(unopened, base_dir)
    return {
        name: _open(name, entry, base_dir)
        if isinstance(entry, ResourceReference)
        else entry
        for name, entry in resources.items()
    }


def with_resources(tool: Tool, resources: Mapping[str, Any]) -> Tool:
    """The tool with the resources that it takes.

    Raises:
        ToolError: there is none of a name that it takes, or the model has an argument of that name.
    """
    arguments = tool.spec.parameters.get("properties", {})
    if both := sorted(resources.keys() & set(arguments)):
        raise ToolError(
            f"tool {tool.spec.name!r}: argument {both[0]!r} is the model's, and the name of a "
            "resource (ToolEnv.resources); rename one, or write Resource[...] as the parameter's "
            "type where the tool is to be given the resource"
        )
    if not isinstance(tool, FunctionTool) or not tool.resources:
        return tool
    if lacking := sorted(tool.resources - resources.keys()):
        raise ToolError(
            f"tool {tool.spec.name!r} takes the resource {lacking[0]!r}, and the resources are: "
            f"{', '.join(sorted(resources)) or 'none'}; name what opens it in ToolEnv.resources, "
            f"as {{{lacking[0]}: file.py:open_{lacking[0]}}}"
        )
    return tool.given({name: resources[name] for name in tool.resources})


def _key(entry: ResourceReference, base_dir: str | Path | None) -> tuple[str, str, str]:
    return (
        entry.function,
        json.dumps(entry.args, sort_keys=True, default=repr),
        str(base_dir),
    )


def _open(name: str, entry: ResourceReference, base_dir: str | Path | None) -> Any:
    def opens() -> Any:
        function = load_function(entry.function, base_dir, partial(_broken, name), "()")
        what = f"ToolEnv.resources: {name}: {entry.function} raised"
        with wall(
            failed_as(partial(ToolError, retryable=True), what, "; it could not be opened")
        ):
            found = function(**entry.args)
        logger.info(
            "opened the resource %s",
            name,
            extra={"event": "resource_opened", "resource": name},
        )
        return found

    return opened(_key(entry, base_dir), opens)


def _broken(name: str, rule: str) -> ConfigError:
    return ConfigError(f"ToolEnv.resources: {name}{rule}", fields=["ToolEnv.resources"])
