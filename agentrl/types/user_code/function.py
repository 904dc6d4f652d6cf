"""User functions: loads the function that a setting names, and tells what is wrong with it as an
error of that setting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from agentrl.errors import AgentRLError, ConfigError
from agentrl.types.user_code.load import load_object
from agentrl.types.user_code.wall import failed_as, wall

Broken: TypeAlias = Callable[[str], AgentRLError]
"""Makes a setting's error of the rule that it breaks, as ``partial(Section.broken, "name")`` does.
"""


def load_named(reference: str, base_dir: str | Path | None, broken: Broken) -> Any:
    """The object that a setting names.

    Args:
        reference: ``file.py:name`` or ``module:name``.
        base_dir: the folder that a relative file starts from.
        broken: of the setting.

    Raises:
        AgentRLError: as ``broken`` makes it: there is no such object, or its file cannot be
            imported.
    """
    try:
        return load_object(reference, base_dir)
    except ConfigError as error:
        made = broken(f"={reference!r} cannot be loaded: {error}")
        made.exit_code = max(error.exit_code, made.exit_code)
        raise made from error


def load_function(
    reference: str, base_dir: str | Path | None, broken: Broken, takes: str
) -> Callable[..., Any]:
    """The function or class that a setting names.

    Args:
        reference, base_dir, broken: as of ``load_named``.
        takes: the arguments in words, such as ``(rewards, state)``.

    Raises:
        AgentRLError: as ``broken`` makes it: as ``load_named``, or it is no function.
    """
    found = load_named(reference, base_dir, broken)
    if not callable(found):
        raise broken(
            f"={reference!r} must be a function or class that takes {takes}, got "
            f"{type(found).__name__}; name one"
        )
    function: Callable[..., Any] = found
    return function


def check_takes(
    function: Callable[..., Any],
    reference: str,
    broken: Broken,
    takes: str,
    *arguments: Any,
    **keywords: Any,
) -> None:
    """Refuses a function that cannot be called with these arguments; their values play no part.

    Raises:
        AgentRLError: as ``broken`` makes it.
    """
    signature = signature_of(function)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise broken(
            f"={reference!r} must take {takes}, but has the signature {signature} ({error}); "
            "change one of them"
        ) from error


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Its signature; that of any arguments for a class in C, which tells nothing of its own."""
    try:
        return inspect.signature(function)
    except ValueError:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return inspect.Signature([inspect.Parameter(kind.name.lower(), kind) for kind in kinds])


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function; where it raises or returns another type, the error names its setting.

    Args:
        function: the user's.
        returns: the type that it must return.
        broken: of the setting.
        reference: the setting's value.
        part: what the function is within the object that the setting names; empty where it is that
            object.
    """

    function: Callable[..., Any]
    returns: type
    broken: Broken
    reference: str
    part: str = ""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns.

        Raises:
            AgentRLError: as ``broken`` makes it, or the function's own.
        """
        whose = f"={self.reference!r}" + (f": its {self.part}" if self.part else "")
        with wall(failed_as(self.broken, f"{whose} raised", "; correct it")):
            found = self.function(*arguments, **keywords)
        if not isinstance(found, self.returns):
            name = self.returns.__name__
            raise self.broken(
                f"{whose} must return {'an' if name[0] in 'AEIOU' else 'a'} {name}, got "
                f"{type(found).__name__}; return one"
            )
        return found
