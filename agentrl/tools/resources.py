"""Resources: what the tools of a process share, such as a client, an index or a database.

- ``env.resources`` names a function each; it is called once in a process, at the first need.
- A resource is passed to tools by parameter name, and closed behind the tools at the process's end.
"""

from __future__ import annotations

import inspect
import json
import keyword
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, ToolError
from agentrl.tools.base import FunctionTool, Tool
from agentrl.tools.factory import EPISODE_PARAMETERS
from agentrl.types.user_code.function import check_takes, load_function
from agentrl.types.user_code.wall import failed_as, wall

logger = logging.getLogger(__name__)

_RESERVED = EPISODE_PARAMETERS | {"self", "cls", "state", "sandbox"}


@dataclass(frozen=True)
class ResourceReference:
    """A resource by the function that opens it.

    Args:
        function: ``file.py:name`` or ``module:name``, synchronous.
        args: its keyword arguments, JSON.
    """

    function: str
    args: Mapping[str, Any] = field(default_factory=dict, hash=False)


class _Opened:
    """The open resources of this process, in the order of opening."""

    def __init__(self) -> None:
        # Guards both: environments are made in threads. One that waits for another's opening needs
        # that same resource, or one that is opened behind it.
        self.lock = threading.RLock()
        self.values: dict[tuple[str, str, str], Any] = {}


_opened = _Opened()


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
        if not isinstance(entry, ResourceReference) or _key(entry, base_dir) not in _opened.values
    }
    check_resources(unopened, base_dir)
    return {
        name: _open(name, entry, base_dir) if isinstance(entry, ResourceReference) else entry
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


def take_opened() -> Iterable[Any]:
    """Every open resource of this process, the last opened first; they are its caller's to
    close.
    """
    with _opened.lock:
        values = list(reversed(_opened.values.values()))
        _opened.values.clear()
    return values


def _key(entry: ResourceReference, base_dir: str | Path | None) -> tuple[str, str, str]:
    return entry.function, json.dumps(entry.args, sort_keys=True, default=repr), str(base_dir)


def _open(name: str, entry: ResourceReference, base_dir: str | Path | None) -> Any:
    key = _key(entry, base_dir)
    with _opened.lock:
        if key not in _opened.values:
            function = load_function(entry.function, base_dir, partial(_broken, name), "()")
            what = f"ToolEnv.resources: {name}: {entry.function} raised"
            unopened = partial(ToolError, retryable=True)
            with wall(failed_as(unopened, what, "; it could not be opened")):
                _opened.values[key] = function(**entry.args)
            logger.info(
                "opened the resource %s", name, extra={"event": "resource_opened", "resource": name}
            )
        return _opened.values[key]


def _broken(name: str, rule: str) -> ConfigError:
    return ConfigError(f"ToolEnv.resources: {name}{rule}", fields=["ToolEnv.resources"])
