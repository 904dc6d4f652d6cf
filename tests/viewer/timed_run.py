"""A run whose steps, phases and episodes have times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentrl.store import JsonlWriter, RunDirectory, TrajectoryWriter
from tests.viewer.server.viewers import make_trajectory

T = 1_790_000_000.0
"""When the first step began."""


class TimedRun:
    """A run of stage ``rl`` whose steps last 20 seconds: it waits for episodes for 10 of them."""

    def __init__(self, root: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.directory = RunDirectory.create(root, {"seed": 0}, "stages: [{name: rl}]\n")

    def log(self, step: int, stage: str = "rl", **metrics: Any) -> None:
        """A row of metrics."""
        lines = JsonlWriter(self.directory.metrics_path)
        lines.append({"step": step, "stage": stage, "time": T + 20 * step, **metrics})
        lines.close()

    def phases(self, step: int, *phases: Any, stage: str = "rl") -> None:
        """A row of phases."""
        lines = JsonlWriter(self.directory.phases_path)
        lines.append({"step": step, "stage": stage, "phases": phases})
        lines.close()

    def step(self, step: int, stage: str = "rl") -> None:
        """A step's rows."""
        start = T + 20 * step - 20
        played = ("wait_rollout", start, start + 10)
        self.phases(step, ("step", start - 5, start + 20), played, stage=stage)
        self.log(step, stage, **{"time/step_s": 20.0, "time/wait_rollout_s": 10.0})

    def play(
        self, step: int, *rewards: float, group: int = 0, seal: bool = True, **fields: Any
    ) -> None:
        """A group in which rollout n lasts n + 4 seconds from the step's begin on."""
        start = T + 20 * step - 20
        with TrajectoryWriter(self.directory) as writer:
            for rollout, reward in enumerate(rewards):
                played = make_trajectory(self.tokenizer, group, rollout)
                timings = {"step_at_s": 3.0, "step_s": 0.5}
                turn = replace(played.turns[0], started_at=start, timings=timings)
                times = {"started_at": start, "ended_at": start + 4 + rollout}
                known = {
                    "turns": (turn,),
                    "stage": "rl",
                    "reward": reward,
                    **times,
                    **fields,
                }
                writer.write(replace(played, **known), step)
            if seal:
                writer.seal(step)
