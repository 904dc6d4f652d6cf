"""ScriptedEngine: answers from a script, with true usage, versions and states; for tests."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from agentrl.engines.base import EngineHealth, EngineLayout, EngineNotice, PauseMode, Tag
from agentrl.engines.checks import PutTensors, check_request, require_new
from agentrl.engines.life import EngineLife
from agentrl.errors import EngineError
from agentrl.types import (
    Completion,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    Segment,
    SegmentKind,
    TokenUsage,
)
from agentrl.types.arrays import F32, I32, common_prefix
from agentrl.types.clock import PausableTimeout

if TYPE_CHECKING:
    import torch


Script: TypeAlias = (
    Callable[[GenerateRequest], Sequence[int]]
    | Mapping[str, Sequence[Sequence[int]]]
    | Sequence[Sequence[int]]
)


@dataclass(eq=False)
class ScriptedEngine:
    """Answers from a script; ``RolloutEngine`` and ``EngineControl`` without a model.

    An answer ends at the first stop token in it, or with the token that completes a stop string
    (``stop``), or is cut at ``max_new_tokens`` (``length``); one that simply ends counts as
    ``stop``, so a script may answer with nothing.

    Args:
        script: a function of the request; or the answers of each session by turn; or the turns of
            every session.
        vocab_size, context_tokens: what requests are checked against.
        logprob: of every scripted token, at most 0.
        latency: awaited before an answer, such as ``lambda request: asyncio.sleep(0.01)`` or an
            event's ``wait``.
        failures: the error that call number n (from 0, in order of arrival) raises.
        shapes: the tensors that an update must put; None accepts any.
        policy_version: served at first.
        decode: ids to text, for stop strings; without it, requests with any are refused.
    """

    script: Script
    _: KW_ONLY
    vocab_size: int = 1 << 20
    context_tokens: int = 1 << 20
    logprob: float = -1.0
    latency: Callable[[GenerateRequest], Awaitable[object]] | None = None
    failures: Mapping[int, Exception] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] | None = None
    policy_version: InitVar[int] = 0
    decode: Callable[[I32], str] | None = None

    def __post_init__(self, policy_version: int) -> None:
        self.requests: list[GenerateRequest] = []
        self._turns: dict[str, int] = {}
        self._kv: dict[str, I32] = {}
        self._checksums: dict[str, int] = {}
        self._waits: dict[str, tuple[asyncio.AbstractEventLoop, PausableTimeout]] = {}
        self._aborted: set[str] = set()
        self._life = EngineLife(policy_version)
        # guards what runs and who waits: requests come from any event loop, moves from the owner's
        # thread
        self._state = threading.Condition()
        self._running: set[str] = set()
        self._sleepers: list[asyncio.Future[None]] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        """The script's answer; see ``RolloutEngine.generate``."""
        check_request(
            request, self.info(), stop_strings=self.decode is not None, images=True
        )
        require_new(request, self._waits)
        call = len(self.requests)
        self.requests.append(request)
        if call in self.failures:
            raise self.failures[call]
        limit_s = math.inf if request.deadline_s is None else request.deadline_s
        scope = PausableTimeout(limit_s, self._life.clock)
        self._waits[request.request_id] = (asyncio.get_running_loop(), scope)
        try:
            async with scope:
                await self._ready(request)
            self._life.require_version(request)
            return self._completion(request, *self._answer(request))
        except TimeoutError:
            if not scope.expired():
                raise
            if self._life.closed:
                raise self._life.error() from None
            if request.request_id in self._aborted:
                return self._completion(request, [], "abort")
            raise EngineError(
                f"request {request.request_id!r} spent its deadline_s={request.deadline_s}; "
                "raise it"
            ) from None
        finally:
            del self._waits[request.request_id]
            self._aborted.discard(request.request_id)
            with self._state:
                self._running.discard(request.request_id)
                self._state.notify_all()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests that wait for their latency, with finish_reason ``abort`` and no token."""
        for request_id in request_ids:
            if request_id in self._waits:
                self._aborted.add(request_id)
                _end(*self._waits[request_id])

    async def release(self, session_id: str) -> None:
        """Forgets a session's KV; its script goes on at the next turn."""
        self._kv.pop(session_id, None)

    def info(self) -> EngineInfo:
        """What the engine claims to be."""
        return EngineInfo(
            "scripted",
            "scripted",
            self.vocab_size,
            self.context_tokens,
            self._life.policy_version,
        )

    def pause(self, mode: PauseMode) -> None:
        """Requests that arrive wait; ``drain`` also waits for those in flight. The other modes
        answer them after ``resume``, under the version served then."""
        with self._state:
            self._life.pause(mode)
            if mode == "drain":
                self._state.wait_for(lambda: not self._running)

    def resume(self) -> None:
        """Serves again."""
        with self._state:
            self._life.resume()
        self._wake_sleepers()

    def sleep(self, tags: Sequence[Tag]) -> None:
        """Drops KV for ``kv_cache``; requests wait until ``wake`` and ``resume``, and after
        ``weights`` for an update too."""
        with self._state:
            if self._running and self._life.paused != "retract":
                raise EngineError(
                    f"sleep: {len(self._running)} requests are running; call pause('retract') "
                    "first",
                    retryable=False,
                )
            self._life.sleep(tags)
            if "kv_cache" in tags:
                self._kv.clear()

    def wake(self, tags: Sequence[Tag]) -> None:
        """Ends the sleep."""
        with self._state:
            self._life.wake(tags)

    def layout(self) -> EngineLayout:
        """Whole tensors, compared in float32."""
        return EngineLayout(dtype="float32")

    def begin_update(self, version: int) -> ScriptedUpdateSession:
        """See ``EngineControl.begin_update``."""
        with self._state:
            self._life.begin_update(version)
        return ScriptedUpdateSession(self, version)

    def checksum(self) -> Mapping[str, int]:
        """Of the tensors of the last update."""
        return dict(self._checksums)

    def score(self, token_ids: Sequence[int]) -> Mapping[str, F32]:
        """The logprob of every scripted token."""
        return {"scripted": np.full(len(token_ids) - 1, self.logprob, dtype=np.float32)}

    def take_notices(self) -> list[EngineNotice]:
        """Nothing: it either works or fails."""
        return []

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``."""
        kv_tokens = sum(ids.size for ids in self._kv.values())
        waiting = len(self._sleepers)
        version = self._life.policy_version
        return EngineHealth(
            self._life.state, len(self._running), waiting, kv_tokens, version
        )

    def close(self) -> None:
        """Requests in flight and later ones fail."""
        with self._state:
            self._life.close("it was closed")
        for wait in list(self._waits.values()):
            _end(*wait)

    def mark_corrupt(self, cause: str) -> None:
        """Gives an update up halfway: nothing is answered any more."""
        with self._state:
            self._life.mark_corrupt(cause)
        self._wake_sleepers()

    def end_update(self, version: int | None, checksums: Mapping[str, int]) -> None:
        """Serves ``version`` with the checksums of what was put; None where nothing was."""
        with self._state:
            self._life.end_update(version)
            if version is not None:
                self._checksums = dict(checksums)
                self._kv.clear()

    async def _serving(self) -> None:
        """Waits until the engine serves."""
        while True:
            with self._state:
                if self._life.closed or self._life.fault:
                    raise self._life.error()
                if self._life.paused is None:
                    return
                woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._sleepers.append(woken)
            try:
                # It is woken by its cancellation, of which ``wait`` makes no exception.
                await asyncio.wait([woken])
            finally:
                with self._state:
                    if woken in self._sleepers:  # it was ended in the pause
                        self._sleepers.remove(woken)

    def _wake_sleepers(self) -> None:
        with self._state:
            for woken in self._sleepers:
                woken.get_loop().call_soon_threadsafe(woken.cancel)
            self._sleepers.clear()

    async def _ready(self, request: GenerateRequest) -> None:
        await self._serving()
        with self._state:
            self._running.add(request.request_id)
        if self.latency is not None:
            await self.latency(request)
            if self._life.paused != "drain":
                await self._serving()

    def _answer(
        self, request: GenerateRequest
    ) -> tuple[Sequence[int], FinishReason, str | None]:
        """The script's answer up to where it ends, and why it ends there."""
        sampling = request.sampling
        ids = self._scripted(request)[: sampling.max_new_tokens]
        for length, token in enumerate(ids, 1):
            text = ""
            if sampling.stop and self.decode is not None:
                text = self.decode(np.asarray(ids[:length], dtype=np.int32))
            found = next((string for string in sampling.stop if string in text), None)
            if found is not None or token in sampling.stop_token_ids:
                return ids[:length], "stop", found
        return ids, "length" if len(ids) == sampling.max_new_tokens else "stop", None

    def _scripted(self, request: GenerateRequest) -> Sequence[int]:
        session = request.session_id
        if callable(self.script):
            return self.script(request)
        turns = (
            self.script.get(session, ())
            if isinstance(self.script, Mapping)
            else self.script
        )
        turn = self._turns.get(session, 0)
        if turn >= len(turns):
            raise EngineError(
                f"the script has {len(turns)} answers for session {session!r}, call {turn + 1} has "
                "none; add one",
                retryable=False,
            )
        self._turns[session] = turn + 1
        return turns[turn]

    def _completion(
        self,
        request: GenerateRequest,
        ids: Sequence[int],
        reason: FinishReason,
        stop_string: str | None = None,
    ) -> Completion:
        held = self._kv.get(request.session_id, request.token_ids[:0])
        sampled = np.array(ids, dtype=np.int32)
        sequence = np.concatenate([request.token_ids, sampled])
        self._kv[request.session_id] = sequence[:-1]
        logprobs = np.full(len(ids), self.logprob, dtype=np.float32)
        segment = Segment(SegmentKind.POLICY, sampled, logprobs, self._life.policy_version)
        return Completion(
            request_id=request.request_id,
            segments=(segment,) if sampled.size else (),
            finish_reason=reason,
            stop_string=stop_string,
            usage=TokenUsage(int(request.token_ids.size), len(ids), int(sequence.size) - 1),
            cached_tokens=common_prefix(held, request.token_ids),
        )


