"""Weight publisher: brings a learner's weights to the engines of a rollout pool."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import RolloutPool
from agentrl.engines import PauseMode
from agentrl.weight_sync import WeightsReport

logger = logging.getLogger(__name__)


class WeightSync(Protocol):
    """How weights get from the ranks that train to the engines."""

    def publish(
        self, learner: RoleHandle, pool: RolloutPool, version: int, mode: PauseMode
    ) -> list[WeightsReport]:
        """Every engine of ``pool``, paused by ``mode`` meanwhile, serves the learner's weights when
        this returns.

        Returns:
            A report for each engine.

        Raises:
            AgentRLError: an update failed; its engine answers nothing more.
        """
        ...


class ColocatedSync:
    """Into the engine beside each rank, by one collective call; ranks without an engine help to
    gather."""

    def publish(
        self, learner: RoleHandle, pool: RolloutPool, version: int, mode: PauseMode
    ) -> list[WeightsReport]:
        del pool  # its engines are those of the learner's ranks
        reports = learner.group.call("weights", "publish", args=(learner.name, version, mode))
        return [report for report in reports if report is not None]


def publish_weights(
    sync: WeightSync,
    learner: RoleHandle,
    pool: RolloutPool,
    version: int,
    mode: PauseMode = "retract",
) -> list[WeightsReport]:
    """Publishes, and logs what was done."""
    start = time.monotonic()
    reports = sync.publish(learner, pool, version, mode)
    fields = {
        "version": version,
        "role": learner.name,
        "engines": len(reports),
        "bytes": sum(report.bytes for report in reports),
        "seconds": time.monotonic() - start,
    }
    logger.info(
        "published version %(version)d of %(role)s to %(engines)d engines: %(bytes)d bytes in "
        "%(seconds).2f s",
        fields,
        extra={"event": "weights_published", **fields},
    )
    return reports
