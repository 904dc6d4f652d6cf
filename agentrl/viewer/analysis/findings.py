"""Findings: the lines of an overview that say where to look first, and since when.

A finding is a change for the worse that chance does not make, that matters and that is abrupt
(``change_points``, ``agentrl.metrics.changes``). Changes of one step are one finding, since a fault
shows in several metrics: the largest leads, the others are named beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from agentrl.metrics.changes import REWARD, SHARE, Gauge, gauge_of
from agentrl.metrics.monitors import HealthSpec
from agentrl.types.arrays import F64
from agentrl.viewer.analysis.blame import LOGGED, BlameRow, Signal
from agentrl.viewer.analysis.change_points import (
    LARGEST,
    LEAST_STEPS,
    WINDOW,
    change_points,
)
from agentrl.viewer.index.query import term

FindingKind = Literal["change", "spike", "alert"]
MOST_FINDINGS = 8
_MOST_METRICS = 6
"""Of a finding."""

Curves = Mapping[str, tuple[F64, F64]]
"""By metric, the steps that logged it, ascending, and its finite values."""
WorstToken = Callable[[int], BlameRow | None]

_STEPS = "count/trajectories"
"""A metric that every step with episodes logs."""
_SPREAD = "reward/std"
_ABSENT_IS_0 = re.compile(r"tool/(.+/)?error/.*|(failed|cancelled)/.*|optim/not_finite")
_SOURCE = re.compile(r"reward/.+/mean")
_OF_EPISODES = re.compile(r"(?!eval/|mismatch/|policy/).*(_frac|success_frac)|accuracy/.*")
"""Shares of a step's episodes or groups, whose noise is known from their number."""
_IDEALLY_0 = re.compile(
    r"tool/.*error.*_frac|(excluded|failed)_frac|optim/not_finite|mismatch/.*logp_abs.*"
)
"""What is a fault from the first step on, too."""
_FROM_THE_FIRST = 2.0
"""How many times the least change such a level is at least: a policy begins with some errors."""
_TOOL = re.compile(r"tool/(?:([^/]+)/)?error.*_frac")


@dataclass(frozen=True, slots=True)
class MetricChange:
    """What a metric did.

    Args:
        name: of the metric.
        before, after: its levels; the same where it was bad from the first step on, None where it
            is logged no more.
        size: how many times the least change that is a finding.
    """

    name: str
    before: float
    after: float | None
    size: float


@dataclass(frozen=True, slots=True)
class OverviewFinding:
    """One line.

    Args:
        kind: a level that changed, a step that stood out, or an alert of the run.
        text: the line.
        link: the evidence, as ``page`` and the page's parameters.
        step: of the onset.
        query: of the episodes of that step that show it; empty for an alert.
        metrics: what changed there, the largest first.
        chart: the page with the first metric's chart.
    """

    kind: FindingKind
    text: str
    link: Mapping[str, Any]
    step: int | None = None
    query: str = ""
    metrics: Sequence[MetricChange] = ()
    chart: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Onset:
    """The changes of one step, the largest first."""

    step: int
    lasts: bool
    changes: list[MetricChange] = field(default_factory=list)


def findings(
    curves: Curves,
    events: Iterable[Mapping[str, Any]] = (),
    worst_token: WorstToken | None = None,
    *,
    stage: str | None = None,
    health: HealthSpec | None = None,
) -> list[OverviewFinding]:
    """The lines, the largest change first, then the newest alert.

    Args:
        curves: of one stage.
        events: rows of ``events.jsonl``.
        worst_token: the token of the largest mismatch of a step (``blame``); None where the run
            does not keep what it takes.
        stage: what links must name, where the run has several.
        health: the stage's thresholds.
    """
    found: list[_Onset] = []
    for step, lasts, change in sorted(
        _changes(curves, health or HealthSpec()), key=_by_size
    ):
        # Of a fault that lasts, metrics of the batch and of what ended since may differ by a step.
        apart = 1 if lasts else 0
        near = [
            one for one in found if abs(one.step - step) <= apart and one.lasts >= lasts
        ]
        onset = near[0] if near else _Onset(step, lasts)
        if not near:
            found.append(onset)
        onset.changes.append(change)
    lines = [_line(one, stage, worst_token) for one in found[:MOST_FINDINGS]]
    return [*lines, *_alert(events)]


