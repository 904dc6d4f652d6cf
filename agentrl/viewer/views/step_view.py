"""Step view: the episodes of a step on the wall clock, and what the step waited for."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.heartbeat import read_told
from agentrl.store.json_text import from_json
from agentrl.viewer.analysis.side_by_side import drop_of, lacks_spread
from agentrl.viewer.analysis.spans import Span, parts_of, seconds
from agentrl.viewer.analysis.step_waits import Wait, step_waits, waits_of_sums
from agentrl.viewer.analysis.stored_rows import stored_rows
from agentrl.viewer.index import Place
from agentrl.viewer.index.query import term
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.phase_table import STEP
from agentrl.viewer.viewer_error import not_found
from agentrl.viewer.views.comparisons import Index, kept_of_step

_MOST_EPISODES = 5000
_MOST_PARTS = 100_000
_SHOWN = (
    *("id", "rollout", "attempt", "purpose", "status", "reward", "step", "trained_step"),
    *("version", "newest_version"),
)


def step_view(run: OpenRun, step: Index, stage: str | None = None) -> dict[str, Any]:
    """A step: its phases, its episodes by group, and where its seconds went.

    Args:
        run: the run.
        step: as its stage counts.
        stage: whose; where None, the newest that has the step.

    Raises:
        ViewerError: there is no such step.
    """
    with run.lock:
        run.metrics.refresh()
        run.phases.refresh()
        stages = run.metrics.stages
        if stage is None and len(stages) > 1:
            having = [name for name, own in stages.items() if own.row(step)]
            stage = [*stages, *having][-1]
        own = run.metrics.stage(next(iter(stages), None) if stage is None else stage)
        logged = own.row(step)
        newest = stage is None or stage == run.metrics.newest_stage
        goes_on = newest and not logged and run.state().kind == "alive"
        goes_on = goes_on and step == (run.metrics.newest_step or 0) + 1
        phases = run.phases.spans(stage or next(iter(stages), None), step, step)[""]
        kept = kept_of_step(run, step, stage)
        before, after = own.around(step)
        told = read_told(run.directory.now_path) if goes_on else None
    # evaluations before the first step take of its seconds
    within = (
        "(step:0..1 or trained_step:1)"
        if step == 1
        else f"(step:{step} or trained_step:{step})"
    )
    within += "" if stage is None else f" {term('stage', stage)}"
    page = run.index().page(within, "-ended_at", limit=_MOST_EPISODES)
    if not logged and not page.rows and not goes_on:
        raise not_found(
            f"the run {run.name} has no step {step}{f' of {stage}' if stage else ''}"
        )
    parts, fault = _parts(run, page.rows)
    spans = [one for one in phases if one.name != STEP]
    whole = next((one for one in phases if one.name == STEP), None)
    step_s = logged.get("time/step_s")
    waited: Sequence[Wait] = ()
    start = min(
        filter(None, (seconds(one["started_at"]) for one in page.rows)), default=None
    )
    if step_s is not None and whole:
        start = whole.end - step_s
        waiting: dict[str, dict[str, Sequence[Span]]] = {"eval": {}, "wait_rollout": {}}
        for row in page.rows:
            phase = "eval" if row["purpose"] == "eval" else "wait_rollout"
            waiting[phase][row["id"]] = parts[row["id"]]
        waited = step_waits(step_s, whole.end, spans, waiting)
    elif whole:
        start = whole.start
    elif step_s is not None:
        sums = {name.removeprefix("time/")[:-2]: value for name, value in logged.items()}
        waited = waits_of_sums(step_s, sums)
    return {
        "step": step,
        "stage": stage,
        "stages": list(stages),
        "before": before,
        "after": after,
        "goes_on": goes_on,
        "now": (told or {}).get("loop"),
        "start": start,
        "step_s": step_s,
        "placed": whole is not None,
        "waited": [asdict(one) for one in waited],
        "phases": sent(spans, start or 0.0),
        "groups": _groups(page.rows, parts, start or 0.0),
        "shown": len(page.rows),
        "total": page.total,
        "kept": kept,
        "fault": fault,
    }


def _parts(
    run: OpenRun, rows: Sequence[dict[str, Any]]
) -> tuple[dict[str, list[Span]], str]:
    """What each episode did, by id, and why of some nobody can know; those of the step that was
    asked for last are remembered, since an episode that has ended does not change.
    """
    keys = {(row["id"], row["recorded_at"]): row for row in rows}
    known = {key: run.parts[key] for key in keys if key in run.parts}
    missing = [
        Place(key[0], row["step"], key[1]) for key, row in keys.items() if key not in known
    ]
    fault = ""
    try:
        for stored in stored_rows(run.directory, run.reader, missing, ("timings", "turns")):
            key = (stored["id"], stored["recorded_at"])
            if key in keys:
                timings, turns = (_json(stored.get(name)) for name in ("timings", "turns"))
                known[key] = parts_of(keys[key], timings, turns)
    except StoreError as error:
        fault = str(error)
    run.parts = known
    return {
        row["id"]: known.get((row["id"], row["recorded_at"]), []) for row in rows
    }, fault


def _json(text: Any) -> Any:
    try:
        return from_json(text) if isinstance(text, str) else None
    except ValueError:
        # a row that another program wrote
        return None


def _groups(
    rows: Sequence[dict[str, Any]], parts: dict[str, list[Span]], start: float
) -> list[dict[str, Any]]:
    """The episodes by group, those that lasted longest first."""
    # Of an episode that lasted long, most parts are shorter than what can be seen.
    drawn = {
        name: [one for one in own if one.name != "between"] for name, own in parts.items()
    }
    least = shortest([one for own in drawn.values() for one in own])
    drawn = {n: [p for p in own if p.end - p.start > least] for n, own in drawn.items()}
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["stage"], row["label"], row["group"])
        groups.setdefault(key, []).append(row)
    found = []
    for (stage, label, index), own in groups.items():
        own.sort(key=_span_s, reverse=True)
        found.append(
            {
                "stage": stage,
                "label": label,
                "group": index,
                "task": own[0]["task"],
                "no_spread": lacks_spread(own),
                "drop": drop_of(own),
                "span_s": _group_s(own),
                "episodes": [
                    {
                        **{name: row[name] for name in _SHOWN},
                        "start": row["started_at"] - start
                        if seconds(row["started_at"])
                        else None,
                        "end": row["ended_at"] - start
                        if seconds(row["ended_at"])
                        else None,
                        "parts": sent(drawn[row["id"]], start),
                    }
                    for row in own
                ],
            }
        )
    return sorted(found, key=lambda group: -group["span_s"])


def _span_s(row: dict[str, Any]) -> float:
    return max(0.0, seconds(row["ended_at"]) - seconds(row["started_at"]))


def _group_s(rows: Sequence[dict[str, Any]]) -> float:
    """From the first start to the last end; 0 where nobody measured."""
    starts = [one for row in rows if (one := seconds(row["started_at"]))]
    ends = [seconds(row["ended_at"]) for row in rows]
    return max(0.0, max(ends) - min(starts)) if starts else 0.0


def shortest(spans: Sequence[Span]) -> float:
    """Seconds that a span must have more than, so that not too many are drawn."""
    lengths = [one.end - one.start for one in spans]
    return heapq.nlargest(_MOST_PARTS, lengths)[-1] if len(spans) > _MOST_PARTS else -1.0


def sent(spans: Sequence[Span], start: float) -> list[list[Any]]:
    """Name, begin and end in seconds after ``start``, and the number."""
    return [
        [one.name, round(one.start - start, 6), round(one.end - start, 6), one.number]
        for one in spans
    ]
