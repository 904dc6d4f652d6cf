"""Async environment: drives an environment on an event loop and holds it to its contract."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

from agentrl.envs.contract import (
    Finding,
    may_hold_images,
    observation_findings,
    step_findings,
)
from agentrl.envs.env import Env
from agentrl.errors import EnvError
from agentrl.tools import BoundedThreads, TokenEnds
from agentrl.types import Action, Blob, Observation, StepResult
from agentrl.types.user_code.place import described
from agentrl.types.user_code.values import private_copy
from agentrl.types.user_code.wall import Failed, call_user, failed_as, wall

ENV_THREADS = BoundedThreads(32, "agentrl-env")
"""The threads of every environment with synchronous methods in this process."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_MAX_STATE_BYTES = 2**20
"""A larger one, pickled after each turn of each episode, would keep other episodes waiting."""


async def build_env(make: Callable[[], Env]) -> Env:
    """An environment, made in one of ``ENV_THREADS``, its tools included; one that is made when
    nobody waits for it any more is closed there.

    Raises:
        AgentRLError: as ``make`` does.
    """
    # Guards made and given_up, between the thread that makes it and the loop that may give it up.
    lock = threading.Lock()
    made = list[Env]()
    given_up = False

    def work() -> Env:
        env = make()
        with lock:
            made.append(env)
            closing = env.close() if given_up else None
        if inspect.iscoroutine(closing):
            asyncio.run(closing)
        return env

    try:
        return await ENV_THREADS.run(work)
    except asyncio.CancelledError:
        with lock:
            given_up = True
            left = list(made)
        # Made just now, and not given to anyone.
        for env in left:
            await call_env(env, "close")
        raise


async def call_env(
    env: Env, verb: Literal["reset", "step", "close", "snapshot"], *args: Any, **kwargs: Any
) -> Any:
    """Call a method of ``env``: on the loop if it is async, in one of ``ENV_THREADS`` if it is not.

    Raises:
        EnvError: the method raised; an AgentRLError, such as SandboxError, passes as it is.
    """
    failed = failed_as(EnvError, f"{type(env).__name__}.{verb} raised")
    method = partial(getattr(env, verb), *args, **kwargs)
    return await call_user(method, failed=failed, in_thread=ENV_THREADS.run)


