"""Wall: every call of a user's Python goes through it, and ends when it must.

- An exit (``exit()``, a KeyboardInterrupt that a line of code raised) ends the call alone.
- A cancellation passes where the task was asked to end; one that nobody asked for is a failure.
- Ctrl-C passes, and so does the end of a coroutine that Python closes.
- A coroutine that swallows its own cancellation is given up after a grace.

A task can only ask its coroutine to end. Code that catches ``CancelledError`` and goes on would
outlive every deadline, and its episode with it. Here it has a grace, in which it may clean up, and
is closed after that. It runs in the caller's own task: what is opened at ``reset`` may be bound to
the task that closes it.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from agentrl.errors import AgentRLError, RunInterruptedError
from agentrl.types.clock import PausableTimeout, counted_by
from agentrl.types.user_code.place import described, exited, is_stdlib, place_of_object

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that a coroutine may go on after it was cancelled."""

T = TypeVar("T")

Failed: TypeAlias = Callable[[BaseException], BaseException]
"""Makes a boundary's error of what was raised behind it; what it gives back as it is stays so."""

EXIT_CODE = 3
"""What a command returns where a user's code exited instead of returning or raising."""

InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a synchronous call in a thread, as ``BoundedThreads.run`` does."""

_RAISE = dis.opmap["RAISE_VARARGS"]


@types.coroutine
def ended_when_cancelled(
    work: Coroutine[Any, Any, T],
    name: Callable[[], str],
    left: Callable[[], None] = lambda: None,
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
        except BaseException as error:  # noqa: BLE001
            # What it waited for failed, or the task was cancelled: the coroutine gets it.
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
    except BaseException as error:  # noqa: BLE001
        # The boundary: the user's code may raise anything on its way out.
        raised = f"; it raised {described(error)}"
    logger.warning(
        "%s swallowed its cancellation and was given up %g s later%s; let CancelledError pass",
        name,
        GRACE_S,
        raised,
        extra={"event": "user_code_given_up", "what": name},
    )


class DeadlineError(TimeoutError):
    """The deadline of a call passed; a TimeoutError that the call itself raised is another
    thing.
    """


def failed_as(made: Callable[[str], AgentRLError], what: str, remedy: str = "") -> Failed:
    """Makes an error that tells what was raised, with the user's line.

    Args:
        made: makes it of its text.
        what: stands before what was raised.
        remedy: stands behind it.
    """
    return lambda error: made(f"{what} {described(error)}{remedy}")


@contextmanager
def wall(
    failed: Failed, *, passes: tuple[type[BaseException], ...] = (AgentRLError,)
) -> Iterator[None]:
    """A user's code runs within.

    Args:
        failed: makes the boundary's error of what was raised.
        passes: errors whose boundary is known already.

    Raises:
        BaseException: what ``failed`` made; a cancellation that was asked for; Ctrl-C.
    """
    asked = _num_asked()
    try:
        yield
    except passes:
        raise
    except BaseException as error:
        if _is_ours(error, asked):
            raise
        made = failed(error)
        if made is error:
            raise
        if exited(error) and isinstance(made, AgentRLError):
            made.exit_code = EXIT_CODE
        raise made from error


async def call_user(
    function: Callable[[], Any],
    *,
    failed: Failed,
    in_thread: InThread,
    deadline_s: float | None = None,
    passes: tuple[type[BaseException], ...] = (AgentRLError,),
) -> Any:
    """What a user's function gives: on the event loop where it is async, in a thread where it is
    not.

    Args:
        function: what is called; ``functools.partial`` gives it arguments.
        failed, passes: see ``wall``; ``failed`` is given a DeadlineError where the deadline passed.
        in_thread: runs what is synchronous.
        deadline_s: seconds that it may take; None sets no limit.
    """

    async def work() -> Any:
        is_async = inspect.iscoroutinefunction(function)
        given = function() if is_async else await in_thread(function)
        return await given if inspect.isawaitable(given) else given

    with wall(failed, passes=passes):
        return await by_deadline(work(), deadline_s, lambda: _name_of(function))


async def by_deadline(
    work: Coroutine[Any, Any, T],
    deadline_s: float | None,
    name: Callable[[], str],
    left: Callable[[], None] = lambda: None,
) -> T:
    """What a coroutine gives, unless the deadline passes first: then it is cancelled, and given up
    where it goes on.

    Args:
        work: the coroutine.
        deadline_s: seconds that it may take, without waits that others cause, such as for a thread
            or a sandbox; None sets no limit.
        name, left: see ``ended_when_cancelled``.

    Raises:
        DeadlineError: the deadline passed, whatever ``work`` made of that.
        AgentRLError: it passed, and ``work`` failed for a reason of ours while it was ended.
    """
    try:
        async with PausableTimeout(deadline_s) as deadline:
            with counted_by(deadline):
                given = await ended_when_cancelled(work, name, left)
    except AgentRLError:
        raise
    except Exception:
        if not deadline.expired():
            raise
    else:
        if not deadline.expired():
            return given
    raise DeadlineError(f"took longer than {deadline_s:g} s")


def _name_of(function: Callable[[], Any]) -> str:
    target = getattr(function, "func", function)
    name = getattr(target, "__qualname__", type(target).__name__)
    place = place_of_object(target)
    return f"{name} ({place})" if place else name


def _num_asked() -> int:
    """How often the running task was asked to end, as ``Task.cancelling`` counts it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # A thread without a loop.
        return 0
    return 0 if task is None else task.cancelling()


def _is_ours(error: BaseException, asked: int) -> bool:
    """Whether an exit comes from outside of the user's code."""
    if isinstance(error, asyncio.CancelledError):
        return _num_asked() > asked
    # Of our handler of signals.
    if isinstance(error, RunInterruptedError):
        return True
    return isinstance(error, KeyboardInterrupt | GeneratorExit) and not _was_raised_by_hand(
        error
    )


def _was_raised_by_hand(error: BaseException) -> bool:
    """Whether a ``raise`` of the user's raised it, and neither the interpreter, as at a signal or
    at the end of a coroutine, nor a handler of the standard library.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return code.co_code[trace.tb_lasti] == _RAISE and not is_stdlib(code.co_filename)
