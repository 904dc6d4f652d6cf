"""Servers engine: the two faces of an engine over a pool of servers."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.engines.base import (
    EngineHealth,
    EngineLayout,
    EngineNotice,
    EnginePlace,
    UpdateSession,
)
from agentrl.engines.held_weights import HeldWeights
from agentrl.engines.servers.control import ServerControl
from agentrl.engines.servers.server import Server
from agentrl.engines.servers.update import CatchUp, ServerUpdate
from agentrl.errors import EngineError, WeightMismatchError
from agentrl.types import Completion, EngineInfo, GenerateRequest


class ServersEngine(ServerControl):
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

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``. The servers may draw with seeds of their own."""
        return await asyncio.wrap_future(self.submit(self.requests.generate(request)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``; the completion holds what was generated until then."""
        await asyncio.wrap_future(self.submit(self.requests.abort(tuple(request_ids))))

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``."""
        await asyncio.wrap_future(self.submit(self.requests.release(session_id)))

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``."""
        return self.state.info()

    def layout(self) -> EngineLayout:
        """Whole tensors under Hugging Face names, or what each rank is sent alone."""
        return self._layout

    @functools.cached_property
    def _layout(self) -> EngineLayout:
        """A server that is started again is cut as it was."""
        clients = [server.client for server in self.pool.serving]
        shards = self.sender.shards(clients, self.state.shapes) if self.sender else ()
        return EngineLayout(self.state.kind.place.dtype, shards, restarts=True)

    def begin_update(self, version: int) -> UpdateSession:
        """See ``EngineControl.begin_update``.

        Raises:
            EngineError: the engine is not paused, or was built without a sender.
        """
        if self.sender is None:
            raise EngineError(
                "begin_update: this engine was built without a sender, so its weights cannot "
                "change; build it with one",
                retryable=False,
            )
        self.open_update(version)
        update = ServerUpdate(self, version, self.pool.reachable)
        try:
            return self.sender.begin(update)
        except BaseException:
            update.give_up()
            raise

    def catch_up(self, version: int, server: Server) -> CatchUp:
        """See ``ServerControl.catch_up``."""
        return CatchUp(self, version, [server])

    def checksum(self) -> Mapping[str, int]:
        """See ``EngineControl.checksum``: of what was put last, after the servers' own digests,
        where they have any, were found to be the same on all of them, and to have changed since the
        last look in just those tensors whose bits are others.

        Raises:
            EngineError: a server holds other weights than another, or than were sent; or nothing
                was put yet.
        """
        self.state.life.require_weights("checksum")
        if not self.state.sent:
            raise EngineError(
                "checksum: no weights were sent yet, so that there is nothing to compare with; "
                "publish first",
                retryable=False,
            )
        told = self.submit(self.compare_digests()).result()
        found = HeldWeights(self.state.sent, told)
        if self.state.held and (fault := found.fault_since(self.state.held)):
            raise WeightMismatchError(
                f"after publish({self.state.life.policy_version}) the servers hold {fault}, by "
                "their own digests; restart them, and look at their logs"
            )
        self.state.held = found
        return found.sent

    def health(self) -> EngineHealth:
        """See ``EngineControl.health``; answers at once, from what is known on this side."""
        life = self.state.life
        return EngineHealth(
            state=life.state if self.runs else "closed",
            running=self.requests.running,
            waiting=self.requests.waiting,
            kv_tokens=sum(tuple(self.state.kv.values())),
            policy_version=life.policy_version,
        )

    def take_notices(self) -> list[EngineNotice]:
        """Servers that were lost, came back or were given up since the last call."""
        notices = self.pool.notices
        return [notices.popleft() for _ in range(len(notices))]


def own_folder(place: EnginePlace) -> EnginePlace:
    """The place with a folder of this process's own: several ranks may have one."""
    folder = Path(place.folder) / f"{socket.gethostname()}-{os.getpid()}"
    return replace(place, folder=str(folder))
