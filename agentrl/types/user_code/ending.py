"""Ending: runs a user's coroutine, and gives up on one that swallows its own cancellation.

A task can only ask its coroutine to end. Code that catches ``CancelledError`` and goes on would
outlive every deadline, and its episode with it. Here it has a grace, in which it may clean up, and
is closed after that. It runs in the caller's own task: what is opened at ``reset`` may be bound to
the task that closes it.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from agentrl.types.user_code.place import described

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 5.0
"""Seconds that a coroutine may go on after it was cancelled."""


def _nothing() -> None:
    return None


@types.coroutine
def ended_when_cancelled(
    work: Coroutine[Any, Any, T], name: Callable[[], str], left: Callable[[], None] = _nothing
) -> Generator[Any, Any, T]:
    """What ``work`` gives.

    Args:
        work: the user's coroutine.
        name: says what it is, for the warning.
        left: called where it is given up.

    Raises:
        CancelledError: as the caller was cancelled, at the latest after ``GRACE_S``.
        BaseException: what ``work`` raises.
    """
    thrown: BaseException | None = None
    asked: asyncio.CancelledError | None = None
    ends_at = 0.0
    while True:
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        thrown = None
        if asked is not None and asyncio.get_running_loop().time() >= ends_at:
            _close(work, name())
            left()
            raise asked
        try:
            if asked is None or waits_for is None:
                yield waits_for
            else:
                yield from _until(waits_for, ends_at)
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            thrown = error
            if asked is None and isinstance(error, asyncio.CancelledError):
                asked = error
                ends_at = asyncio.get_running_loop().time() + GRACE_S


def _until(waits_for: asyncio.Future[Any], ends_at: float) -> Generator[Any, Any, None]:
    """Waits until a future is done, or the time is up."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    # As a task does with what its coroutine yields.
    waits_for._asyncio_future_blocking = False
    waits_for.add_done_callback(wake)
    timer = loop.call_at(ends_at, wake)
    try:
        yield from woken
    finally:
        timer.cancel()
        waits_for.remove_done_callback(wake)


def _close(work: Coroutine[Any, Any, Any], name: str) -> None:
    """Ends a coroutine where it waits; nothing wakes it any more, also where it swallows that."""
    raised = ""
    try:
        work.close()
    except BaseException as error:  # noqa: BLE001 - boundary: the user's code on its way out
        raised = f"; it raised {described(error)}"
    logger.warning(
        "%s swallowed its cancellation and was given up %g s later%s; let CancelledError pass",
        name,
        GRACE_S,
        raised,
        extra={"event": "user_code_given_up", "what": name},
    )
