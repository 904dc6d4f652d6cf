"""The processes of a run: Ray where asked for, the workers, and their end."""

from __future__ import annotations

from types import TracebackType

from agentrl.config import RunConfig
from agentrl.controller.cluster.role_group import LocalGroup, WorkerGroup
from agentrl.errors import ConfigError

__all__ = ["RunProcesses"]


class RunProcesses:
    """Opens the worker group that a configuration asks for; ends what it started.

    Args:
        config: ``controller.mode``, and the size of the group.

    Raises:
        ConfigError: ``controller.mode=inline`` with several ranks, or with rollout workers.
    """

    def __init__(self, config: RunConfig) -> None:
        stages = config.resolved_stages()
        ranks = max(stage.train.world_size for stage in stages)
        threads = stages[0].train.threads_per_rank
        workers = max(stage.rollout.num_workers for stage in stages)
        self._owns_ray = False
        self.group: WorkerGroup
        if config.controller.mode == "inline":
            if ranks > 1:
                raise ConfigError(
                    f"controller.mode=inline runs everything in one process, got train.world_size={ranks}; "
                    "set train.world_size=1, or controller.mode=ray"
                )
            if workers:
                raise ConfigError(
                    f"controller.mode=inline runs everything in one process, got rollout.num_workers={workers}; "
                    "set rollout.num_workers=0, or controller.mode=ray"
                )
            self.group = LocalGroup(threads=threads)
        else:
            from agentrl.controller.cluster.ray_role_group import RayGroup, start_ray

            self._owns_ray = start_ray(ranks + workers, config.controller.ray_address)
            trainers = RayGroup(ranks, threads=threads)
            self.group = trainers
            if workers:
                from agentrl.controller.cluster.ray_rollout_pool import RayRolloutGroup

                own = next(
                    stage.rollout for stage in stages if stage.rollout.num_workers == workers
                )
                self.group = RayRolloutGroup(
                    trainers,
                    workers,
                    threads=threads,
                    resources=own.worker_resources,
                    max_restarts=own.worker_restarts,
                    answer_s=own.worker_liveness_timeout_s,
                )

    def close(self) -> None:
        """Ends the workers, and Ray where this session started it."""
        try:
            self.group.close()
        finally:
            if self._owns_ray:
                import ray

                ray.shutdown()

    def __enter__(self) -> RunProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
