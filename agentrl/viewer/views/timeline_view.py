"""Timeline view: a stage's phases and episodes, and what each process logged, on the wall clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.store import read_jsonl
from agentrl.viewer.analysis.spans import Span, seconds
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.phase_table import STEP
from agentrl.viewer.views.comparisons import Index
from agentrl.viewer.views.step_view import sent, shortest

_STEPS = 200
"""Newest ones that are shown where nobody says which."""


def timeline_view(
    run: OpenRun,
    stage: str | None = None,
    first: Index | None = None,
    last: Index | None = None,
) -> dict[str, Any]:
    """What a stage did when, a lane for each phase of the loop, each rank and each process's log.

    Args:
        run: the run.
        stage: whose; the newest where None.
        first, last: steps; the newest ones where None.
    """
    with run.lock:
        run.metrics.refresh()
        run.phases.refresh()
        stages = list(run.metrics.stages)
        stage = [None, *stages][-1] if stage is None else stage
        rows = run.metrics.stage(stage).rows(("time/step_s",))
        steps = [int(row["step"]) for row in rows]
        last = max(steps, default=0) if last is None else last
        first = max(min(steps, default=0), last - _STEPS + 1) if first is None else first
        ranks = run.phases.spans(stage, first, last)
        spans = ranks.pop("")
        told = bool(spans)
        if not told:
            spans = [
                Span(STEP, row["time"] - row["time/step_s"], row["time"], int(row["step"]))
                for row in rows
                if first <= row["step"] <= last and {"time", "time/step_s"} <= row.keys()
            ]
    lanes: dict[str, list[Span]] = {STEP: []}
    for span in spans:
        lanes.setdefault(span.name, []).append(span)
    lanes |= _episodes(run, stage if len(stages) > 1 else None, first, last)
    lanes |= dict(sorted(ranks.items(), key=lambda lane: _in_order(lane[0])))
    every = [span for own in lanes.values() for span in own]
    start = min((span.start for span in every), default=0.0)
    end = max((span.end for span in every), default=0.0)
    lanes["events"] = _logged(run.directory.events_path, start, end)
    for path in sorted(run.directory.log_folder.glob("*.jsonl")):
        lanes[f"log of {path.stem}"] = _logged(path, start, end)
    least = shortest([span for own in lanes.values() for span in own])
    return {
        "stage": stage,
        "stages": stages,
        "steps": [min(steps), max(steps)] if steps else None,
        "first": first,
        "last": last,
        "start": start,
        "end": end - start,
        "placed": told,
        "lanes": [
            {
                "name": name,
                "parts": sent([s for s in own if s.end - s.start > least], start),
            }
            for name, own in lanes.items()
            if own
        ],
    }


def _in_order(process: str) -> tuple[str, int]:
    """``rank-10`` after ``rank-9``."""
    name, _, number = process.rpartition("-")
    return name, int(number) if number.isdecimal() else 0


def _logged(path: Path, start: float, end: float) -> list[Span]:
    """The events that a process, such as a rank or a host of engines, logged within a stretch; what
    lasted has its seconds before it.
    """
    return [
        Span(str(row["event"]), time - seconds(row.get("seconds")), time)
        for row in read_jsonl(path, lambda error: None)
        if "event" in row and (time := seconds(row.get("time"))) and start <= time <= end
    ]


def _episodes(
    run: OpenRun, stage: str | None, first: int, last: int
) -> dict[str, list[Span]]:
    """By step from the first start of its episodes to the last end; evaluations apart."""
    names = ("stage", "step", "label", "started_at", "ended_at")
    columns = run.index().columns(names)
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for own, step, label, start, end in zip(
        *(columns[name] for name in names), strict=True
    ):
        if stage in (None, own) and first <= step <= last and 0 < seconds(start) <= end:
            key = ("evaluations" if label else "episodes", step)
            low, high = found.get(key, (start, end))
            found[key] = (min(low, start), max(high, end))
    lanes: dict[str, list[Span]] = {}
    for (name, step), (low, high) in sorted(found.items()):
        lanes.setdefault(name, []).append(Span(name, low, high, step))
    return lanes
