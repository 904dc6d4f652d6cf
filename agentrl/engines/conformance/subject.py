"""Subject: an engine under test, and what its rules need: requests, and waits that end."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import time
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from agentrl.engines.base import (
    EnginePlace,
    EngineSpec,
    EngineTraits,
    HostedEngine,
    WeightSender,
)
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest, SamplingParams
from agentrl.types.user_code.contract import BrokenRuleError, Contract, hold

Call: TypeAlias = asyncio.Task[Completion]

PROMPT = (0, 1, 2)
SHORT = SamplingParams(4)
GREEDY = SHORT.greedy()
"""For what is read again: no token that a model may not be given is drawn by chance."""
_LOOK_S = 0.002
_GLANCE_S = 0.05


@dataclass(eq=False)
class Subject(Contract):
    """An engine under test; see ``check_engine``.

    Attributes:
        engine: the one built last.
        info: what it said of itself then.
        told: tokens of the request that ``running`` sent last, as they came.
        streams: whether it tells tokens as they come.
        takes_updates: whether its weights can change.
    """

    spec: EngineSpec
    place: EnginePlace
    sender: Callable[[], WeightSender] | None
    tensors: Sequence[tuple[str, Any]]
    pictures: Sequence[GenerateRequest]
    patience_s: float
    streams: bool = False
    engine: Any = None

    def __post_init__(self) -> None:
        super().__init__()
        self._count = itertools.count()
        self._begun: list[Call] = []

    def check_specification(self) -> None:
        """Rules that need no engine."""
        spec = self.spec
        with self.rule("a specification names its section"):
            hold(isinstance(spec, EngineSpec), f"{spec!r} is no EngineSpec")
            hold(spec.section.isidentifier(), f"section is {spec.section!r}")
        with self.rule("a specification is picklable"):
            hold(pickle.loads(pickle.dumps(spec)) == spec, "it comes back as another one")
        with self.rule("traits() tells the engine's abilities"):
            traits = spec.traits()
            hold(isinstance(traits, EngineTraits), f"got {traits!r}")
            self.takes_updates = self.sender is not None or traits.transport is None

    async def build(self) -> bool:
        """A new engine; whether it can be used."""
        with self.rule("build() returns an engine with both faces"):
            sender = self.sender and self.sender()
            place = self.spec.resolve(self.place)
            self.engine = await to_thread(self.spec.build, place, sender)
            faces = [name for name in dir(HostedEngine) if not name.startswith("_")]
            missing = [
                name for name in faces if not callable(getattr(self.engine, name, None))
            ]
            hold(not missing, f"it has no {', '.join(missing)}()")
            self.info = self.engine.info()
            self.hold_state("serving")
            return True
        return False

    @asynccontextmanager
    async def holds(self, rule: str) -> AsyncIterator[None]:
        """A rule; the requests and the pause that it leaves end with it."""
        with self.rule(rule):
            yield
        with self.rule(rule):
            for call in self._begun:
                call.cancel()
            await self.until(lambda: all(call.done() for call in self._begun))
            self._begun.clear()
            if self.engine.health().state == "paused":
                await to_thread(self.engine.resume)
            await self.until(lambda: not self.engine.health().running)

    async def until(self, look: Callable[[], object]) -> None:
        """Waits for what must happen."""
        end = time.monotonic() + self.patience_s
        while not look():
            hold(time.monotonic() < end, f"it did not happen in {self.patience_s:g} s")
            await asyncio.sleep(_LOOK_S)

    def request(
        self,
        ids: Sequence[int] = PROMPT,
        sampling: SamplingParams = SHORT,
        session: str = "",
        **own: Any,
    ) -> GenerateRequest:
        """One of a new name."""
        name = f"check-{next(self._count)}"
        given = np.array(ids, np.int32)
        return GenerateRequest(name, session or name, given, sampling, seed=1, **own)

    def long(self, **own: Any) -> GenerateRequest:
        """One that fills the context."""
        room = self.place.context_tokens - len(PROMPT)
        return self.request(sampling=replace(GREEDY, max_new_tokens=room), **own)

    def begin(self, request: GenerateRequest) -> Call:
        """Sends a request."""
        self._begun.append(asyncio.ensure_future(self.engine.generate(request)))
        return self._begun[-1]

    async def answer(self, call: Call) -> Completion:
        """Waits for what becomes of a request."""
        await self.until(call.done)
        hold(not call.cancelled(), "its caller was cancelled")
        return call.result()

    async def ask(self, request: GenerateRequest) -> Completion:
        """Sends a request, and waits."""
        return await self.answer(self.begin(request))

    async def running(self) -> tuple[GenerateRequest, Call]:
        """A long request of which the engine has the first tokens."""
        self.told: list[int] = []
        request = self.long(on_tokens=lambda ids, _: self.told.extend(ids.tolist()))
        call = self.begin(request)
        await self.until(
            lambda: (
                self.told
                or call.done()
                or (self.engine.health().running and not self.streams)
            )
        )
        hold(
            not call.done(),
            "it ended before anything could happen to it; raise context_tokens",
        )
        return request, call

    async def held_back(self, request: GenerateRequest) -> Call:
        """A request that a paused engine does not answer."""
        call = self.begin(request)
        await asyncio.wait([call], timeout=_GLANCE_S)
        hold(not call.done(), "a request was answered in the pause")
        return call

    def hold_state(self, wanted: str) -> None:
        """What the engine says of itself."""
        hold_same("health().state", self.engine.health().state, wanted)


def hold_same(what: str, found: object, wanted: object) -> None:
    """Holds that something is what it must be."""
    hold(found == wanted, f"{what}: {found}, not {wanted}")


async def hold_refused(what: Awaitable[object], *verdict: bool) -> None:
    """Holds that an EngineError is raised, which is retryable or not where that matters."""
    try:
        await what
    except EngineError as error:
        hold(
            not verdict or error.retryable in verdict,
            f"retryable is {error.retryable}: {error}",
        )
        return
    raise BrokenRuleError("no EngineError was raised")
