"""Server update: one weight update over all servers, as senders drive it; a server that dies is
left behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from agentrl.engines.base import ServedDtype
from agentrl.engines.servers.client import ServerClient
from agentrl.engines.servers.control import ServerControl
from agentrl.engines.weights import WeightArray
from agentrl.errors import EngineError


class ServerUpdate:
    """An open update. Its calls block, and are made from the engine's owner's thread alone.

    Every call goes to all servers that take part, at once. One that is lost meanwhile takes part no
    more: it is started again with the new weights once they are whole. A server that refuses makes
        the engine corrupt.

    Args:
        core: whose servers.
        version: the policy version from ``finish`` on.
        shapes: of every tensor that must be put, by Hugging Face name.
        optional: names that need not be put (a tied head).
    """

    def __init__(
        self,
        core: ServerControl,
        version: int,
        shapes: Mapping[str, tuple[int, ...]],
        optional: frozenset[str],
    ) -> None:
        self.version = version
        self.servers = core.update_members()
        self._core = core
        self._shapes = shapes
        self._optional = optional
        self._arrays: dict[str, WeightArray] = {}
        self._open = False
        self._over = False

    @property
    def dtype(self) -> ServedDtype:
        """Of the servers' weights."""
        return self._core.state.kind.place.dtype

    @property
    def label(self) -> str:
        """What the servers call the new weights; sent with the last of them."""
        return self._core.state.labels.label(self.version)

    @property
    def folder(self) -> Path:
        """Where this update's weights may be written."""
        return self._core.state.weights_folder(self.version)

    @property
    def model(self) -> Path:
        """The folder of the model's configuration and tokenizer."""
        return Path(self._core.state.kind.place.model)

    @property
    def flush(self) -> bool:
        """Whether the servers' KV cache is emptied: not where requests were paused in place, whose
        KV is kept.
        """
        return self._core.state.flushes_updates

    @property
    def timeout_s(self) -> float:
        """Of one call."""
        return self._core.state.kind.spec.update_timeout_s

    @property
    def num_ranks(self) -> Sequence[int]:
        """Tensor-parallel ranks of each server that takes part."""
        return [server.client.num_ranks for server in self.servers]

    @property
    def member_ids(self) -> tuple[str, ...]:
        """What tells this set of servers from another; one that was started again counts as
        another.
        """
        return tuple(f"{server.client.url}#{server.restarts}" for server in self.servers)

    @property
    def lost_any(self) -> bool:
        """Whether a server that took part is lost by now."""
        return not all(self._core.pool.takes_part(server) for server in self.servers)

    @property
    def lost_all(self) -> bool:
        """Whether no server is left that takes part."""
        return not any(self._core.pool.takes_part(server) for server in self.servers)

    @property
    def arrays(self) -> Mapping[str, WeightArray]:
        """What was put so far."""
        return self._arrays

    def accept(self, array: WeightArray) -> None:
        """Checks a tensor before any server hears of it, and keeps it: a server that is started
        again needs it.

        Raises:
            EngineError: no tensor of this name or shape, or one that was put before; the update has
                failed.
        """
        wanted = self._shapes.get(array.name)
        problem = ""
        if wanted is None:
            problem = f"{self.model} has no tensor {array.name!r}"
        elif wanted != array.shape:
            problem = f"{array.name} must have shape {wanted}, got {array.shape}"
        elif array.name in self._arrays:
            problem = f"{array.name} was put twice"
        if problem:
            self.mark_corrupt(problem)
            raise EngineError(f"weight update {self.version}: {problem}", retryable=False)
        self._arrays[array.name] = array

    def require_complete(self) -> None:
        """Raises an EngineError, and fails the update, where a tensor was not put: servers would
        not notice.
        """
        missing = sorted(self._shapes.keys() - self._arrays.keys() - self._optional)
        if missing:
            problem = f"{len(missing)} tensors were not put, first {missing[0]!r}; put every one"
            self.mark_corrupt(problem)
            raise EngineError(f"weight update {self.version}: {problem}", retryable=False)

    def pause_servers(self) -> None:
        """Before the first tensor; not for weights from a folder. A second call does nothing."""
        if not self._open:
            self._open = True
            self.on_all(lambda client, _: client.begin_update())

    def on_all(self, call: Callable[[ServerClient, int], Awaitable[None]]) -> None:
        """Calls every server that takes part, and waits.

        Args:
            call: gets a server's client and its place among those that take part.

        Raises:
            EngineError: a server refused, or none is left; the update has failed.
        """
        self.wait(self.start(call))

    def start(self, call: Callable[[ServerClient, int], Awaitable[None]]) -> Future[None]:
        """Like ``on_all``, without waiting; ``wait`` must follow."""
        return self._core.submit(self._core.on_members(self.servers, call))

    def wait(self, future: Future[None]) -> None:
        """Waits for what ``start`` began; see ``on_all``."""
        try:
            future.result()
        except EngineError as error:
            self.mark_corrupt(str(error))
            raise

    def finish(self, weights: Mapping[str, WeightArray] | None = None) -> None:
        """All servers have all tensors: the new version is served from here on.

        Args:
            weights: the same as was put, where they lie elsewhere than in memory.

        Raises:
            EngineError: no server is left and none can be started.
        """
        if self._open:
            self.on_all(lambda client, _: client.end_update())
        self._over = True
        self._blocking(self._core.updated(self.version, dict(weights or self._arrays)))

    def mark_corrupt(self, problem: str) -> None:
        """The update failed: the engine answers nothing any more."""
        if not self._over:
            self._over = True
            self._blocking(self._core.mark_corrupt(f"weight update {self.version}: {problem}"))

    def give_up(self) -> None:
        """The sender failed: the old weights go on being served where no server was sent a tensor;
        otherwise the engine is corrupt. After ``finish`` or ``mark_corrupt`` it does nothing."""
        if self._open:
            self.mark_corrupt("it was given up after tensors had been sent")
        elif not self._over:
            self._over = True
            self._blocking(self._core.update_cancelled())

    def lose_all(self, why: str) -> None:
        """Every server that takes part counts as lost, and is started again with the new weights.

        Raises:
            EngineError: none of them can be; the update has failed.
        """
        self.wait(self._core.submit(self._core.lose_members(self.servers, why)))

    def _blocking(self, work: Coroutine[Any, Any, None]) -> None:
        self._core.submit(work).result()
