"""ScriptedEngine: answers from a script, with true usage, versions and states; for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import EngineHealth, EngineLayout, EngineNotice, PauseMode, Tag
from agentrl.engines.checks import check_request
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
from agentrl.types.checksum import tensor_checksum

if TYPE_CHECKING:
    import torch


Script: TypeAlias = (
    Callable[[GenerateRequest], Sequence[int]]
    | Mapping[str, Sequence[Sequence[int]]]
    | Sequence[Sequence[int]]
)


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

    def __init__(
        self,
        script: Script,
        *,
        vocab_size: int = 1 << 20,
        context_tokens: int = 1 << 20,
        logprob: float = -1.0,
        latency: Callable[[GenerateRequest], Awaitable[object]] | None = None,
        failures: Mapping[int, EngineError] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        policy_version: int = 0,
        decode: Callable[[npt.NDArray[np.int32]], str] | None = None,
    ) -> None:
        self.requests: list[GenerateRequest] = []
        self._script = script
        self._vocab_size = vocab_size
        self._context_tokens = context_tokens
        self._logprob = logprob
        self._latency = latency
        self._failures = dict(failures or {})
        self._shapes = shapes
        self._decode = decode
        self._turns: dict[str, int] = {}
        self._kv: dict[str, npt.NDArray[np.int32]] = {}
        self._checksums: dict[str, int] = {}
        self._waits: dict[str, _Wait] = {}
        self._life = EngineLife(policy_version)
        # guards what runs and who waits: requests come from any event loop, moves from the owner's
        # thread
        self._state = threading.Condition()
        self._running: set[str] = set()
        self._draining = False
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        """The script's answer; see ``RolloutEngine.generate``."""
        check_request(request, self.info(), stop_strings=self._decode is not None, images=True)
        if request.request_id in self._waits:
            raise EngineError(
                f"request_id {request.request_id!r} is already in flight; ids must be unique"
            )
        call = len(self.requests)
        self.requests.append(request)
        if call in self._failures:
            raise self._failures[call]
        try:
            aborted = await self._wait(request)
            if not aborted and request.min_version > self._life.policy_version:
                raise EngineError(
                    f"request {request.request_id!r} needs min_version={request.min_version}, the "
                    f"engine serves policy_version={self._life.policy_version}; send it to an "
                    "engine that was updated"
                )
            return self._completion(request, aborted=aborted)
        finally:
            with self._state:
                self._running.discard(request.request_id)
                self._state.notify_all()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests that wait for their latency, with finish_reason ``abort`` and no token."""
        for request_id in request_ids:
            wait = self._waits.get(request_id)
            if wait is not None:
                wait.end_soon()

    async def release(self, session_id: str) -> None:
        """Forgets a session's KV; its script goes on at the next turn."""
        self._kv.pop(session_id, None)

    def info(self) -> EngineInfo:
        """What the engine claims to be."""
        return EngineInfo(
            "scripted",
            "scripted",
            self._vocab_size,
            self._context_tokens,
            self._life.policy_version,
        )

    def pause(self, mode: PauseMode) -> None:
        """Requests that arrive wait; ``drain`` also waits for those in flight. The other modes
        answer them after ``resume``, under the version served then."""
        with self._state:
            self._life.pause(mode)
            if mode == "drain":
                self._draining = True
                self._state.wait_for(lambda: not self._running)
                self._draining = False

    def resume(self) -> None:
        """Serves again."""
        with self._state:
            self._life.resume()
        self._wake_sleepers()

    def sleep(self, tags: Sequence[Tag]) -> None:
        """Drops KV for ``kv_cache``; requests wait until ``wake`` and ``resume``."""
        with self._state:
            if self._running and self._life.paused is None:
                raise EngineError(
                    "sleep: requests are running; call pause('retract') first", retryable=False
                )
            if "kv_cache" in tags:
                self._life.sleep(["kv_cache"])
                self._kv.clear()

    def wake(self, tags: Sequence[Tag]) -> None:
        """Ends the sleep."""
        with self._state:
            if "kv_cache" in tags:
                self._life.wake(["kv_cache"])

    def layout(self) -> EngineLayout:
        """Whole tensors, compared in float32."""
        return EngineLayout(kind="whole", dtype="float32")

    def begin_update(self, version: int) -> ScriptedUpdateSession:
        """See ``EngineControl.begin_update``."""
        with self._state:
            self._life.begin_update(version)
        return ScriptedUpdateSession(self, version)

    def checksum(self) -> Mapping[str, int]:
        """Of the tensors of the last update."""
        return dict(self._checksums)

    def score(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[np.float32]]:
        """The logprob of every scripted token."""
        return {"scripted": np.full(len(token_ids) - 1, self._logprob, dtype=np.float32)}

    def take_notices(self) -> list[EngineNotice]:
        """Nothing: it either works or fails."""
        return []

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``."""
        kv_tokens = sum(ids.size for ids in self._kv.values())
        waiting = len(self._sleepers)
        version = self._life.policy_version
        return EngineHealth(self._life.state, len(self._running), waiting, kv_tokens, version)

    def close(self) -> None:
        """Requests in flight and later ones fail."""
        with self._state:
            self._life.close("it was closed")
        for wait in list(self._waits.values()):
            wait.end_soon()
        self._wake_sleepers()

    def finish_update(self, version: int, put: Mapping[str, int] | None) -> None:
        """Ends an update: with the checksums of what was put, or None where it was given up
        halfway.
        """
        with self._state:
            wanted = self._shapes or {}
            missing = [name for name in wanted if name not in (put or {})]
            problem = f"{missing[0]!r} was not sent; put every tensor" if missing else ""
            if put is None or missing:
                self._life.mark_corrupt(problem or "an update was given up after tensors were put")
                self._wake_sleepers()
            if put is not None and missing:
                raise EngineError(f"weight update: {problem}", retryable=False)
            if put is not None:
                self._life.end_update(version)
                self._checksums = dict(put)
                self._kv.clear()

    def cancel_update(self) -> None:
        """Ends an update in which nothing was put."""
        with self._state:
            self._life.end_update(None)

    def expected_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape that ``name`` must have, None for any.

        Raises:
            EngineError: no such tensor.
        """
        if self._shapes is None:
            return None
        if name not in self._shapes:
            raise EngineError(f"weight update: there is no tensor {name!r}", retryable=False)
        return self._shapes[name]

    async def _serving(self) -> None:
        """Waits until the engine serves."""
        while True:
            with self._state:
                if self._life.closed or self._life.fault:
                    raise self._life.error()
                if self._life.paused is None:
                    return
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._sleepers.append((loop, future))
            await future

    def _wake_sleepers(self) -> None:
        with self._state:
            sleepers = self._sleepers
            self._sleepers = []
        for loop, future in sleepers:
            loop.call_soon_threadsafe(_settle, future)

    async def _wait(self, request: GenerateRequest) -> bool:
        """Waits for the latency and for a pause to end; True where the request was aborted."""
        wait = self._waits[request.request_id] = _Wait(request.deadline_s)
        try:
            async with wait.scope:
                await self._ready(request)
        except TimeoutError:
            if not wait.scope.expired():
                raise
            if self._life.closed:
                raise self._life.error() from None
            if not wait.ended:
                raise EngineError(
                    f"request {request.request_id!r} spent its deadline_s={request.deadline_s}; "
                    "raise it"
                ) from None
        finally:
            del self._waits[request.request_id]
            wait.over = True
        return wait.ended

    async def _ready(self, request: GenerateRequest) -> None:
        await self._serving()
        with self._state:
            self._running.add(request.request_id)
        if self._latency is not None:
            await self._latency(request)
            if not self._draining:
                await self._serving()

    def _answer(self, request: GenerateRequest) -> Sequence[int]:
        session = request.session_id
        if callable(self._script):
            return self._script(request)
        turns = self._script.get(session, ()) if isinstance(self._script, Mapping) else self._script
        turn = self._turns.get(session, 0)
        if turn >= len(turns):
            raise EngineError(
                f"the script has {len(turns)} answers for session {session!r}, call {turn + 1} has "
                "none; add one",
                retryable=False,
            )
        self._turns[session] = turn + 1
        return turns[turn]

    def _completion(self, request: GenerateRequest, *, aborted: bool) -> Completion:
        ids = [] if aborted else [int(token) for token in self._answer(request)]
        reason: FinishReason = "abort" if aborted else "stop"
        stop_ids = request.sampling.stop_token_ids
        most = request.sampling.max_new_tokens
        stop = next((index for index, token in enumerate(ids) if token in stop_ids), None)
        ids = ids if stop is None else ids[: stop + 1]
        ids, stop_string = self._cut(ids, request.sampling.stop)
        ended = bool(stop_string) or (stop is not None and ids[-1] in stop_ids)
        if len(ids) > most or (len(ids) == most and not ended):
            ids = ids[:most]
            reason = "length"
            stop_string = None
        held = self._kv.get(request.session_id, request.token_ids[:0])
        size = min(held.size, request.token_ids.size)
        differ = held[:size] != request.token_ids[:size]
        first = int(differ.argmax()) if size else 0
        sampled = np.array(ids, dtype=np.int32)
        sequence = np.concatenate([request.token_ids, sampled])
        self._kv[request.session_id] = sequence[:-1]
        logprobs = np.full(len(ids), self._logprob, dtype=np.float32)
        segment = Segment(SegmentKind.POLICY, sampled, logprobs, self._life.policy_version)
        return Completion(
            request_id=request.request_id,
            segments=(segment,) if ids else (),
            finish_reason=reason,
            stop_string=stop_string,
            usage=TokenUsage(int(request.token_ids.size), len(ids), int(sequence.size) - 1),
            cached_tokens=first if size and differ[first] else size,
        )

    def _cut(self, ids: list[int], stop: Sequence[str]) -> tuple[list[int], str | None]:
        """The ids up to the token that completes a stop string, and that string."""
        if self._decode is None or not stop:
            return ids, None
        for length in range(1, len(ids) + 1):
            text = self._decode(np.asarray(ids[:length], dtype=np.int32))
            if found := next((string for string in stop if string in text), None):
                return ids[:length], found
        return ids, None


