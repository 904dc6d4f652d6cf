"""Place: the file and line of an object or an error in a user's code."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from agentrl.errors import AgentRLError

_OWN = str(Path(__file__).resolve().parents[2]) + os.sep
_STDLIB = (sysconfig.get_path("stdlib"), "<")
# Of whatever environment: one may stand on another.
_PACKAGES = ("site-packages", "dist-packages")
_LONGEST = 4000


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
    except (OSError, TypeError):
        # Built in, or typed at a prompt.
        return ""
    return f"{file}:{line}" if file else ""


def raised_at(error: BaseException) -> str:
    """``path/to/file.py:12`` of the user's line that an error came from; empty where no user's code
    took part.

    It is the innermost line outside of agentrl and of installed packages, of the first cause that
    has one. Where none has, the innermost line of an installed package that raised an error of its
    own: a user's environment may be installed too.
    """
    cause: BaseException | None = _single(error)
    users: list[tuple[str, int]] = []
    while cause is not None:
        frames = [
            (frame.f_code.co_filename, number)
            for frame, number in traceback.walk_tb(cause.__traceback__)
        ]
        users = [place for place in frames if is_users(place[0])] or users
        cause = cause.__cause__ and _single(cause.__cause__)
    if not users and not isinstance(_root(error), AgentRLError):
        raising = [place for place in frames if not is_stdlib(place[0])][-1:]
        users = [place for place in raising if not place[0].startswith(_OWN)]
    return f"{users[-1][0]}:{users[-1][1]}" if users else ""


def described(error: BaseException) -> str:
    """``ValueError: its text (file.py:12)``, with the user's line that it came from."""
    place = raised_at(error)
    return said_by(error) + (f" ({place})" if place else "")


def said_by(error: BaseException) -> str:
    """``ValueError: its text``; of a group of errors, the first one's."""
    error = _single(error)
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        # The boundary: the text of a user's own error may raise anything.
        return f"{type(error).__name__}, whose text cannot be had"


def users_traceback(error: BaseException) -> str:
    """The traceback of the first cause from the first frame outside of agentrl on; empty without
    such a frame.
    """
    root = _root(error)
    trace = root.__traceback__
    # What stands before the user's frames is only how they were called.
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(
        (_OWN, *_STDLIB)
    ):
        trace = trace.tb_next
    if trace is None or not raised_at(error):
        return ""
    text = "".join(
        traceback.format_exception(type(root), root, trace, chain=False)
    ).rstrip()
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}\n ...\n{text[-_LONGEST // 2 :]}"


def is_stdlib(file: str) -> bool:
    """Whether a frame's file is of the standard library, or none."""
    return file.startswith(_STDLIB)


def is_users(file: str) -> bool:
    """Whether a frame's file is neither agentrl's, nor installed."""
    return not file.startswith(_OWN) and not _installed(file)


def exited(error: BaseException) -> bool:
    """Whether it is an exit of a user's code, or the error that one became."""
    if isinstance(error, AgentRLError):
        return error.exit_code != type(error).exit_code
    return not isinstance(error, Exception)


def told_of(error: Exception) -> dict[str, Any]:
    """What a trajectory keeps of the failure that ended it: the user's line and traceback, and the
    exit code of a user's exit; empty where none of a user's code took part.
    """
    place = raised_at(error)
    told: dict[str, Any] = {}
    if place:
        told = {"raised_at": place, "traceback": users_traceback(error)}
    if isinstance(error, AgentRLError) and exited(error):
        told["exit_code"] = error.exit_code
    return told


def _installed(file: str) -> bool:
    return is_stdlib(file) or not set(_PACKAGES).isdisjoint(Path(file).parts)


def _root(error: BaseException) -> BaseException:
    """What was raised first, where each error names the one that it was raised from."""
    error = _single(error)
    while error.__cause__ is not None:
        error = _single(error.__cause__)
    return error


def _single(error: BaseException) -> BaseException:
    """The first error of a group, as a ``TaskGroup`` raises one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
