"""W&B sink: numbers as a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from agentrl.metrics.metrics_spec import WandbSpec
from agentrl.metrics.outlets.courier import CLOSE_S
from agentrl.metrics.outlets.tracked_run import TrackedRun, TrackerSink


class WandbSink(TrackerSink):
    """All numbers have ``step`` for their axis: W&B's own only grows, and each stage begins at 1.

    Args:
        spec: where they go.
        run: whose numbers.
    """

    def __init__(self, spec: WandbSpec, run: TrackedRun) -> None:
        super().__init__(run)
        # silent: else it asks who sits at the terminal for a key, and waits
        settings = wandb.Settings(console="off", silent=True, finish_timeout=CLOSE_S)
        wandb.setup(settings)
        self._run = wandb.init(
            **spec.model_dump(),
            id=run.id,
            name=run.name,
            resume="allow",
            dir=str(run.root),
            config=dict(run.settings),
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")
        if spec.mode == "online":
            run.say(f"metrics.wandb: {self._run.url}")

    def keep(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, *, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))