@dataclass
class ScriptedUpdateSession:
    """``UpdateSession`` of a ScriptedEngine: checks names and shapes, keeps checksums."""

    engine: ScriptedEngine
    version: int

    def __post_init__(self) -> None:
        shapes = self.engine.shapes
        self._tensors = None if shapes is None else PutTensors(shapes)
        self._put: dict[str, int] = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one tensor.

        Raises:
            EngineError: an unknown name or another shape; the engine is corrupt.
        """
        # torch is loaded with the first tensor
        from agentrl.engines.checksum import tensor_checksum

        if self._tensors is not None and (
            fault := self._tensors.fault(name, tuple(tensor.shape))
        ):
            self._fail(fault)
        self._put[name] = tensor_checksum(name, tensor.float())

    def commit(self) -> None:
        """Serves the new version."""
        if self._tensors is not None and (missing := self._tensors.missing()):
            self._fail(missing)
        self.engine.end_update(self.version, self._put)

    def abort(self) -> None:
        """Gives up; the engine is corrupt where anything was put."""
        if self._put:
            self.engine.mark_corrupt("an update was given up after tensors were put")
        else:
            self.engine.end_update(None, {})

    def _fail(self, problem: str) -> None:
        self.engine.mark_corrupt(problem)
        raise EngineError(f"weight update: {problem}", retryable=False)


def _end(loop: asyncio.AbstractEventLoop, scope: PausableTimeout) -> None:
    """Ends a request's wait, from any thread; later than its answer that changes nothing."""
    loop.call_soon_threadsafe(scope.spend)
