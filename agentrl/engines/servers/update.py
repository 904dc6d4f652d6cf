"""Server update: one weight update over all servers, as senders drive it; a server that dies is
left behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

from agentrl.engines.checks import PutTensors
from agentrl.engines.servers.client import NewVersion, ServerClient
from agentrl.engines.servers.control import ServerControl
from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.servers.server import Server
from agentrl.errors import EngineError


class ServerUpdate:
    """An open update. Its calls block, and are made from the engine's owner's thread alone.

    Every call goes to all servers that take part, at once. One that is lost meanwhile takes part no
    more: it is started again, and takes the new weights once they are whole. A server that refuses
    makes the engine corrupt.

    Args:
        control: whose servers.
        version: the policy version from ``finish`` on.
        servers: that the update reaches.

    Attributes:
        shapes: of every tensor, by Hugging Face name; all must be put but a tied head.
        checksums: of what was put so far, by the tensors' names.
        new: what the servers serve with the last tensor.
        folder: where weights may be written, a folder or a URL.
        seen: the folder as which the servers see it.
        model: the folder of the model's configuration and tokenizer.
        kind: of the servers.
        dtype: of the servers' weights.
        timeout_s: of one call.
    """

    def __init__(
        self, control: ServerControl, version: int, servers: Sequence[Server]
    ) -> None:
        state = control.state
        self.version = version
        self.servers = tuple(servers)
        self.shapes = state.shapes
        self.checksums: dict[str, int] = {}
        self.new = NewVersion(state.labels.label(version), state.flushes_updates)
        self.folder, self.seen = state.weights_folders
        self.model = Path(state.kind.place.model)
        self.kind = state.kind
        self.dtype = state.kind.place.dtype
        self.timeout_s = state.kind.spec.update_timeout_s
        self._control = control
        self._held = self._held_by_servers()
        tied = {"lm_head.weight"} if state.kind.sizes.ties_embeddings else set()
        must = {name: shape for name, shape in self.shapes.items() if name not in tied}
        self._put = PutTensors(must, self.shapes)
        self._open = False
        self._over = False

    @property
    def member_ids(self) -> tuple[str, ...]:
        """What tells this set of servers from another; one that was started again counts as
        another.
        """
        return tuple(f"{server.client.url}#{server.restarts}" for server in self.servers)

    @property
    def num_live(self) -> int:
        """Servers that took part from the beginning and are not lost by now."""
        return sum(server.reachable for server in self.servers)

    @property
    def lost_any(self) -> bool:
        """Whether a server that took part is lost by now."""
        return self.num_live < len(self.servers)

    def changes(self, name: str) -> bool:
        """Whether a tensor that was put must be sent: it is another than the servers hold."""
        return not self.kind.takes_changes or self.checksums[name] != self._held.get(name)

    def accept(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks a tensor before any server hears of it; its checksum must follow.

        Raises:
            EngineError: no tensor of this name or shape, or one that was put before; the update has
                failed.
        """
        if name in self.checksums:
            self._fail(f"{name} was put twice")
        if fault := self._put.fault(name, shape):
            self._fail(fault)

    def require_complete(self) -> None:
        """Raises an EngineError, and fails the update, where a tensor was not put: servers would
        not notice.
        """
        if missing := self._put.missing():
            self._fail(missing)

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

    def start(self, call: Callable[[ServerClient, int], Awaitable[None]]) -> Future[Any]:
        """Like ``on_all``, without waiting; ``wait`` must follow."""
        return self._control.submit(self._control.on_members(self.servers, call))

    def wait(self, future: Future[Any]) -> None:
        """Waits for what ``start`` began; see ``on_all``."""
        try:
            future.result()
        except EngineError as error:
            self.mark_corrupt(str(error))
            raise

    def finish(self) -> None:
        """All servers have all tensors: the new version is served from here on.

        Raises:
            EngineError: no server is left and none can be started.
        """
        if self._open:
            self.on_all(lambda client, _: client.end_update())
        # All servers have the weights. A failure from here on is a server's, and corrupts nothing.
        self._over = True
        self._control.updated(self.version, self.checksums)

    def mark_corrupt(self, problem: str) -> None:
        """The update failed: the engine answers nothing any more."""
        if not self._over:
            self._over = True
            self._control.mark_corrupt(f"weight update {self.version}: {problem}")

    def give_up(self) -> None:
        """The sender failed: the old weights go on being served where no server was sent a tensor;
        otherwise the engine is corrupt. After ``finish`` or ``mark_corrupt`` it does nothing."""
        if self._open:
            self.mark_corrupt("it was given up after tensors had been sent")
        elif not self._over:
            self._over = True
            self._control.cancel_update()

    def lose_all(self, why: str) -> None:
        """Every server that takes part counts as lost, and is started again with the new weights.

        Raises:
            EngineError: none of them can be; the update has failed.
        """

        async def lose(client: ServerClient, place: int) -> None:
            raise ServerLostError(why)

        self.on_all(lose)

    def _held_by_servers(self) -> Mapping[str, int]:
        """Checksums of what every server of the update holds: nothing where one has come back
        without weights, or all have released them."""
        state = self._control.state
        whole = not state.life.weightless and all(one.serving for one in self.servers)
        return state.sent if whole else {}

    def _fail(self, problem: str) -> NoReturn:
        self.mark_corrupt(problem)
        raise EngineError(f"weight update {self.version}: {problem}", retryable=False)


class CatchUp(ServerUpdate):
    """The weights served now, for a server that was started again and takes no part in anything
    yet. Its failures are those of its start: nothing else hears of them.
    """

    def _held_by_servers(self) -> Mapping[str, int]:
        """Nothing: it was started from the model's folder."""
        return {}

    @property
    def num_live(self) -> int:
        """See ``ServerUpdate.num_live``."""
        return sum(not server.exited for server in self.servers)

    def start(self, call: Callable[[ServerClient, int], Awaitable[None]]) -> Future[Any]:
        """See ``ServerUpdate.start``."""

        async def on_one() -> None:
            [server] = self.servers
            await call(server.client, 0)

        return self._control.submit(on_one())

    def finish(self) -> None:
        """The server has all tensors."""
        if self._open:
            self.on_all(lambda client, _: client.end_update())
        self._over = True

    def mark_corrupt(self, problem: str) -> None:
        """The server's start has failed."""
        self._over = True

    def give_up(self) -> None:
        """An update takes the server along, or it is started once more."""
        if self._open and not self._over:
            self.on_all(lambda client, _: client.end_update())
        self._over = True
