"""Servers engine: the two faces of an engine over a pool of servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import (
    EngineHealth,
    EngineLayout,
    EngineNotice,
    PauseMode,
    Tag,
    UpdateSession,
    WeightSender,
)
from agentrl.engines.servers.client import ServerKind
from agentrl.engines.servers.control import ServerControl
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import array_checksum, tensor_shapes
from agentrl.errors import EngineError
from agentrl.types import Completion, EngineInfo, GenerateRequest

T = TypeVar("T")

_CLOSE_S = 60.0


class ServersEngine:
    """``RolloutEngine`` and ``EngineControl`` over servers of one kind.

    Its servers are called from one thread of its own, so that it may be used from any event loop.
    Requests of a session go to the server that has the session's KV. A request that a server fails
    is sent to another one.

    Args:
        kind: of the servers.
        sender: brings an update's tensors to them; None for weights that never change.

    Raises:
        MachineError: a server does not come up, or its version is too old.
        EngineError: a given server serves another model.
        DataError: the model's folder cannot be read.
    """

    def __init__(self, kind: ServerKind, sender: WeightSender | None = None) -> None:
        self._kind = kind
        self._shapes = tensor_shapes(Path(kind.place.model))
        self._loop = asyncio.new_event_loop()
        self._core = ServerControl(kind, self._loop, receives_weights=sender is not None)
        # runs the loop; all of pool, requests and updates happens there
        self._thread = threading.Thread(
            target=self._run, name=f"agentrl-{kind.spec.section}-engine", daemon=True
        )
        self._thread.start()
        self._sender = sender
        try:
            self._call(self._core.start())
        except BaseException:
            self.close()
            raise

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``. The servers may draw with seeds of their own."""
        return await asyncio.wrap_future(self._submit(self._core.requests.generate(request)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``; the completion holds what was generated until then."""
        await asyncio.wrap_future(self._submit(self._core.requests.abort(tuple(request_ids))))

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``."""
        await asyncio.wrap_future(self._submit(self._core.requests.release(session_id)))

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``."""
        return self._core.state.info()

    def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``. A server that cannot say which weights made a token is
        drained in any mode."""
        self._call(self._core.pause(mode))

    def resume(self) -> None:
        """Goes on; see ``EngineControl.resume``."""
        self._call(self._core.resume())

    def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``; a server without a memory saver keeps its memory."""
        self._call(self._core.sleep(tuple(tags)))

    def wake(self, tags: Sequence[Tag]) -> None:
        """Takes back what ``sleep`` released; other tags are left out."""
        self._call(self._core.wake(tuple(tags)))

    def layout(self) -> EngineLayout:
        """Whole tensors under Hugging Face names; each server cuts its ranks' parts."""
        return EngineLayout(kind="whole", dtype=self._kind.place.dtype)

    def begin_update(self, version: int) -> UpdateSession:
        """See ``EngineControl.begin_update``.

        Raises:
            EngineError: the engine is not paused, or was built without a sender.
        """
        if self._sender is None:
            raise EngineError(
                "begin_update: this engine was built without a sender, so its weights cannot "
                "change; build it with one",
                retryable=False,
            )
        self._call(self._core.begin_update(version))
        tied = frozenset({"lm_head.weight"} if self._kind.sizes.ties_embeddings else ())
        return self._sender.begin(ServerUpdate(self._core, version, self._shapes, tied))

    def checksum(self) -> Mapping[str, int]:
        """See ``EngineControl.checksum``: of what was put last, after the servers' own digests,
        where they have any, were found to be those of what was put.

        Raises:
            EngineError: a server holds something else, or nothing was put yet.
        """
        self._call(self._core.verify())
        return {
            name: array_checksum(array) for name, array in (self._core.state.weights or {}).items()
        }

    def score(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[np.float32]]:
        """See ``EngineControl.score``: of every server that serves."""
        return self._call(self._core.score(tuple(token_ids)))

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``; answers at once, from what is known on this side."""
        own = self._core.state
        requests = self._core.requests
        return EngineHealth(
            state=own.life.state if self._thread.is_alive() else "closed",
            running=requests.running,
            waiting=requests.waiting,
            kv_tokens=sum(tuple(own.kv.values())),
            policy_version=own.life.policy_version,
        )

    def take_notices(self) -> list[EngineNotice]:
        """Servers that were lost, came back or were given up since the last call."""
        return self._core.pool.take_notices()

    def server_states(self) -> Mapping[str, str]:
        """Each server's name and state."""
        return {server.name: server.state for server in self._core.pool.servers}

    def close(self) -> None:
        """Ends the servers that it started; requests in flight fail. A second call does nothing."""
        if not self._thread.is_alive():
            return
        if self._sender is not None:
            self._sender.close()
        try:
            self._submit(self._core.close()).result(_CLOSE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            rest = asyncio.all_tasks(self._loop)
            for task in rest:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        finally:
            self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Any:
        if not self._thread.is_alive():
            work.close()
            raise EngineError("the engine is closed; build it again")
        return self._core.submit(work)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a control call on the engine's loop and waits for it."""
        result: T = self._submit(work).result()
        return result
