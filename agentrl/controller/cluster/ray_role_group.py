"""Ray role group: ranks in Ray actors, one process a rank."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from agentrl.config.sections import MAIN_POOL, PoolConfig
from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.ray_cluster import Reservation
from agentrl.controller.cluster.ray_rollout_pool import RayRolloutPool
from agentrl.controller.cluster.ray_runtime import (
    CALL_TIMEOUT_S,
    ActorCalls,
    rank_actor,
    shared,
    thread_env,
)
from agentrl.controller.cluster.role_group import Look, RoleGroup
from agentrl.controller.cluster.rollout_pool import RolloutPool
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.engines import ServedDtype
from agentrl.errors import EngineError, RankLostError, StaleWeightsError, TrainingError
from agentrl.store import logs
from agentrl.training import DistSpec
from agentrl.training.device import FIRST_DEVICE, DeviceType
from agentrl.weight_sync import PartBits, ServedWeights

_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the largest that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",  # only the main arena grows and keeps as it is told
}
"""glibc gives large blocks back to the kernel, which then clears every page of the next activation
again. That is a tenth of a small model's update on a CPU. A variable that the environment already
sets is kept."""


class RayRoleGroup(RoleGroup):
    """``RoleGroup`` over Ray; its ranks also serve a rollout pool.

    Args:
        pool: how many ranks, one a device, in which layout, and the torch threads of each.
        name: of the pool.
        device: with ``cuda`` Ray shows each rank a GPU of its own, its ``cuda:0``.
        gpus: that each asks for: below 1 where rollout workers share it.
        places: of the ranks, and closed with the group; by default they are reserved here.
        call_timeout_s: deadline of any call, and of any collective within one.
        answer_s: seconds in which a rank, busy or not, answers that it lives.
        wait_s: seconds that the cluster has to give all ranks their place.
        log_folder: where each rank keeps its log; None keeps none.
    """

    def __init__(
        self,
        pool: PoolConfig,
        *,
        name: str = MAIN_POOL,
        device: DeviceType = "cpu",
        gpus: float = 0,
        places: Reservation | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        answer_s: float = math.inf,
        wait_s: float = 10.0,
        log_folder: Path | None = None,
    ) -> None:
        layout = {"tp": pool.tp_size, "sp": pool.sp_size, "pp": pool.pp_size}
        super().__init__(MeshShape.of(pool.world_size, **layout), name)
        self._pool, self._layout = pool, layout
        self._device: DeviceType = device
        self._gpus = gpus
        self._limits_s = call_timeout_s, answer_s
        self._log_folder = log_folder
        # the loop's thread and the scoring thread both call; every rank must see one order, or
        # collectives would cross
        self._ordering = threading.Lock()
        each = {"CPU": pool.cpus, "GPU": gpus}
        self._places = places or Reservation(pool, pool.world_size, each, wait_s=wait_s)
        self._start()

    def _start(self) -> None:
        """Starts every rank in its place."""
        pool, (call_timeout_s, answer_s) = self._pool, self._limits_s
        num_ranks, threads = pool.world_size, pool.threads_per_rank
        self._hosts: list[str] = []
        folder = self._log_folder
        self._calls = ActorCalls(
            lambda rank: f"the worker of rank {rank}",
            self._failure,
            call_timeout_s,
            self._lost,
            stacks=lambda rank: folder and folder / f"rank-{rank}.stacks",
        )
        env_vars = thread_env(threads)
        if self._device == "cpu":
            env_vars |= {
                name: os.environ.get(name, value)
                for name, value in _KEEP_FREED_MEMORY.items()
            }
        self._ranks = [
            rank_actor.options(
                num_cpus=pool.cpus,
                num_gpus=self._gpus,
                scheduling_strategy=self._places.place(rank),
                runtime_env={"env_vars": env_vars},
            ).remote(rank, self._log_folder, logs.SLOW_S)
            for rank in range(num_ranks)
        ]
        host, port = self._calls.get(self._ranks[0].listen.remote(), "starting rank 0", 0)
        device = FIRST_DEVICE[self._device]
        specs = [
            DistSpec(rank, num_ranks, host, port, device, call_timeout_s, **self._layout)
            for rank in range(num_ranks)
        ]
        self.call_ranks("starting the workers", "join", [(spec, threads) for spec in specs])
        self._hosts = [process.host for process in self.describe()]
        # One that has not started yet would answer nothing.
        self._calls.lives = self._ranks
        self._calls.answer_s = answer_s
        self.rollouts = RayRolloutPool(self._ranks, self._calls)
        """The rollout pool that all ranks serve; it ends with a rank that dies."""

    def check_alive(self, what: str) -> None:
        self._calls.assert_sound()
        self._calls.check_alive(what)

    def restart(self) -> None:
        """Ends every rank, and starts others in their places; what they hosted is gone."""
        self._end()
        self._start()

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        self.on_all("setting up the stage", "setup", shared(dict(roles)))

    def pool_of(self, ranks: Sequence[int]) -> RolloutPool:
        if len(ranks) == len(self._ranks):
            return self.rollouts
        calls = ActorCalls(
            lambda place: f"the worker of rank {ranks[place]}",
            lambda message, place, text: self._failure(message, ranks[place], text),
            self._calls.timeout_s,
            lambda message, place: self._lost(message, ranks[place]),
            stacks=lambda place: self._calls.stacks(ranks[place]),
        )
        return RayRolloutPool([self._ranks[rank] for rank in ranks], calls)

    def serve(
        self, role: str, dtype: ServedDtype, version: int, *, changes: bool
    ) -> ServedWeights:
        served = self.call("weights", "serve", args=(role, dtype, version, changes))
        ranks = tuple(places for places, _, _ in served)
        _, reference, base = served[0]
        reader = _RankReader(tuple(self._ranks), role)
        return ServedWeights(version, dtype, ranks, reference, reader, base)

    def close(self) -> None:
        try:
            # A poisoned group raises at every call, so its ranks are killed as they are.
            if self._calls.error is None:
                self.on_all("closing the workers", "close")
        finally:
            self._end()
            self._places.close()

    def _end(self) -> None:
        self.rollouts.close()
        for rank in self._ranks:
            ray.kill(rank)

    def begin_ranks(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> Look:
        with self._ordering:
            refs = [
                getattr(rank, method).remote(*own)
                for rank, own in zip(self._ranks, by_rank, strict=True)
            ]
        return self._calls.begin(refs, what).look

    def now(self) -> list[dict[str, Any]]:
        return self._calls.now()

    def _failure(self, message: str, rank: int, traceback_text: str) -> TrainingError:
        host = self._hosts[rank] if self._hosts else None
        return TrainingError(message, rank=rank, host=host, traceback_text=traceback_text)

    def _lost(self, message: str, rank: int) -> RankLostError:
        return RankLostError(
            message, rank=rank, host=self._hosts[rank] if self._hosts else None
        )


@dataclass(frozen=True, slots=True)
class _RankReader:
    """``PartReader`` of ranks in Ray actors."""

    ranks: tuple[Any, ...]
    role: str

    def ask(self, version: int, names: Sequence[tuple[str, ...]], changes: bool) -> Any:
        """See ``PartReader``; a rank that has nothing of a bucket is not asked."""
        return [
            rank.read_served.remote(self.role, version, own, changes) if own else None
            for rank, own in zip(self.ranks, names, strict=True)
        ]

    def take(self, asked: Any) -> list[list[PartBits]]:
        """See ``PartReader``."""
        given = [ref and _answer(ref)[0] for ref in asked]
        try:
            return [ray.get(ref) if ref else [] for ref in given]
        except RayError as gone:
            raise StaleWeightsError("a rank whose weights were on their way died") from gone

    def root(self, method: str, *args: Any) -> Any:
        """See ``PartReader``."""
        return _answer(self.ranks[0].call_root.remote(method, *args))


def _answer(ref: Any) -> Any:
    """What a rank answers, or raises.

    Raises:
        StaleWeightsError: it died, and its weights are gone.
    """
    try:
        return ray.get(ref)
    except RayActorError as dead:
        raise StaleWeightsError(
            f"a rank whose weights are asked for died: {dead}"
        ) from dead
    except RayTaskError as error:
        if isinstance(error.cause, EngineError):
            raise error.cause from None
        raise
