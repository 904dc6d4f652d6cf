"""Object place: the file and line of an object in a user's code."""

from __future__ import annotations

import inspect
from typing import Any


def place_of_object(target: Any) -> str:
    """``path/to/file.py:12`` where a function, a class or an object's class is defined; empty
    without a source.
    """
    target = inspect.unwrap(getattr(target, "func", target))
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = type(target)
    try:
        file = inspect.getsourcefile(target)
        (_, line) = inspect.getsourcelines(target)
    except (OSError, TypeError):  # built in, or typed at a prompt
        return ""
    return f"{file}:{line}" if file else ""