class _Wait:
    """A request's wait for its answer, which an abort ends."""

    __slots__ = ("_loop", "ended", "over", "scope")

    def __init__(self, seconds: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended = self.over = False
        self.scope = asyncio.timeout(seconds)

    def end_soon(self) -> None:
        """From any thread; later than the answer it changes nothing."""
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.over and not self.scope.expired():
            self.ended = True
            self.scope.reschedule(self._loop.time())


class ScriptedUpdateSession:
    """``UpdateSession`` of a ScriptedEngine: checks names and shapes, keeps checksums."""

    def __init__(self, engine: ScriptedEngine, version: int) -> None:
        self._engine = engine
        self._version = version
        self._put: dict[str, int] = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one tensor.

        Raises:
            EngineError: an unknown name or another shape; the engine is corrupt.
        """
        try:
            shape = self._engine.expected_shape(name)
            if shape is not None and tuple(tensor.shape) != shape:
                raise EngineError(
                    f"weight update: {name} must have shape {shape}, got {tuple(tensor.shape)}",
                    retryable=False,
                )
        except EngineError:
            self._engine.finish_update(self._version, None)
            raise
        self._put[name] = tensor_checksum(
            tensor.detach().float().cpu().contiguous().numpy().view(np.uint32)
        )

    def commit(self) -> None:
        """Serves the new version."""
        self._engine.finish_update(self._version, self._put)

    def abort(self) -> None:
        """Gives up; the engine is corrupt where anything was put."""
        if self._put:
            self._engine.finish_update(self._version, None)
        else:
            self._engine.cancel_update()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
