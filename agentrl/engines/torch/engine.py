"""TorchEngine: a rollout engine in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines.base import (
    EngineHealth,
    EngineLayout,
    EngineNotice,
    EnginePlace,
    PauseMode,
    Tag,
)
from agentrl.engines.checks import check_request
from agentrl.engines.life import EngineLife
from agentrl.engines.torch.core import TorchScheduler
from agentrl.engines.torch.job import ScheduledRequest
from agentrl.engines.torch.model.loading import load_model
from agentrl.engines.torch.model.served_model import ServedModel
from agentrl.engines.torch.thread import EngineThread
from agentrl.engines.torch.torch_spec import RowPlan, TorchEngineSpec
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Completion, EngineInfo, GenerateRequest

logger = logging.getLogger(__name__)


class TorchEngine:
    """``RolloutEngine`` and ``EngineControl`` over a decoder in this process (docs/engines.md).

    Args:
        place: folder, dtype and sizes.
        spec: device and threads.
        config: a Hugging Face configuration as a mapping, instead of the folder's.
        state_dict: weights under Hugging Face names, instead of the folder's.

    Raises:
        ConfigError: ``context_tokens`` above what the model was made for.
        EngineError: a model that this engine does not compute, a folder that cannot be read, or
            incomplete weights.
    """

    scheduler: ClassVar[type[TorchScheduler]] = TorchScheduler

    def __init__(
        self,
        place: EnginePlace,
        spec: TorchEngineSpec | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        state_dict: Mapping[str, Tensor] | None = None,
    ) -> None:
        spec = spec or TorchEngineSpec()
        self._place = place
        self._life = EngineLife()
        plan = RowPlan.of(place)
        if plan.num_rows < place.max_running:
            logger.warning(
                "kv_tokens=%d has room for %d requests of context_tokens=%d at once, fewer than "
                "max_running=%d; raise rollout.kv_tokens, or lower rollout.max_running",
                place.kv_tokens,
                plan.num_rows,
                place.context_tokens,
                place.max_running,
            )
        with torch.inference_mode():
            model = load_model(place, spec.device or place.device, config, state_dict)
            if place.context_tokens > model.max_positions:
                raise ConfigError(
                    "EnginePlace.context_tokens must be at most the model's "
                    "max_position_embeddings="
                    f"{model.max_positions}, got {place.context_tokens}; lower it"
                )
            self._core = self.scheduler(plan, model, self._life, place.decode)
        self._model = model
        self._thread = EngineThread(
            self._core, self._life, spec.num_threads or place.num_threads
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``. A session's requests run one after the other."""
        check_request(
            request,
            self.info(),
            stop_strings=self._place.decode is not None,
            images=self._model.images is not None,
        )
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        job = ScheduledRequest(
            request, future, self._core.now(), np.array(request.token_ids, dtype=np.int32)
        )
        self._thread.submit(lambda: self._core.submit(job))
        try:
            return await future
        except asyncio.CancelledError:
            # ``post`` and not ``submit``: where the thread has ended, nothing is left to abort.
            self._thread.post(lambda: self._core.abort_job(job))
            raise

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``."""
        chosen = tuple(request_ids)
        self._thread.post(lambda: self._core.abort(chosen))

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``; a session whose request runs is freed when that ends."""
        self._thread.post(lambda: self._core.release(session_id))

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``. ``vocab_size`` is the model's, padding included: no id is
        masked, because the recorded logprobs are those of the whole softmax."""
        return EngineInfo(
            "torch",
            self._place.model,
            self._model.vocab_size,
            self._place.context_tokens,
            self._life.policy_version,
            routing=self._model.kv_shape.routing,
        )

    def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``. ``in_place`` keeps KV across the pause; an update drops it
        all the same (``stale_kv: never``), and interrupted requests are re-prefilled."""
        if mode == "drain" and self._life.paused is None:
            self._thread.drain()
        else:
            self._thread.call(lambda: self._core.pause(mode))

    def resume(self) -> None:
        """Goes on; see ``EngineControl.resume``."""
        self._thread.call(self._life.resume)

    def sleep(self, tags: Sequence[Tag]) -> None:
        """Frees KV memory for ``kv_cache``; weights stay, because an update writes into them."""
        self._thread.call(lambda: self._core.sleep(tags))

    def wake(self, tags: Sequence[Tag]) -> None:
        """Takes back what ``sleep`` freed."""
        self._thread.call(lambda: self._core.wake(tags))

    def layout(self) -> EngineLayout:
        """Whole tensors under Hugging Face names; the engine fuses them."""
        return EngineLayout(dtype=self._place.dtype)

    def begin_update(self, version: int) -> TorchUpdateSession:
        """See ``EngineControl.begin_update``."""

        def begin() -> None:
            self._life.begin_update(version)
            self._model.begin()

        self._thread.call(begin)
        return TorchUpdateSession(
            version, self._life, self._core, self._model, self._thread
        )

    def checksum(self) -> Mapping[str, int]:
        """See ``EngineControl.checksum``."""
        return self._thread.call(self._model.checksum)

    def read(self, name: str) -> Tensor:
        """See ``ReadableEngine.read``."""
        return self._thread.call(lambda: self._model.read(name))

    def score(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[np.float32]]:
        """See ``EngineControl.score``."""

        def score() -> npt.NDArray[np.float32]:
            self._life.require_whole("score")
            return self._model.score(token_ids)

        return {"torch": self._thread.call(score)}

    def take_notices(self) -> list[EngineNotice]:
        """Nothing: it either works or fails."""
        return []

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``; answers at once, even while a step runs."""
        return self._core.health()

    def close(self) -> None:
        """Ends the thread; requests in flight fail."""
        self._thread.close()


@dataclass
class TorchUpdateSession:
    """``UpdateSession`` of a TorchEngine. A failed one leaves it corrupt: it answers nothing
    more.
    """

    version: int
    life: EngineLife
    core: TorchScheduler
    model: ServedModel
    thread: EngineThread

    def put(self, name: str, tensor: Tensor) -> None:
        """Copies one whole tensor, in any dtype and from any device, under its Hugging Face name.

        Raises:
            EngineError: an unknown name or another shape; the engine is corrupt.
        """
        self._move("put", lambda: self.model.put(name, tensor))

    def commit(self) -> None:
        """Serves the new weights; see ``UpdateSession.commit``."""
        self._move("commit", self._commit)

    def abort(self) -> None:
        """Gives up; the engine is corrupt where anything was put, else paused at its old
        version.
        """
        self._move("abort", self._abort)

    def _move(self, what: str, move: Callable[[], None]) -> None:
        def run() -> None:
            self.life.require_open(what)
            try:
                move()
            except EngineError as error:
                self.core.mark_corrupt(str(error))
                raise

        self.thread.call(run)

    def _commit(self) -> None:
        self.model.finish()
        # KV of an older version is never read under a newer one
        self.core.retract()
        self.life.end_update(self.version)

    def _abort(self) -> None:
        if self.model.touched:
            self.core.mark_corrupt("an update was given up after tensors had been put")
        else:
            self.life.end_update(None)
