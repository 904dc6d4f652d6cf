"""Weight publisher: brings a learner's weights to the engines of a rollout pool."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import RolloutPool
from agentrl.engines import PauseMode
from agentrl.weight_sync import WeightsReport

logger = logging.getLogger(__name__)


class WeightSync:
    """How weights get from the ranks that train to the engines.

    Attributes:
        published: what was published last, and the bytes of all that was.
    """

    published: Mapping[str, Any] = {"bytes_in_all": 0}

    def publish(
        self,
        policy: str,
        learner: RoleHandle,
        pool: RolloutPool,
        version: int,
        mode: PauseMode = "retract",
        *,
        changes: bool = False,
    ) -> list[WeightsReport]:
        """Every engine of ``pool``, paused by ``mode`` meanwhile, serves the learner's weights as a
        version of the policy when this returns; what was done is logged.

        Args:
            policy: by name.
            learner: has the weights.
            pool: of the engines.
            version: the policy version from now on.
            mode: what becomes of requests in flight.
            changes: engines elsewhere that serve the weights published last are sent only what
                changed since.

        Returns:
            A report for each engine.

        Raises:
            AgentRLError: an update failed; its engine answers nothing more.
        """
        start = time.monotonic()
        reports = self.send(learner, pool, version, mode, changes)
        fields: dict[str, Any] = {
            "version": version,
            "policy": policy,
            "engines": len(reports),
            "bytes": sum(report.bytes for report in reports),
            "seconds": time.monotonic() - start,
        }
        so_far = self.published["bytes_in_all"] + fields["bytes"]
        self.published = {**fields, "bytes_in_all": so_far}
        logger.info(
            "published version %(version)d of %(policy)s to %(engines)d engines: %(bytes)d bytes "
            "in %(seconds).2f s",
            fields,
            extra={"event": "weights_published", **fields},
        )
        return reports

    def send(
        self,
        learner: RoleHandle,
        pool: RolloutPool,
        version: int,
        mode: PauseMode,
        changes: bool,
    ) -> list[WeightsReport]:
        """Brings the weights to the engines."""
        raise NotImplementedError


class ServedSync(WeightSync):
    """From each rank's served copy to engines in other processes, which take its parts in
    buckets."""

    def send(
        self,
        learner: RoleHandle,
        pool: RolloutPool,
        version: int,
        mode: PauseMode,
        changes: bool,
    ) -> list[WeightsReport]:
        layout = pool.layout()
        if layout is None:
            return []
        weights = learner.group.serve(learner.name, layout.dtype, version, changes=changes)
        return pool.update(weights, version, mode)


class ColocatedSync(ServedSync):
    """Into the engine in each rank's process, by one collective call; ranks without an engine help
    to gather. Servers that a rank started are other processes: they take whole tensors from the
    served copies, or what each rank of theirs lacks of its own part, where ranks have them
    together and each can be sent its part alone."""

    def send(
        self,
        learner: RoleHandle,
        pool: RolloutPool,
        version: int,
        mode: PauseMode,
        changes: bool,
    ) -> list[WeightsReport]:
        layout = pool.layout()
        group = learner.group
        if layout is not None and layout.restarts:
            if len(layout.shards) != group.ranks_a_server:
                return super().send(learner, pool, version, mode, changes=False)
            weights = group.serve(learner.name, layout.dtype, version, changes=False)
            args: tuple[Any, ...] = (learner.name, weights, layout.shards, mode)
            reports = group.call("weights", "hand_over", args=args)
        else:
            dtype = "float32" if layout is None else layout.dtype
            args = (learner.name, version, mode, dtype)
            reports = group.call("weights", "publish", args=args)
        return [report for report in reports if report is not None]
