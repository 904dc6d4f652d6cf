"""Places in a user's code: the file and line that an error or an object comes from."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from pathlib import Path
from typing import Any

__all__ = ["place_of_error", "place_of_object"]

_OWN = str(Path(__file__).parents[1]) + "/"
_INSTALLED = tuple(
    {str(Path(sysconfig.get_path(name))) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def place_of_error(error: BaseException) -> str:
    """``FILE:LINE`` of the user's code that raised, also where a library that it called did; empty where there is none.

    That is the innermost frame outside of agentrl, the standard library and installed packages; where all of them are
    installed, the outermost outside of agentrl.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OWN, "<frozen", "<string"))
    ]
    written = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    frame = written[-1] if written else frames[0] if frames else None
    return f"{frame.filename}:{frame.lineno}" if frame else ""


def place_of_object(target: Any) -> str:
    """``FILE:LINE`` where a function or class is defined, or the class of an object; empty where it has no source."""
    target = inspect.unwrap(getattr(target, "func", target))
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = type(target)
    try:
        file, (_, line) = inspect.getsourcefile(target), inspect.getsourcelines(target)
    except (OSError, TypeError):  # built in, or typed at a prompt
        return ""
    return f"{file}:{line}" if file else ""
