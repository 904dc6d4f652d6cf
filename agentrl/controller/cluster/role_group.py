"""Role group: the ranks that host a stage's roles, called all together; groups may work at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from agentrl.config.sections import MAIN_POOL
from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.phases import RankTime, ranks_of_servers
from agentrl.controller.cluster.rollout_pool import (
    ProcessInfo,
    RolloutPool,
    RolloutWorkerSpec,
)
from agentrl.controller.cluster.worker import RoleSpec, Worker
from agentrl.engines import ServedDtype
from agentrl.errors import TrainingError, WeightMismatchError
from agentrl.metrics.timing import IdleClock, PhaseTimes
from agentrl.store.logs import StackFile
from agentrl.training import DistSpec
from agentrl.training.device import FIRST_DEVICE, DeviceType
from agentrl.weight_sync import OwnWeights, ServedWeights

T = TypeVar("T")
U = TypeVar("U")

_POLL_S = 1.0
"""Between two looks at calls that are late."""
_POLL_EACH_S = 0.1
"""Between looks at one group and the next, while several work."""


Look: TypeAlias = Callable[[float], list[Any] | None]
"""Waits so many seconds at most for a call of every rank; gives their answers, or None. It raises
an AgentRLError where one failed, died, or is too late."""


@dataclass(frozen=True, slots=True, eq=False)
class Pending(Generic[T]):
    """A call of every rank of a group that is under way, and what is made of the answers."""

    group: RoleGroup
    look: Look
    take: Callable[[list[Any]], T]

    def then(self, make: Callable[[T], U]) -> Pending[U]:
        """The same call, with something else made of it."""
        return Pending(self.group, self.look, lambda by_rank: make(self.take(by_rank)))


def at_once(calls: Sequence[Pending[T]]) -> list[T]:
    """Waits for calls under way, those of different groups at once.

    Raises:
        AgentRLError: the first failure of any, as soon as it is known.
    """
    found: dict[Pending[T], T] = {}
    while waiting := [call for call in calls if call not in found]:
        for call in waiting:
            by_rank = call.look(_POLL_S if len(waiting) == 1 else _POLL_EACH_S)
            if by_rank is not None:
                call.group.count_call(-1)
                found[call] = call.take(by_rank)
    return [found[call] for call in calls]


class RoleGroup:
    """Collective calls run first in, first out.

    The first rank's exception is raised at once. It poisons the group: every later call raises.

    Args:
        mesh: how the ranks are arranged.
        name: of its pool.
    """

    def __init__(self, mesh: MeshShape, name: str = "") -> None:
        self.mesh = mesh
        self.name = name
        self.ranks_a_server = 1
        """Ranks that have one of the servers beside them together."""
        self._under_way = 0
        self._clock = IdleClock()
        self._times: list[PhaseTimes] = []
        # guards the three above: the loop's thread and the scoring thread call
        self._counting = threading.Lock()

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        """Builds a stage's roles on every rank; what an earlier stage left is ended first."""
        self.on_all("setting up the stage", "setup", dict(roles))

    def call(self, target: str, method: str, **given: Any) -> list[Any]:
        """Calls a method on every rank, as ``begin`` does, and waits for the answers."""
        return at_once([self.begin(target, method, **given)])[0]

    def begin(
        self,
        target: str,
        method: str,
        *,
        shards: Sequence[Any] | None = None,
        args: tuple[Any, ...] = (),
    ) -> Pending[list[Any]]:
        """Sends a call to every rank; ``at_once`` waits for the answers.

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

        def taken(found: list[tuple[Any, list[RankTime]]]) -> list[Any]:
            self._note_times([times for _, times in found])
            answers = [answer for answer, _ in found]
            return self.mesh.answers(answers, sharded=shards is not None)

        return self._pending(f"{target}.{method}", "call", by_rank).then(taken)

    def _note_times(self, by_rank: Sequence[list[RankTime]]) -> None:
        pool = "rank" if self.name in ("", MAIN_POOL) else self.name
        with self._counting:
            self._times += [
                PhaseTimes(*one, process=f"{pool}-{rank}")
                for rank, own in enumerate(by_rank)
                for one in own
            ]

    def take_times(self) -> list[PhaseTimes]:
        """What the ranks did since the last call, as far as they have answered."""
        with self._counting:
            times, self._times = self._times, []
        return times

    def count_call(self, change: int) -> None:
        """A call has begun, or has ended; between calls the ranks are idle."""
        with self._counting:
            self._under_way += change
            self._clock.set_idle(not self._under_way)

    def take_idle_frac(self) -> float:
        """Share of the seconds since the last call in which the ranks were idle."""
        with self._counting:
            return self._clock.take()[1]

    def host(self, spec: RolloutWorkerSpec | None) -> RolloutPool:
        """Where the ranks play a stage's episodes: beside each, or beside the first of those that
        have a server together. On a CPU, ranks that cannot be divided so have a server each.

        Raises:
            ConfigError: the ranks of a node cannot be divided so.
        """
        places = self.describe()
        together, setting, on_gpus = 0, "", False
        if spec is not None:
            traits = spec.engine.spec.traits()
            together = traits.ranks_a_server
            setting = f"rollout.{spec.engine.spec.section}.tp_size"
            on_gpus = bool(together and traits.gpus) and all(place.gpu for place in places)
        if not together or (not on_gpus and len(places) % together):
            together = 1
        nodes = [place.node for place in places]
        servers = ranks_of_servers(nodes, together, setting, self.mesh.tp)
        sleeps = spec is not None and spec.sleeps
        by_rank: list[Any] = [()] * len(places)
        for ranks in servers:
            ids = tuple(places[rank].gpu for rank in ranks) if on_gpus else ()
            for rank in ranks:
                by_rank[rank] = (tuple(ranks), ids, sleeps)
        self.call_ranks("sharing the servers", "share_server", by_rank)
        self.ranks_a_server = together
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

    def call_ranks(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Calls a method of every rank's worker; ``what`` is done, for messages."""
        return at_once([self._pending(what, method, by_rank)])[0]

    def _pending(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> Pending[list[Any]]:
        self.count_call(1)
        return Pending(self, self.begin_ranks(what, method, by_rank), list)

    def begin_ranks(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> Look:
        """Begins a call of a method of every rank's worker."""
        raise NotImplementedError

    def check_alive(self, what: str) -> None:
        """Raises a RankLostError where a rank has died or is silent while ``what`` is done without
        it. It waits for nothing, and may be called often."""

    def restart(self) -> None:
        """Starts every rank again, without what it hosted."""
        raise NotImplementedError

    def now(self) -> list[dict[str, Any]]:
        """The calls that ranks elsewhere have not answered, as JSON: since when, and who is
        late."""
        return []

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
        name: of its pool.
        stacks: where a call that takes long leaves the stacks of this process; None keeps none.
    """

    def __init__(
        self,
        *,
        threads: int,
        device: DeviceType = "cpu",
        name: str = "",
        stacks: StackFile | None = None,
    ) -> None:
        super().__init__(MeshShape(), name)
        self._stacks = stacks or StackFile(None)
        self._worker = Worker("episodes-0")
        self._worker.join(DistSpec(device=FIRST_DEVICE[device]), threads)
        self.rollouts = self._worker.rollouts
        """The rollout pool that the rank serves."""
        self._error: BaseException | None = None
        # one collective call at a time: the loop's thread trains, the scoring thread may score
        self._calling = _Turns()

    def begin_ranks(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> Look:
        # In one process nothing works at once: the call has ended when this returns.
        with self._calling:
            if self._error is not None:
                raise TrainingError(
                    f"the group is poisoned by an earlier error: {self._error}", rank=0
                )
            try:
                call = getattr(self._worker, method)
                answers = [self._stacks.run(call, *own) for own in by_rank]
                return lambda _: answers
            except WeightMismatchError:  # after the last collective: the ranks are sound
                raise
            except BaseException as error:
                self._error = error
                raise

    def pool_of(self, ranks: Sequence[int]) -> RolloutPool:
        return self.rollouts

    def serve(
        self, role: str, dtype: ServedDtype, version: int, *, changes: bool
    ) -> OwnWeights:
        args = (role, dtype, version, changes)
        [(_, reference, _)] = self.call("weights", "serve", args=args)
        return OwnWeights(version, reference, self._worker.served_copy(role))

    def close(self) -> None:
        self._worker.close()
