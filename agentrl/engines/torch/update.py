"""Weight updates of a TorchEngine, each move run on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from agentrl.engines.life import EngineLife
from agentrl.engines.torch.core import TorchScheduler
from agentrl.engines.torch.model.served_model import ServedModel
from agentrl.engines.torch.thread import EngineThread
from agentrl.errors import EngineError


@dataclass(frozen=True, slots=True)
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
        self.core.retract()  # KV of an older version is never read under a newer one
        self.life.end_update(self.version)

    def _abort(self) -> None:
        if self.model.touched:
            self.core.mark_corrupt("an update was given up after tensors had been put")
        else:
            self.life.end_update(None)
