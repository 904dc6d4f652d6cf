"""SGLangEngine: SGLang servers behind the two faces of an engine (docs/sglang.md)."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from agentrl.engines.base import (
    EngineHealth,
    EngineLayout,
    EngineNotice,
    PauseMode,
    Tag,
    UpdateSession,
)
from agentrl.engines.sglang.control import ServerControl
from agentrl.engines.sglang.launch import prepared
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.update import ServerUpdate, WeightSender
from agentrl.engines.sglang.weights import array_checksum, tensor_shapes
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Completion, EngineInfo, GenerateRequest

__all__ = ["SGLangEngine"]

T = TypeVar("T")
State: TypeAlias = Literal["serving", "paused", "asleep", "updating", "torn", "dead"]

_CLOSE_S = 60.0


class SGLangEngine:
    """``RolloutEngine`` and ``EngineControl`` over SGLang servers.

    Its servers are called from one thread of its own, so that it may be used from any event loop. Requests of a
    session go to the server that has the session's KV; a request that a server fails is sent to another one.

    Args:
        spec: which servers, and how.

    Raises:
        ConfigError: ``context_tokens`` above what the model was made for, or ``tp_size`` ranks that cannot share it.
        MachineError: no interpreter, or a server that does not come up.
        EngineError: a given server serves another model.
        DataError: the model's folder cannot be read.
    """

    def __init__(self, spec: SGLangEngineSpec) -> None:
        _require_fit(spec, spec.read_config())
        self._shapes = tensor_shapes(Path(spec.model_path))
        own = (
            Path(spec.folder) / f"{socket.gethostname()}-{os.getpid()}"
        )  # several ranks may have one specification
        ready = prepared(replace(spec, folder=str(own)))
        self._loop = asyncio.new_event_loop()
        self._core = ServerControl(ready, self._loop)
        self._thread = threading.Thread(target=self._run, name="agentrl-sglang-engine", daemon=True)
        self._thread.start()
        self._sender: WeightSender | None = None if spec.sender is None else spec.sender()
        try:
            self._call(self._core.start())
        except BaseException:
            self.close()
            raise

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``. ``request.seed`` has no effect: the servers draw with their own seeds."""
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
        """See ``EngineControl.pause``. A server that cannot say which weights made a token (0.5.18) is drained in any
        mode."""
        self._call(self._core.pause(mode))

    def resume(self) -> None:
        """Goes on; see ``EngineControl.resume``."""
        self._call(self._core.resume())

    def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``. Servers without ``--enable-memory-saver`` accept it and keep their memory."""
        self._call(self._core.sleep(tuple(tags)))

    def wake(self, tags: Sequence[Tag]) -> None:
        """Takes back what ``sleep`` released; other tags are left out."""
        self._call(self._core.wake(tuple(tags)))

    def layout(self) -> EngineLayout:
        """Whole tensors under Hugging Face names; each server cuts its ranks' parts."""
        return EngineLayout(kind="whole", dtype=self._core.state.spec.dtype)

    def begin_update(self, version: int) -> UpdateSession:
        """See ``EngineControl.begin_update``.

        Raises:
            EngineError: the engine is not paused, or was built without a sender.
        """
        if self._sender is None:
            raise EngineError(
                "begin_update: this engine was built without a sender, so its weights cannot change; "
                "give its specification sender=",
                retryable=False,
            )
        self._call(self._core.begin_update(version))
        tied = frozenset({"lm_head.weight"} if self._core.state.ties_embeddings else ())
        return self._sender.begin(ServerUpdate(self._core, version, self._shapes, tied))

    def checksum(self) -> Mapping[str, int]:
        """See ``EngineControl.checksum``: of what was put last, after each server's own digests were found to be
        those of what was put. Servers on GPUs and of 0.5.18 offer no digest to compare; theirs is of what was sent.

        Raises:
            EngineError: a server holds something else, or nothing was put yet.
        """
        self._call(self._core.verify())
        return {
            name: array_checksum(array) for name, array in (self._core.state.weights or {}).items()
        }

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``; answers at once, from what is known on this side."""
        own, requests = self._core.state, self._core.requests
        states: tuple[tuple[State, bool], ...] = (
            ("dead", own.closed or not self._thread.is_alive()),
            ("torn", bool(own.fault)),
            ("updating", own.updating),
            ("asleep", bool(own.asleep)),
            ("paused", own.paused is not None),
        )
        return EngineHealth(
            state=next((name for name, holds in states if holds), "serving"),
            running=requests.running,
            waiting=requests.waiting,
            kv_tokens=sum(tuple(own.kv.values())),
            policy_version=own.policy_version,
        )

    def take_notices(self) -> list[EngineNotice]:
        """Servers that were lost, came back or were given up since the last call."""
        return self._core.fleet.take_notices()

    def server_states(self) -> Mapping[str, str]:
        """Each server's name and state."""
        return {server.name: server.state for server in self._core.fleet.servers}

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
            raise EngineError("the engine was closed; build it again")
        return self._core.submit(work)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a control call on the engine's loop and waits for it."""
        result: T = self._submit(work).result()
        return result


def _require_fit(spec: SGLangEngineSpec, config: Mapping[str, Any]) -> None:
    """What the model allows; a server would say it minutes later, in its log."""
    text = config.get("text_config") or config
    longest = int(text.get("max_position_embeddings") or spec.context_tokens)
    if spec.context_tokens > longest:
        raise ConfigError(
            f"rollout.context_tokens must be at most the model's max_position_embeddings={longest}, "
            f"got {spec.context_tokens}; lower it"
        )
    heads = int(text["num_attention_heads"])
    if not spec.urls and heads % spec.tp_size:
        raise ConfigError(
            f"rollout.tp_size must divide the model's num_attention_heads={heads} (each rank of a server has as many "
            f"heads as the others), got {spec.tp_size}; choose a divisor, or set it to 1"
        )
