"""Role group: the ranks that host a stage's roles, called all together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.phases import ranks_of_servers
from agentrl.controller.cluster.rollout_pool import ProcessInfo, RolloutPool, RolloutWorkerSpec
from agentrl.controller.cluster.worker import RoleSpec, Worker
from agentrl.engines import ServedDtype
from agentrl.errors import TrainingError, WeightMismatchError
from agentrl.training import DistSpec
from agentrl.training.device import FIRST_DEVICE, DeviceType
from agentrl.weight_sync import OwnWeights, ServedWeights


class RoleGroup:
    """Collective calls run first in, first out.

    The first rank's exception is raised at once. It poisons the group: every later call raises.

    Args:
        mesh: how the ranks are arranged.
    """

    def __init__(self, mesh: MeshShape) -> None:
        self.mesh = mesh

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        """Builds a stage's roles on every rank; what an earlier stage left is ended first."""
        self.on_all("setting up the stage", "setup", dict(roles))

    def call(
        self,
        target: str,
        method: str,
        *,
        shards: Sequence[Any] | None = None,
        args: tuple[Any, ...] = (),
    ) -> list[Any]:
        """Calls a method on every rank.

        Args:
            target: a role's name, ``rollouts`` for the rank's episode host, ``weights`` or
                ``phases``.
            method: of the target.
            shards: one for each data coordinate; every rank of the coordinate gets it as its first
                argument.
            args: the same for all ranks.

        Returns:
            With shards one answer for each data coordinate, otherwise one for each rank.
        """
        by_rank = [(target, method, *own) for own in self.mesh.arguments(shards, args)]
        answers = self.call_ranks(f"{target}.{method}", "call", by_rank)
        return self.mesh.answers(answers, sharded=shards is not None)

    def host(self, spec: RolloutWorkerSpec | None) -> RolloutPool:
        """Where the ranks play a stage's episodes: beside each, or beside the first of those whose
        GPUs a server has.

        Raises:
            ConfigError: the ranks of a node cannot be divided so.
        """
        places = self.describe()
        on_gpus = all(place.gpu for place in places)
        ranks_a_server, setting = 0, ""
        if spec is not None and on_gpus:
            ranks_a_server = spec.engine.spec.traits().ranks_a_server
            setting = f"rollout.{spec.engine.spec.section}.tp_size"
        servers = ranks_of_servers([place.node for place in places], ranks_a_server or 1, setting)
        ids: list[tuple[str, ...]] = [()] * len(places)
        if ranks_a_server:
            for ranks in servers:
                ids[ranks[0]] = tuple(places[rank].gpu for rank in ranks)
        sleeps = spec is not None and spec.sleeps
        self.call_ranks("sharing the GPUs", "share_gpus", [(own, sleeps) for own in ids])
        return self.pool_of([ranks[0] for ranks in servers])

    def pool_of(self, ranks: Sequence[int]) -> RolloutPool:
        """A pool of the episode hosts of some ranks."""
        raise NotImplementedError

    def serve(
        self, role: str, dtype: ServedDtype, version: int, *, changes: bool
    ) -> ServedWeights | OwnWeights:
        """Renews what the ranks serve of a role's weights to engines in other processes; with
        ``changes`` they know what differs from the version before.

        Returns:
            What those engines take.
        """
        raise NotImplementedError

    def describe(self) -> list[ProcessInfo]:
        """Where each rank runs."""
        return self.on_all("describing the workers", "describe")

    def on_all(self, what: str, method: str, *args: Any) -> list[Any]:
        """Calls a method of every rank's worker with the same arguments."""
        return self.call_ranks(what, method, [args] * self.mesh.size)

    def call_ranks(self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every rank's worker; ``what`` is done, for messages."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends every rank and what it started."""
        raise NotImplementedError


class _Turns:
    """Lock that threads take in the order in which they ask for it. A thread that lets go of a
    ``threading.Lock`` and asks again has it before those that wait: between the calls of an update
    nothing would ever be scored."""

    def __init__(self) -> None:
        self._asked: deque[object] = deque()  # the first one has it
        # guards the queue; notified after each change of its first one
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        own = object()
        with self._changed:
            self._asked.append(own)
            try:
                self._changed.wait_for(lambda: self._asked[0] is own)
            except BaseException:  # Ctrl-C
                self._asked.remove(own)
                self._changed.notify_all()
                raise

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._asked.popleft()
            self._changed.notify_all()


class LocalRoleGroup(RoleGroup):
    """One rank in the driver's own process: no Ray, breakpoints work, the same addressing.

    Args:
        threads: torch threads of this process.
        device: where the roles compute; of several GPUs the first.
    """

    def __init__(self, *, threads: int, device: DeviceType = "cpu") -> None:
        super().__init__(MeshShape())
        self._worker = Worker("episodes-0")
        self._worker.join(DistSpec(device=FIRST_DEVICE[device]), threads)
        self.rollouts = self._worker.rollouts
        """The rollout pool that the rank serves."""
        self._error: BaseException | None = None
        # one collective call at a time: the loop's thread trains, the scoring thread may score
        self._calling = _Turns()

    def call_ranks(self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._calling:
            if self._error is not None:
                raise TrainingError(
                    f"the group is poisoned by an earlier error: {self._error}", rank=0
                )
            try:
                return [getattr(self._worker, method)(*own) for own in by_rank]
            except WeightMismatchError:  # after the last collective: the ranks are sound
                raise
            except BaseException as error:
                self._error = error
                raise

    def pool_of(self, ranks: Sequence[int]) -> RolloutPool:
        return self.rollouts

    def serve(self, role: str, dtype: ServedDtype, version: int, *, changes: bool) -> OwnWeights:
        args = (role, dtype, version, changes)
        [(_, reference, _)] = self.call("weights", "serve", args=args)
        return OwnWeights(version, reference, self._worker.served_copy(role))

    def close(self) -> None:
        self._worker.close()
