"""Tool owners: the objects behind an episode's own tools, set up, saved and closed once each."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from agentrl.errors import ToolError
from agentrl.tools.base import Tool
from agentrl.tools.context import ToolContext
from agentrl.tools.threads import TOOL_THREADS
from agentrl.types import users_traceback
from agentrl.types.user_code.place import described
from agentrl.types.user_code.wall import call_user, failed_as, wall


def owners_of(tools: Iterable[Tool]) -> list[object]:
    """The objects that own the tools, each once, in order."""
    return list({id(tool.owner): tool.owner for tool in tools}.values())


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


async def close_owner(owner: object) -> None:
    """Await the owner's ``close``, where it has one. It is called here also where it is
    synchronous: at the interpreter's exit no thread can be started.

    Raises:
        ToolError: it raised.
    """
    closing = getattr(owner, "close", None)
    with wall(failed_as(ToolError, f"{type(owner).__name__}.close raised")):
        result = None if closing is None else closing()
        if inspect.isawaitable(result):
            await result


def states_of(owners: Sequence[object]) -> list[Any] | None:
    """What each owner's ``state_dict`` gives; None where one has none to give."""
    states = [getattr(owner, "state_dict", _none)() for owner in owners]
    return None if any(state is None for state in states) else states


def restore_states(owners: Sequence[Any], states: Sequence[Any]) -> None:
    """Gives each owner's ``load_state_dict`` what its ``state_dict`` gave.

    Raises:
        ToolError: there are other owners than those that were saved.
    """
    if len(owners) != len(states):
        raise ToolError(
            f"the episode was saved with {len(states)} tools of its own, and has {len(owners)}; "
            "go on with the configuration that it was begun with"
        )
    for owner, state in zip(owners, states, strict=True):
        owner.load_state_dict(state)


def _none() -> None:
    return None
