"""Torch control: pause, sleep, update, score and compare, each run on the engine's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines.base import EngineHealth, PauseMode, Tag
from agentrl.engines.life import EngineLife
from agentrl.engines.torch.core import TorchScheduler
from agentrl.engines.torch.model.interface import ServedModel
from agentrl.engines.torch.thread import EngineThread
from agentrl.errors import EngineError


class Control:
    """Moves of a TorchEngine's life. Called by its owner; each runs on the engine's thread."""

    def __init__(
        self, life: EngineLife, core: TorchScheduler, model: ServedModel, thread: EngineThread
    ) -> None:
        self._life = life
        self._core = core
        self._model = model
        self._thread = thread

    def pause(self, mode: PauseMode) -> None:
        if mode == "drain" and self._life.paused is None:
            self._thread.drain()
        else:
            self._thread.call(lambda: self._pause(mode))

    def resume(self) -> None:
        self._thread.call(self._life.resume)

    def sleep(self, tags: Sequence[Tag]) -> None:
        self._thread.call(lambda: self._sleep(tags))

    def wake(self, tags: Sequence[Tag]) -> None:
        self._thread.call(lambda: self._wake(tags))

    def begin_update(self, version: int) -> TorchUpdateSession:
        self._thread.call(lambda: self._begin(version))
        return TorchUpdateSession(self, version)

    def checksum(self) -> Mapping[str, int]:
        return self._thread.call(self._model.checksum)

    def score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return self._thread.call(lambda: self._score(token_ids))

    def health(self) -> EngineHealth:
        core = self._core
        life = self._life
        return EngineHealth(
            life.state, core.num_running, core.num_waiting, core.kv_tokens, life.policy_version
        )

    def put(self, name: str, tensor: Tensor) -> None:
        """One tensor of the update that is open."""
        self._thread.call(lambda: self._put(name, tensor))

    def commit(self, version: int) -> None:
        """Serves what was put."""
        self._thread.call(lambda: self._commit(version))

    def abort(self) -> None:
        """Gives the update up."""
        self._thread.call(self._abort)

    def _pause(self, mode: PauseMode) -> None:
        self._life.pause(mode)
        if mode == "retract":
            self._core.retract()

    def _sleep(self, tags: Sequence[Tag]) -> None:
        if self._core.num_running:
            raise EngineError(
                f"sleep: {self._core.num_running} requests are running or interrupted in place; "
                "call pause('drain') or pause('retract') first",
                retryable=False,
            )
        if "kv_cache" in tags:
            self._life.sleep(["kv_cache"])
            self._core.free_kv()

    def _wake(self, tags: Sequence[Tag]) -> None:
        if "kv_cache" in tags and self._life.asleep:
            self._core.allocate_kv()
            self._life.wake(["kv_cache"])

    def _begin(self, version: int) -> None:
        self._life.begin_update(version)
        self._model.begin()

    def _put(self, name: str, tensor: Tensor) -> None:
        self._life.require_open("put")
        try:
            self._model.put(name, tensor)
        except EngineError as error:
            self._mark_corrupt(str(error))
            raise

    def _commit(self, version: int) -> None:
        self._life.require_open("commit")
        try:
            self._model.finish()
        except EngineError as error:
            self._mark_corrupt(str(error))
            raise
        self._core.retract()  # KV of an older version is never read under a newer one
        self._life.end_update(version)

    def _abort(self) -> None:
        self._life.require_open("abort")
        if self._model.touched:
            self._mark_corrupt("an update was given up after tensors had been put")
        else:
            self._life.end_update(None)

    def _mark_corrupt(self, cause: str) -> None:
        self._life.mark_corrupt(cause)
        self._core.fail_requests(self._life.fault)

    def _score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """One token after the other over a row of its own: no request's KV is touched."""
        self._life.require_whole("score")
        ids = torch.tensor(list(token_ids), dtype=torch.int64, device=self._model.device)
        kv, forward = self._model.empty_rows(1, ids.numel())
        logprobs = []
        for position in range(ids.numel() - 1):
            place = torch.tensor([position], device=ids.device)
            logits = forward.decode(ids[position : position + 1], place, ((1, kv.max_keys),))
            logprobs.append(logits[0].log_softmax(-1)[ids[position + 1]])
        return torch.stack(logprobs).float().cpu().numpy()


class TorchUpdateSession:
    """``UpdateSession`` of a TorchEngine. A failed one leaves it corrupt: it answers nothing
    more.
    """

    def __init__(self, control: Control, version: int) -> None:
        self._control = control
        self._version = version

    def put(self, name: str, tensor: Tensor) -> None:
        """Copies one whole tensor, in any dtype and from any device, under its Hugging Face name.

        Raises:
            EngineError: an unknown name or another shape; the engine is corrupt.
        """
        self._control.put(name, tensor)

    def commit(self) -> None:
        """Serves the new weights; see ``UpdateSession.commit``."""
        self._control.commit(self._version)

    def abort(self) -> None:
        """Gives up; the engine is corrupt where anything was put, else paused at its old
        version.
        """
        self._control.abort()
