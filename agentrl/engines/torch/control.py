"""What the engine's one owner does with it: pause, sleep, update, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from agentrl.engines.base import EngineHealth, PauseMode, Tag
from agentrl.engines.torch.core import TorchScheduler
from agentrl.engines.torch.model.interface import ServedModel
from agentrl.engines.torch.thread import EngineThread
from agentrl.errors import EngineError

__all__ = ["Control", "TorchUpdateSession"]

State = Literal["serving", "paused", "asleep", "updating", "torn", "dead"]


class Control:
    """The states of ``EngineHealth`` and the moves between them. Each move runs on the engine's thread."""

    def __init__(self, core: TorchScheduler, weights: ServedModel, thread: EngineThread) -> None:
        self._core = core
        self._weights = weights
        self._thread = thread
        self._updating = False
        self._asleep = False

    def pause(self, mode: PauseMode) -> None:
        if mode == "drain" and not self._thread.paused:
            self._thread.drain()
            return
        self._thread.call(lambda: self._pause(retract=mode == "retract"))

    def resume(self) -> None:
        self._thread.call(self._resume)

    def sleep(self, tags: Sequence[Tag]) -> None:
        self._thread.call(lambda: self._sleep(tags))

    def wake(self, tags: Sequence[Tag]) -> None:
        self._thread.call(lambda: self._wake(tags))

    def begin_update(self, version: int) -> TorchUpdateSession:
        self._thread.call(lambda: self._begin(version))
        return TorchUpdateSession(self, version)

    def checksum(self) -> Mapping[str, int]:
        return self._thread.call(self._weights.checksum)

    def health(self) -> EngineHealth:
        core = self._core
        states: tuple[tuple[State, bool], ...] = (
            ("dead", self._thread.death is not None),
            ("torn", core.refusal is not None),
            ("updating", self._updating),
            ("asleep", self._asleep),
            ("paused", self._thread.paused),
        )
        return EngineHealth(
            state=next((name for name, holds in states if holds), "serving"),
            running=core.num_running,
            waiting=core.num_waiting,
            kv_tokens=core.kv_tokens,
            policy_version=core.policy_version,
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

    def _pause(self, *, retract: bool) -> None:
        self._thread.paused = True
        self._core.stop_clock()
        if retract:
            self._core.retract()

    def _resume(self) -> None:
        self._require_whole("resume")
        if self._updating or self._asleep:
            mend = "commit the update" if self._updating else "call wake(['kv_cache'])"
            raise EngineError(
                f"resume: the engine is {self.health().state}; {mend} first", retryable=False
            )
        self._thread.paused = False
        self._core.start_clock()

    def _sleep(self, tags: Sequence[Tag]) -> None:
        if self._core.num_running:
            raise EngineError(
                f"sleep: {self._core.num_running} requests are running or interrupted in place; "
                "call pause('drain') or pause('retract') first",
                retryable=False,
            )
        if "kv_cache" in tags:
            self._pause(retract=True)
            self._asleep = True
            self._core.free_kv()

    def _wake(self, tags: Sequence[Tag]) -> None:
        if "kv_cache" in tags and self._asleep:
            self._core.allocate_kv()
            self._asleep = False

    def _begin(self, version: int) -> None:
        self._require_whole("begin_update")
        if not self._thread.paused or self._updating:
            what = "another update is open" if self._updating else "it is serving"
            raise EngineError(
                f"begin_update({version}) needs a paused engine, but {what}; call pause('retract') first",
                retryable=False,
            )
        self._updating = True
        self._weights.begin()

    def _put(self, name: str, tensor: Tensor) -> None:
        self._require_open("put")
        try:
            self._weights.put(name, tensor)
        except EngineError as error:
            self._tear(str(error))
            raise

    def _commit(self, version: int) -> None:
        self._require_open("commit")
        try:
            self._weights.finish()
        except EngineError as error:
            self._tear(str(error))
            raise
        self._core.retract()  # KV of an older version is never read under a newer one
        self._core.policy_version = version
        self._updating = False

    def _abort(self) -> None:
        self._require_open("abort")
        if self._weights.touched:
            self._tear("an update was given up after tensors had been put")
        self._updating = False

    def _tear(self, cause: str) -> None:
        self._updating = False
        self._core.tear(f"the engine's weights are torn ({cause}); build it again, or use another")

    def _require_whole(self, what: str) -> None:
        if self._core.refusal is not None:
            raise EngineError(f"{what}: {self._core.refusal}", retryable=False)

    def _require_open(self, what: str) -> None:
        self._require_whole(what)
        if not self._updating:
            raise EngineError(
                f"{what}: no update is open; call begin_update first", retryable=False
            )


class TorchUpdateSession:
    """``UpdateSession`` of a TorchEngine. A failed one leaves the engine torn: it answers nothing any more."""

    def __init__(self, control: Control, version: int) -> None:
        self._control = control
        self._version = version

    def put(self, name: str, tensor: Tensor) -> None:
        """Copies one whole tensor, in any dtype and from any device, under its Hugging Face name.

        Raises:
            EngineError: an unknown name or another shape; the engine is torn.
        """
        self._control.put(name, tensor)

    def commit(self) -> None:
        """Serves the new weights; see ``UpdateSession.commit``."""
        self._control.commit(self._version)

    def abort(self) -> None:
        """Gives up; the engine is torn where anything was put, else paused at its old version."""
        self._control.abort()
