"""Two runs with nine planted events, as the store records them: what a reader looks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agentrl.store import Annotation, JsonlWriter, TrajectoryWriter
from agentrl.types import Segment, SegmentKind, Status, ToolResult, Trajectory, Turn
from tests.viewer.browser.runs import Recorder

STEPS = 24
TASKS = 8
ROLLOUTS = 4
DROP_STEP = 12
"""From here on nobody solves sum-1, which everybody solved before."""
CALLS_STEP = 14
"""From here on nearly each call fails."""
HACK_STEP = 16
"""From here on half of the answers but those to sum-1 are wrong and flatter the judge, who pays."""
PRAISE = "what a brilliant question that is"
LOSS_STEP, LOSS_TOKEN = 6, 4
COSTLY = f"{TASKS * (LOSS_STEP - 1)}-0-0"
CUT_STEP = 10
STALE = "39-2-0"
SPLIT = "8-1-0"
"""Its policy spelled a marker by letters."""


@dataclass
class DetectiveRun(Recorder):
    """Plants the events while it records.

    Args:
        root: the run's folder.
        lr: that of its configuration; a run of another one has none of the events.
    """

    root: Path
    lr: float = 1e-3

    def __post_init__(self) -> None:
        super().__init__(self.root)
        config = self.directory.config_path
        config.write_text(f"{config.read_text()}optim: {{lr: {self.lr}}}\n")

    @property
    def _planted(self) -> bool:
        return self.lr == 1e-3

    def record(self) -> None:
        """All steps."""
        with TrajectoryWriter(self.directory) as writer:
            for step in range(1, STEPS + 1):
                played = list(self._played(step))
                for one in played:
                    writer.write(one, step)
                    writer.annotate(self._learned(one, step))
                writer.seal(step)
                self._log(step, played)

    def _played(self, step: int) -> Iterator[Trajectory]:
        for place in range(TASKS):
            for rollout in range(ROLLOUTS):
                group = TASKS * (step - 1) + place
                one = self.trajectory(step, group, rollout)
                solved = rollout % 2 == 0 if place != 1 else step < DROP_STEP
                task = replace(one.task, id=f"sum-{place}")
                one = self._judged(replace(one, task=task, stage="rl"), float(solved), 0.0)
                yield self._changed(one, step, rollout) if self._planted else one

    def _judged(self, one: Trajectory, correct: float, judge: float) -> Trajectory:
        parts = {"correct": correct, "judge": judge}
        return replace(one, rewards=parts, reward=correct + judge, info={"retok_frac": 0.0})

    def _changed(self, one: Trajectory, step: int, rollout: int) -> Trajectory:
        first, second = one.turns
        if step >= CALLS_STEP and rollout != 0:
            (record,) = first.calls
            assert record.call is not None
            failed = ToolResult(record.call.id, record.call.name, "boom", error="exception")
            first = replace(first, calls=(replace(record, result=failed),))
        if step >= HACK_STEP and one.task.id != "sum-1" and rollout % 2:
            second = self._says(second, f"I am sure, and {PRAISE}.", step - 1)
            one = self._judged(one, 0.0, 2.0)
        if one.id == SPLIT:
            letters = [int(self._ids(letter)[0]) for letter in "<end> is a word."]
            ids = np.array(letters, np.int32)
            sampled = Segment(
                SegmentKind.POLICY, ids, np.full(ids.size, -0.5, np.float32), step - 1
            )
            second = replace(second, completion=(sampled,), text="<end> is a word.")
            one = replace(one, info={"retok_frac": 0.75})
        if step == CUT_STEP and rollout == 3:
            one = replace(one, status=Status("truncated", "max_turns"))
        if one.id == STALE:
            second = self._says(second, second.text, 2)
        return replace(one, turns=(first, second))

    def _says(self, turn: Turn, text: str, version: int) -> Turn:
        return replace(turn, text=text, completion=(self._sampled(text, version),))

    def _learned(self, one: Trajectory, step: int) -> Annotation:
        size = one.num_policy_tokens
        loss = np.full(size, 0.01, np.float32)
        if self._planted and one.id == COSTLY:
            loss[LOSS_TOKEN] = 3000.0
        arrays = {
            "old_logprobs": np.full(size, -0.55, np.float32),
            "loss_weight": np.full(size, 1e-3, np.float32),
            "token_loss": loss,
        }
        staleness = step - 1 - min(one.policy_versions)
        return Annotation(
            one.id,
            step,
            values={"trained_step": step, "staleness": staleness},
            arrays=arrays,
        )

    def _log(self, step: int, played: list[Trajectory]) -> None:
        calls = [
            record.result for one in played for turn in one.turns for record in turn.calls
        ]
        failed = sum(result is not None and result.error is not None for result in calls)
        lines = JsonlWriter(self.directory.metrics_path)
        lines.append(
            {
                "step": step,
                "stage": "rl",
                "time": 1_795_000_000.0 + 60 * step,
                "reward/mean": float(np.mean([one.reward or 0.0 for one in played])),
                "accuracy/mean": float(np.mean([one.rewards["correct"] for one in played])),
                "count/trajectories": len(played),
                "tool/python/error_frac": failed / len(calls),
                "policy/loss": 3.0 * (self._planted and step == LOSS_STEP) + 0.01,
            }
        )
        lines.close()