def _by_size(found: tuple[int, bool, MetricChange]) -> tuple[float, int, str]:
    step, _, change = found
    return -change.size, step, change.name


def _changes(
    curves: Curves, health: HealthSpec
) -> Iterator[tuple[int, bool, MetricChange]]:
    """Each metric's: the step, whether it lasts, and what changed."""
    nothing = (np.empty(0), np.empty(0))
    steps, episodes = curves.get(_STEPS, nothing)
    groups = curves.get("count/groups", nothing)[1]
    spreads = curves.get(_SPREAD, nothing)[1]
    # What matters is a low one, since a fault may widen it or leave none; noise is the usual one.
    spreads = spreads[spreads > 0.0]
    spread, usual = (
        np.quantile(spreads, [0.25, 0.5]).tolist() if spreads.size else (0.0, 0.0)
    )
    for name, curve in curves.items():
        gauge = gauge_of(name, health, spread)
        if gauge is None:
            continue
        own, values = _filled(curve, steps) if _ABSENT_IS_0.fullmatch(name) else curve
        noise, lead = 0.0, LEAST_STEPS
        counts = groups if name.startswith("group/") else episodes
        if counts.size and _OF_EPISODES.fullmatch(name):
            share = float(np.clip(values.mean(), 0.0, 1.0))
            noise = float(np.sqrt(share * (1.0 - share) / max(1.0, np.median(counts))))
            lead = 1
        if groups.size and REWARD.fullmatch(name):
            # As if the rewards of a group were one.
            noise = usual / float(np.sqrt(max(1.0, np.median(groups))))
        found = change_points(values, gauge, noise=noise, lead=lead)
        for one in found:
            # A single evaluation is of few tasks, and nobody logs its noise.
            if one.lasts or not name.startswith("eval/"):
                change = MetricChange(name, one.before, one.after, one.size)
                yield int(own[one.place]), one.lasts, change
        if _IDEALLY_0.fullmatch(name) and values.size and not found:
            level = float(np.median(values[:WINDOW]))
            if (size := float(gauge.worth(np.array(level))) / _FROM_THE_FIRST) >= 1.0:
                yield (
                    int(own[0]),
                    True,
                    MetricChange(name, level, level, min(size, LARGEST)),
                )
        if _SOURCE.fullmatch(name):
            yield from _gone(name, curve, steps)


def _gone(
    name: str, curve: tuple[F64, F64], steps: F64
) -> Iterator[tuple[int, bool, MetricChange]]:
    """Since when a metric of every step is logged no more."""
    own, values = curve
    for one in change_points(np.isin(steps, own).astype(np.float64), Gauge(SHARE, -1)):
        # A source of few tasks may miss a step or two by chance.
        if one.lasts and one.place <= steps.size - WINDOW:
            step = int(steps[one.place])
            last = float(values[own < step][-1])
            yield step, True, MetricChange(name, last, None, one.size)


def _filled(curve: tuple[F64, F64], steps: F64) -> tuple[F64, F64]:
    """A count or share that a step without any does not log."""
    own, values = curve
    every = np.union1d(steps, own)
    filled = np.zeros(every.size)
    filled[np.searchsorted(every, own)] = values
    return every, filled


def _line(
    onset: _Onset, stage: str | None, worst_token: WorstToken | None
) -> OverviewFinding:
    first, *others = onset.changes
    row = {"step": onset.step, "stage": stage}
    when = f"from step {onset.step} on" if onset.lasts else f"in step {onset.step}"
    names = list(dict.fromkeys(one.name for one in others if one.name != first.name))
    beside = f"; so did {', '.join(names[:2])}" if names else ""
    beside += f" and {len(names) - 2} more" if len(names) > 2 else ""
    text = f"{when} {_told(first)}{beside}"
    query = _step_term(row) + _showing(first.name)
    return OverviewFinding(
        "change" if onset.lasts else "spike",
        text,
        _evidence(first.name, row, query, worst_token),
        step=onset.step,
        query=query,
        metrics=onset.changes[:_MOST_METRICS],
        chart={"page": "metrics", "filter": first.name, "at": onset.step, **_stage(row)},
    )