class AsyncEnv:
    """Drives one Env and holds both sides to the contract.

    Neither sees what the other does to an action or an answer later: each is copied.

    Args:
        env: fresh from its factory.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        inner = env.unwrapped
        self._name = type(inner).__name__
        self._state: Literal["new", "running", "ended", "closed"] = "new"
        self.has_snapshot = getattr(inner.snapshot, "__func__", None) is not Env.snapshot
        """Whether the environment has a state for people to look at."""

    def use_tokenizer(self, token_ends: TokenEnds) -> None:
        """See ``Env.use_tokenizer``.

        Raises:
            EnvError: the environment raised.
        """
        with wall(failed_as(EnvError, f"{self._name}.use_tokenizer raised")):
            self.env.use_tokenizer(token_ends)

    async def reset(self, *, seed: int) -> Observation:
        """The opening observation.

        Raises:
            EnvError: it is not the first call, or the environment broke a rule or raised.
        """
        if self._state != "new":
            raise EnvError(
                f"{self._name}: an Env is single use, so reset comes once and first; build another "
                "one"
            )
        self._state = "running"
        observation = await call_env(self.env, "reset", seed=seed)
        copied: Observation = await self._held(
            observation, observation_findings(observation, verb="reset")
        )
        return copied

    async def step(self, action: Action) -> StepResult:
        """What ``action`` caused.

        Raises:
            EnvError: before reset or after the end, or the environment broke a rule or raised.
        """
        if self._state != "running":
            remedy = (
                "call reset first"
                if self._state == "new"
                else "the episode has ended; build another Env"
            )
            raise EnvError(
                f"{self._name}: step comes after reset and before the end; {remedy}"
            )
        result = await call_env(self.env, "step", private_copy(action))
        copied: StepResult = await self._held(result, step_findings(result))
        if copied.terminated or copied.truncated:
            self._state = "ended"
        return copied

    async def snapshot(self) -> Blob | None:
        """The state for people to look at, as JSON; None where there is nothing to see.

        Raises:
            EnvError: the environment raised, or gave something that is no JSON.
        """
        state = await call_env(self.env, "snapshot")
        if state is None:
            return None
        what = f"{self._name}.snapshot must give JSON, got {type(state).__name__}:"
        with wall(failed_as(EnvError, what)):
            return Blob.of(await ENV_THREADS.run(lambda: _json(state)))

    async def save(self) -> bytes:
        """The state between two steps, as ``restore`` takes it.

        Raises:
            EnvError: it cannot be kept: there is none, it cannot be pickled, or it is too large.
        """
        with wall(self._of_state("pickled")):
            return await ENV_THREADS.run(self._pickled)

    async def restore(self, state: bytes) -> None:
        """Goes on from a state that ``save`` gave, in place of ``reset``.

        Raises:
            EnvError: it is not the first call, or the state cannot be read back.
        """
        if self._state != "new":
            raise EnvError(
                f"{self._name}: a state is restored first and once; build another Env"
            )
        self._state = "running"
        with wall(self._of_state("read back"), passes=()):
            await ENV_THREADS.run(lambda: self.env.load_state_dict(pickle.loads(state)))

    async def close(self) -> None:
        """Close the environment, once; later calls do nothing.

        Raises:
            EnvError: the environment raised.
        """
        if self._state != "closed":
            self._state = "closed"
            await call_env(self.env, "close")

    def _of_state(self, done: str) -> Failed:
        return failed_as(EnvError, f"the state of {self._name} cannot be {done}:")

    def _pickled(self) -> bytes:
        state = self.env.state_dict()
        if state is None:
            raise EnvError(f"{self._name}.state_dict gives none here")
        try:
            return _pickled(state)
        except _UNPICKLABLE as error:
            raise EnvError(
                f"the state of {self._name} cannot be pickled: {described(error)}; leave out "
                f"{', '.join(_unpicklable(state))}, by state_dict or a Wrapper's kept"
            ) from error

    async def _held(self, given: Any, findings: Iterator[Finding]) -> Any:
        """A copy of what the environment gave, where it breaks no rule."""

        def read() -> tuple[str, Any]:
            broken = "; ".join(map(str, findings))
            return broken, None if broken else private_copy(given)

        with wall(failed_as(EnvError, f"what {self._name} gave cannot be read:")):
            # An image takes tenths of a second, for which other episodes would wait.
            has_images = may_hold_images(given)
            broken, copied = await ENV_THREADS.run(read) if has_images else read()
        if broken:
            self._state = "ended"
            raise EnvError(f"{self._name} breaks the contract of an Env: {broken}")
        return copied


_UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)


def _pickled(state: object) -> bytes:
    file = _BoundedFile()
    pickle.Pickler(file, pickle.HIGHEST_PROTOCOL).dump(state)
    return file.getvalue()


def _unpicklable(state: Mapping[Any, Any]) -> Iterator[str]:
    """The names of what cannot be pickled, such as a lock."""
    for name, value in state.items():
        try:
            _pickled(value)
        except _UNPICKLABLE:
            yield from _unpicklable(value) if isinstance(value, Mapping) else [str(name)]


def _json(state: object) -> bytes:
    # Half a surrogate pair, which UTF-8 lacks, becomes the escape that JSON has for it.
    return _ENCODER.encode(state).encode(errors="backslashreplace")


class _BoundedFile(io.BytesIO):
    """Takes a state up to its largest size."""

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if self.tell() > _MAX_STATE_BYTES:
            raise EnvError(
                f"the state has more than {_MAX_STATE_BYTES} bytes; let state_dict give what "
                "matters of it"
            )
        return written


@asynccontextmanager
async def opened_env(
    make: Callable[[], Env], *, seed: int
) -> AsyncIterator[tuple[AsyncEnv, Observation]]:
    """An environment after its ``reset``, and how it opens, where no episode plays in it.

    Args:
        make: builds it.
        seed: of the ``reset``.

    Raises:
        AgentRLError: there is no environment, or ``reset`` raised or broke a rule.
    """
    env = AsyncEnv(await build_env(make))
    try:
        yield env, await env.reset(seed=seed)
    finally:
        await env.close()
