"""Trackio sink: numbers as a run of trackio."""

from __future__ import annotations

from collections.abc import Mapping

import trackio

from agentrl.metrics.metrics_spec import TrackioSpec
from agentrl.metrics.outlets.tracked_run import TrackedRun, TrackerSink


class TrackioSink(TrackerSink):
    """Trackio knows a run by its name, so that the name has the run's id.

    Args:
        spec: where they go.
        run: whose numbers.
    """

    def __init__(self, spec: TrackioSpec, run: TrackedRun) -> None:
        super().__init__(run)
        self._run = trackio.init(
            spec.project,
            name=f"{run.name}-{run.id}",
            space_id=spec.space,
            config=dict(run.settings),
            resume="allow",
            embed=False,
        )

    def keep(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step)

    def close(self, *, failed: bool = False) -> None:
        self._run.finish()