def _told(change: MetricChange) -> str:
    if change.after is None:
        return f"{change.name} is logged no more, before {change.before:.3g}"
    if change.after == change.before:
        return f"{change.name} is {change.after:.3g}"
    return f"{change.name} went from {change.before:.3g} to {change.after:.3g}"


def _showing(name: str) -> str:
    """What finds the episodes of a step that show a change of a metric."""
    if tool := _TOOL.fullmatch(name):
        only = f" {term('tool', tool[1])}" if tool[1] else ""
        return f"{only} tool_errors>=1"
    failed = dict.fromkeys(("excluded_frac", "failed_frac"), "failed")
    status = {"length/truncated_frac": "truncated", **failed}.get(name)
    return f" status:{status}" if status else " purpose:train"


def _evidence(
    name: str, row: Mapping[str, Any], query: str, worst_token: WorstToken | None
) -> Mapping[str, Any]:
    """The page that shows why."""
    if name.startswith("mismatch/logp_abs"):
        token = worst_token(row["step"]) if worst_token is not None else None
        if token is None:
            return _blame_link(row, "mismatch")
        return {
            "page": "trajectory",
            "id": token.id,
            "tab": "tokens",
            "turn": token.turn,
            "tokens": f"{token.token}-{token.token}",
            "colour": "difference",
        }
    for signal in _BLAMED:
        if name in LOGGED[signal]:
            return _blame_link(row, signal)
    return {"page": "trajectories", "query": query}


_BLAMED: tuple[Signal, ...] = ("loss", "entropy", "clipped")


def _alert(events: Iterable[Mapping[str, Any]]) -> list[OverviewFinding]:
    alerts = [event for event in events if event.get("level") in ("warning", "error")]
    if not alerts:
        return []
    event = max(alerts, key=lambda one: one.get("time", 0.0))
    which = f"newest of {len(alerts)} alerts: " if len(alerts) > 1 else ""
    text = f"{which}{event.get('message', event.get('event', ''))}"
    return [OverviewFinding("alert", text, alert_link(event))]


def dropped_link(reason: str) -> dict[str, Any]:
    """Where the trajectories are that were not trained for a reason."""
    return {"page": "trajectories", "query": term("drop", reason)}


def alert_link(event: Mapping[str, Any]) -> dict[str, Any]:
    """Where the evidence of an event is."""
    if event.get("blame") and event.get("step") is not None:
        return _blame_link(event, event["blame"])
    if event.get("query"):
        return {"page": "trajectories", "query": _of_stage(event["query"], event)}
    if event.get("trajectory"):
        return {"page": "trajectory", "id": event["trajectory"]}
    if event.get("step") is not None:
        query = _step_term(event)
        if event.get("event") == "episodes_failed":
            query += " status:failed"
        return {"page": "trajectories", "query": query}
    return {"page": "overview"}


def _blame_link(row: Mapping[str, Any], signal: str) -> dict[str, Any]:
    step = {"step": int(row["step"]), **_stage(row)}
    return {"page": "blame", **step, "signal": signal, "level": "token"}


def _step_term(row: Mapping[str, Any]) -> str:
    """A step in a query; with its stage where the row has one, since each stage counts its own."""
    return _of_stage(f"step:{int(row['step'])}", row)


def _of_stage(query: str, row: Mapping[str, Any]) -> str:
    return " ".join([query, *(term("stage", stage) for stage in _stage(row).values())])


def _stage(row: Mapping[str, Any]) -> dict[str, str]:
    stage = row.get("stage")
    return {"stage": stage} if isinstance(stage, str) and stage else {}
