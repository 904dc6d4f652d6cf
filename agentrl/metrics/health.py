"""Health: watches the numbers of a stage, and tells each trouble once, with its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.metrics.monitors import (
    MONITORS,
    WATCHED,
    HealthSpec,
    MonitorReading,
    series_of,
)
from agentrl.metrics.rollout import question_information
from agentrl.types import Trajectory, TrajectoryGroup

_MOST_IDS = 3


@dataclass(frozen=True, slots=True)
class HealthAlert:
    """A trouble, in the step that it began.

    Args:
        name: which, a key of ``MONITORS``.
        step: in which it was seen.
        reading: the number and what it is compared with.
        trajectories: ids of some of the step's that show it.
        query: finds the step's trajectories that show it (docs/query.md).
        blame: the signal whose tokens show it, in the viewer's blame; empty where it is none.
    """

    name: str
    step: int
    reading: MonitorReading
    trajectories: tuple[str, ...]
    query: str
    blame: str = ""

    def __str__(self) -> str:
        return f"step {self.step}: {self.name.replace('_', ' ')}: {self.reading.text}"

    def record(self) -> dict[str, Any]:
        """As an event has it."""
        return {
            "alert": self.name,
            "step": self.step,
            "metric": self.reading.metric,
            "value": self.reading.value,
            "reference": self.reading.reference,
            "trajectories": list(self.trajectories),
            "query": self.query,
            "blame": self.blame,
        }


class Health:
    """Tells an alert when its rule is first broken, and again only after it held in between.

    Args:
        spec: thresholds.
        earlier: the rows of metrics of the stage so far, for one that is resumed; what they broke
            was told.
        ahead: whether a step's trajectories were stored under earlier ones, in which they ended.
    """

    def __init__(
        self,
        spec: HealthSpec,
        earlier: Iterable[Mapping[str, Any]] = (),
        *,
        ahead: bool = False,
    ) -> None:
        self._spec = spec
        self._step_term = "trained_step" if ahead else "step"
        self._series = series_of(spec)
        self._active: set[str] = set()
        for row in earlier:
            self._take(row)

    def watch(
        self, step: int, values: Mapping[str, float], groups: Sequence[TrajectoryGroup]
    ) -> list[HealthAlert]:
        """What is wrong since this step.

        Args:
            step: of the stage.
            values: its metrics.
            groups: that were played for it, which have the evidence.
        """
        own = f"{self._step_term}:{step} purpose:train"
        return [
            HealthAlert(name, step, reading, *_evidence(name, own, groups))
            for name, reading in self._take(values).items()
        ]

    def _take(self, values: Mapping[str, Any]) -> dict[str, MonitorReading]:
        """The rules that are broken now, and were not before this step."""
        for name in WATCHED:
            value = values.get(name)
            # A number that is not finite says nothing of a course, and would stay in every mean.
            if isinstance(value, int | float) and math.isfinite(value):
                self._series[name].add(float(value))
        broken = {
            name: reading
            for name, monitor in MONITORS.items()
            if (reading := monitor(self._series, self._spec)) is not None
        }
        fresh = {
            name: reading for name, reading in broken.items() if name not in self._active
        }
        self._active = set(broken)
        return fresh


def _evidence(
    name: str, own: str, groups: Sequence[TrajectoryGroup]
) -> tuple[tuple[str, ...], str, str]:
    """Trajectory ids, a query within ``own``, and a signal of blame."""
    finished = [trajectory for group in groups for trajectory in group.finished]
    if name == "template_collapse":
        known = question_information(groups)
        return tuple(sorted(known, key=lambda one: known[one])[:_MOST_IDS]), own, ""
    if name == "no_signal":
        equal = [
            group.finished[0]
            for group in groups
            if len(group.finished) >= 2 and len({one.reward for one in group.finished}) == 1
        ]
        return _ids(equal), own, ""
    if name == "failed_episodes":
        played = [trajectory for group in groups for trajectory in group.trajectories]
        failed = [trajectory for trajectory in played if trajectory.status.kind == "failed"]
        return _ids(failed), f"{own} status:failed", ""
    term, key, blame = _SHOWING.get(name, ("", _by_id, ""))
    return _ids(sorted(finished, key=key)), f"{own} {term}".strip(), blame


def _ids(trajectories: Iterable[Trajectory]) -> tuple[str, ...]:
    return tuple(trajectory.id for trajectory in list(trajectories)[:_MOST_IDS])


def _by_id(trajectory: Trajectory) -> Any:
    return trajectory.group_index, trajectory.rollout_index


def _num_errors(trajectory: Trajectory) -> int:
    calls = [call for turn in trajectory.turns for call in turn.calls]
    return sum(call.error is not None for call in calls)


_SHOWING: Mapping[str, tuple[str, Callable[[Trajectory], Any], str]] = {
    "ratio_jump": ("", _by_id, "clipped"),
    "mismatch_jump": ("", _by_id, "mismatch"),
    "reward_stuck": ("", lambda trajectory: trajectory.reward, ""),
    "tool_collapse": (
        "calls=0",
        lambda one: sum(len(turn.calls) for turn in one.turns),
        "",
    ),
    "tool_errors": ("tool_errors>=1", lambda one: -_num_errors(one), ""),
    "unknown_tokens": (
        "",
        lambda trajectory: -trajectory.info.get("unknown_frac", 0.0),
        "",
    ),
    "length_explosion": ("", lambda trajectory: -trajectory.num_policy_tokens, ""),
}
"""A term of the query, what comes first among the ids, and a signal of blame."""
