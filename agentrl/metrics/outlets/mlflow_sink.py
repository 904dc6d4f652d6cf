"""MLflow sink: numbers as a run of MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from agentrl.metrics.metrics_spec import MlflowSpec
from agentrl.metrics.outlets.tracked_run import TrackedRun, TrackerSink

_TAG = "agentrl.run"
_named = partial(re.compile(r"[^\w./: -]").sub, "_")
"""A name with what MLflow's may not have replaced."""


class MlflowSink(TrackerSink):
    """A run there is known by a tag that has the run's id.

    Args:
        spec: where they go.
        run: whose numbers.
    """

    def __init__(self, spec: MlflowSpec, run: TrackedRun) -> None:
        super().__init__(run)
        self._client = client = MlflowClient(spec.tracking_uri)
        known = client.get_experiment_by_name(spec.experiment)
        experiment = (
            known.experiment_id if known else client.create_experiment(spec.experiment)
        )
        found = client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'")
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, "RUNNING")
            return
        made = client.create_run(experiment, tags={_TAG: run.id}, run_name=run.name)
        self._id = made.info.run_id
        params = [Param(_named(key), str(value)) for key, value in run.settings.items()]
        client.log_batch(self._id, params=params)

    def keep(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_named(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics)

    def close(self, *, failed: bool = False) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")
