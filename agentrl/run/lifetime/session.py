"""Run processes: the role group, the rollout pool and Ray, as a configuration asks for them, and
their end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.controller.cluster.role_group import LocalRoleGroup, RoleGroup
from agentrl.controller.cluster.rollout_pool import RolloutPool, RolloutWorkerSpec
from agentrl.controller.cluster.weight_publisher import ColocatedSync, WeightSync
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.controller.ledger import Ledger
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import ConfigError
from agentrl.metrics import PhaseTimer, Sink, StepDisplay
from agentrl.run.build import LiveObjects
from agentrl.store import EventLog, Heartbeat, RunDirectory, TrajectoryWriter
from agentrl.training.device import check_gpus, num_gpus


class RunProcesses:
    """Opens what a configuration asks for; ends what it started.

    Attributes:
        roles: the ranks that train and score.
        rollouts: where episodes are played: beside the ranks, or with ``rollout.num_workers`` apart
            from them.
        sync: how weights get from the ones to the others.

    Args:
        config: ``controller.mode``, and the size of the group.
        log_folder: where each process keeps its log; None keeps none.

    Raises:
        ConfigError: ``controller.mode=inline`` with several ranks, or with rollout workers.
    """

    roles: RoleGroup
    rollouts: RolloutPool

    def __init__(self, config: RunConfig, log_folder: Path | None = None) -> None:
        # Stages share their processes, so that the first one's settings are those of all.
        stage = config.resolved_stages()[0]
        train, rollout = stage.train, stage.rollout
        ranks, threads, device = train.world_size, train.threads_per_rank, stage.device
        # Stored groups need no worker to play them.
        replays = config.run.replay is not None
        workers = 0 if replays else rollout.num_workers
        # Where a later part cannot be opened, the stack ends those before it, the newest first.
        self.sync: WeightSync = ColocatedSync()
        with ExitStack() as opened:
            if config.controller.mode == "inline":
                for setting, found, most in (
                    ("train.world_size", ranks, 1),
                    ("rollout.num_workers", workers, 0),
                ):
                    if found > most:
                        raise ConfigError(
                            "controller.mode=inline runs everything in one process, got "
                            f"{setting}={found}; set {setting}={most}, or controller.mode=ray"
                        )
                if device == "cuda":
                    check_gpus(1, num_gpus(), "by torch on this machine")
                local = LocalRoleGroup(threads=threads, device=device)
                opened.callback(local.close)
                self.roles = local
                self.rollouts = local.rollouts
            else:
                from agentrl.controller.cluster.ray_role_group import ObjectStoreSync, RayRoleGroup
                from agentrl.controller.cluster.ray_rollout_pool import rollout_workers
                from agentrl.controller.cluster.ray_runtime import (
                    cluster_gpus,
                    shut_down_ray,
                    start_ray,
                )

                if start_ray(ranks + workers, config.controller.ray_address):
                    opened.callback(shut_down_ray)
                if device == "cuda":
                    check_gpus(ranks + workers, cluster_gpus(), "in Ray's cluster")
                call_timeout_s = config.controller.call_timeout_s
                group = RayRoleGroup(
                    ranks,
                    threads=threads,
                    tp=train.tp_size,
                    sp=train.sp_size,
                    device=device,
                    call_timeout_s=call_timeout_s,
                    log_folder=log_folder,
                )
                opened.callback(group.close)
                self.roles = group
                self.rollouts = group.rollouts
                if workers:
                    self.sync = ObjectStoreSync(group)
                    self.rollouts = rollout_workers(
                        workers,
                        threads=threads,
                        device=device,
                        resources=rollout.worker_resources,
                        max_restarts=rollout.worker_restarts,
                        answer_s=rollout.worker_liveness_timeout_s,
                        call_timeout_s=call_timeout_s,
                        log_folder=log_folder,
                    )
                    opened.callback(self.rollouts.close)
            self._opened = opened.pop_all()

    def setup(self, roles: Mapping[str, RoleSpec], rollouts: RolloutWorkerSpec | None) -> None:
        """Builds a stage's roles, then its rollouts; what an earlier stage left is ended first."""
        self.roles.setup(roles)
        self.rollouts.setup(rollouts)

    def close(self) -> None:
        """Ends the workers, and Ray where this session started it."""
        self._opened.close()


def with_device(config: RunConfig) -> RunConfig:
    """The configuration with ``train.device: auto`` as the machines of its ranks have it: those of
    a cluster that is joined may differ from this one."""
    own = config.controller
    if own.mode != "ray" or own.ray_address is None or config.train.device != "auto":
        return config
    from agentrl.controller.cluster.ray_runtime import device_of_cluster

    device = device_of_cluster(own.ray_address)
    return config.replace(train=config.train.replace(device=device))


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
