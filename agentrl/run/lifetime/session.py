"""Run processes: the role group, the rollout pool and Ray, as a configuration asks for them, and
their end."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.config import RunConfig
from agentrl.config.sections import MAIN_POOL, PoolConfig
from agentrl.controller.cluster.phases import largest
from agentrl.controller.cluster.role_group import LocalRoleGroup, RoleGroup
from agentrl.controller.cluster.rollout_pool import (
    ProcessInfo,
    RolloutPool,
    RolloutWorkerSpec,
)
from agentrl.controller.cluster.weight_publisher import (
    ColocatedSync,
    ServedSync,
    WeightSync,
)
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.controller.ledger import Ledger
from agentrl.controller.stop_request import StopRequest
from agentrl.metrics import PhaseTimer, Sink, StepDisplay
from agentrl.metrics.memory import rss_gib
from agentrl.run.build import LiveObjects
from agentrl.run.lifetime.restarts import Restarts
from agentrl.store import EventLog, Heartbeat, RunDirectory, TrajectoryWriter
from agentrl.store.logs import StackFile
from agentrl.training.device import device_type

_WORKERS = "rollout workers"
"""Of claims: no pool of ranks has a space in its name."""


class _Claim(NamedTuple):
    """What a pool asks Ray for.

    Args:
        pool: whose machines they are.
        processes: places in all.
        each: what a place has, by Ray's names of resources.
        gpus: of each process in it.
    """

    pool: PoolConfig
    processes: int
    each: dict[str, float]
    gpus: float


class RunProcesses:
    """Opens what a configuration asks for; ends what it started.

    Attributes:
        pools: the ranks of each pool of ``placement``.
        roles: the pool that holds each role of the stage.
        rollouts: where episodes are played: beside the ranks of the policy, or with
            ``placement.rollout_workers`` apart from them.
        sync: how weights get from the ones to the others.

    Args:
        config: ``placement`` says what is opened.
        log_folder: where each process keeps its log; None keeps none.
    """

    rollouts: RolloutPool

    def __init__(self, config: RunConfig, log_folder: Path | None = None) -> None:
        self._placement = config.placement
        self._project = config.base_dir
        self._device = device_type(config.placement.device)
        # Stored groups need no worker to play them.
        self._workers, most = (
            (0, 0) if config.run.replay is not None else config.placement.worker_range
        )
        self._joining = most - self._workers
        playing = [
            stage for stage in config.resolved_stages() if stage.plays and self._workers
        ]
        self._worker_gpus = max((stage.gpus_a_worker for stage in playing), default=0)
        # Where a later part cannot be opened, the stack ends those before it, the newest first.
        self.sync: WeightSync = ColocatedSync()
        self.pools: dict[str, RoleGroup] = {}
        self.roles: dict[str, RoleGroup] = {}
        self._ranks: list[ProcessInfo] = []
        with ExitStack() as opened:
            if config.placement.mode == "inline":
                self._open_inline(opened, log_folder)
            else:
                self._open_ray(opened, log_folder)
            self._opened = opened.pop_all()

    def _open_inline(self, opened: ExitStack, log_folder: Path | None) -> None:
        """Everything in this process."""
        stacks = StackFile(log_folder and log_folder / "driver.stacks")
        threads = self._placement.threads_per_rank
        local = LocalRoleGroup(threads=threads, device=self._device, stacks=stacks)
        opened.callback(local.close)
        self.pools = {MAIN_POOL: local}
        self.rollouts = local.rollouts

    def _open_ray(self, opened: ExitStack, log_folder: Path | None) -> None:
        """A process for each rank and each rollout worker."""
        from agentrl.controller.cluster.ray_cluster import (
            Reservation,
            shut_down_ray,
            start_ray,
        )
        from agentrl.controller.cluster.ray_role_group import RayRoleGroup
        from agentrl.controller.cluster.ray_rollout_pool import rollout_workers

        own = self._placement
        claims = self._claims()
        cpus = sum(claim.processes * claim.each["CPU"] for claim in claims.values())
        # room for workers that join a private cluster, as far as the machine has it
        joining = self._joining * own.worker_pool.cpus
        cpus = max(cpus, min(cpus + joining, os.cpu_count() or 1))
        if start_ray(cpus, own.ray_address, own.env, self._project):
            # The stack runs the first callback last: ranks and workers end before Ray does.
            opened.callback(shut_down_ray)
        places: dict[str, Reservation] = {}
        for name, claim in claims.items():
            # all of them, before any process starts: what cannot be had is told at once
            places[name] = Reservation(
                claim.pool,
                claim.processes,
                claim.each,
                wait_s=own.wait_s,
                spread=name == _WORKERS,
            )
            opened.callback(places[name].close)
        for name, pool in own.rank_pools.items():
            group = RayRoleGroup(
                pool,
                name=name,
                device=self._device,
                gpus=claims[name].gpus,
                places=places[name],
                call_timeout_s=own.call_timeout_s,
                answer_s=own.worker_liveness_timeout_s,
                log_folder=log_folder,
            )
            opened.callback(group.close)
            self.pools[name] = group
            if name == MAIN_POOL:
                self.rollouts = group.rollouts
        if self._workers:
            home = own.rollout if own.workers_share and own.rollout else _WORKERS
            gpus = min(claims[home].gpus, self._worker_gpus)
            self.sync = ServedSync()
            self.rollouts = rollout_workers(
                own, gpus=gpus, places=places[home], log_folder=log_folder
            )
            opened.callback(self.rollouts.close)

    def _claims(self) -> dict[str, _Claim]:
        """Of each pool; rollout workers that share the GPUs of ranks are in the places of these."""
        own, workers = self._placement, self._placement.worker_pool
        claims: dict[str, _Claim] = {}
        for name, pool in own.rank_pools.items():
            # of each rank
            sharing = (
                math.ceil(self._workers / pool.world_size) if name == own.rollout else 0
            )
            gpus = int(self._device == "cuda" or pool.gpus is not None)
            each = {name: sharing * amount for name, amount in own.worker_resources.items()}
            each |= {"CPU": pool.cpus + sharing * workers.cpus, "GPU": gpus}
            parts = 1 + (sharing if self._worker_gpus else 0)
            # Ray counts ten thousandths of a GPU
            claims[name] = _Claim(
                pool, pool.world_size, each, 10_000 * gpus // parts / 10_000
            )
        if self._workers and not own.workers_share:
            gpus = self._worker_gpus
            each = {"CPU": workers.cpus, "GPU": gpus, **own.worker_resources}
            claims[_WORKERS] = _Claim(workers, self._workers, each, gpus)
        return claims

    def describe(self) -> list[ProcessInfo]:
        """Where each rank runs."""
        self._ranks = [
            process for pool in self.pools.values() for process in pool.describe()
        ]
        return self._ranks

    def now(self) -> dict[str, Any]:
        """Calls of ranks, memory of the driver and of ranks on its machine, and what was published
        last, as JSON."""
        host = socket.gethostname()
        ranks = {
            f"rank_{one.rank}": rss_gib(one.pid) for one in self._ranks if one.host == host
        }
        return {
            "calls": [own for pool in self.pools.values() for own in pool.now()],
            "memory_gib": {"driver": rss_gib(), **ranks},
            "published": self.sync.published,
        }

    def check_ranks(self) -> None:
        """Raises a RankLostError where a rank was lost while nothing is asked of it."""
        for pool in self.pools.values():
            pool.check_alive("waiting for finished groups")

    def restart_ranks(self) -> None:
        """Starts every rank again; rollout workers apart from them go on.

        Raises:
            RankLostError: one died meanwhile.
        """
        for pool in self.pools.values():
            pool.restart()

    def setup(
        self,
        roles: Mapping[str, RoleSpec],
        rollouts: RolloutWorkerSpec | None,
        *,
        going_on: bool = False,
    ) -> None:
        """Builds a stage's roles, then its rollouts; what an earlier stage left is ended first.

        Args:
            roles: by name.
            rollouts: what hosts its episodes; None for a stage without them.
            going_on: rollout workers apart from the ranks stay as they are: they play the stage.
        """
        places = {role: self._placement.pool_of(role) for role in roles}
        self.roles = {role: self.pools[place] for role, place in places.items()}
        for name, pool in self.pools.items():
            pool.setup({role: spec for role, spec in roles.items() if places[role] == name})
        if not self._workers:
            self.rollouts = self._policy_ranks.host(rollouts)
        if not (going_on and self._workers):
            self.rollouts.setup(rollouts)

    @property
    def has_workers(self) -> bool:
        """Whether episodes are played apart from the ranks."""
        return bool(self._workers)

    @property
    def _policy_ranks(self) -> RoleGroup:
        return self.pools[MAIN_POOL]

    def train_in_turn(self) -> None:
        """A batch is complete: engines that sleep meanwhile give the ranks' GPUs to the trainer,
        until the next publish."""
        if not self._workers:
            self._policy_ranks.call("phases", "enter", args=("update",))

    def take_numbers(self) -> dict[str, float]:
        """Metrics of taking turns since the last call."""
        return (
            {}
            if self._workers
            else largest(self._policy_ranks.call("phases", "take_numbers"))
        )

    def close(self) -> None:
        """Ends the workers, and Ray where this session started it."""
        self._opened.close()


def with_device(config: RunConfig) -> RunConfig:
    """The configuration with ``placement.device: auto`` as the machines of its ranks have it:
    those of a cluster that is joined may differ from this one."""
    own = config.placement
    if own.mode != "ray" or own.ray_address is None or own.device != "auto":
        return config
    from agentrl.controller.cluster.ray_cluster import device_of_cluster

    return config.replace(placement=own.replace(device=device_of_cluster(own.ray_address)))


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all stages of a run share."""

    directory: RunDirectory
    processes: RunProcesses
    live: LiveObjects
    ledger: Ledger
    writer: TrajectoryWriter
    events: EventLog
    sink: Sink
    display: StepDisplay
    timer: PhaseTimer
    stop: StopRequest
    heartbeat: Heartbeat
    restarts: Restarts
