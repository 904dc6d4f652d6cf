"""Run view: a run's row in the list of runs, the heads of its pages, and where to look first."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.errors import DataError, StoreError
from agentrl.guards.parsing import mapping
from agentrl.metrics.monitors import HealthSpec
from agentrl.viewer.analysis.blame import BlameRow
from agentrl.viewer.analysis.findings import (
    OverviewFinding,
    alert_link,
    dropped_link,
    findings,
)
from agentrl.viewer.index.fields import TEXTS, Field
from agentrl.viewer.index.query import term
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.comparisons import blame_of_step
from agentrl.viewer.views.settings_view import stages_in

logger = logging.getLogger(__name__)

_POINTS = 60
_HEADLINES = (
    "reward/mean",
    "accuracy/mean",
    "policy/nll",
    "policy/loss",
    "reward_model/loss",
)


def run_row(run: OpenRun) -> dict[str, Any]:
    """One run in the list of runs; ``error`` says why where it cannot be read.

    Args:
        run: the run.
    """
    named = {"key": run.key, "name": run.name}
    with run.lock:
        try:
            return named | _row(run)
        except (OSError, StoreError) as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001
            # A stranger's run hides itself alone.
            logger.warning(
                "the run %s cannot be listed: %r",
                run.name,
                error,
                extra={"event": "run_unlisted"},
            )
            why = f"its files are none of a run: {error!r}"
        return {**named, "state": "stopped", "error": why}


def _row(run: OpenRun) -> dict[str, Any]:
    record = run.directory.read_record()
    run.metrics.refresh()
    trajectories = run.num_trajectories()
    name, points = _sparkline(run)
    stage = run.metrics.newest_stage
    return {
        "state": run.state().kind,
        "created": record.get("created"),
        "command": " ".join(map(str, record.get("command") or [])),
        "seed": record.get("seed"),
        "step": run.metrics.newest_step,
        "steps_total": steps_of(run.config, stage),
        "stage": stage,
        "trajectories": trajectories,
        "last_time": last_time(run),
        "sparkline": points,
        "sparkline_name": name,
    }


def run_view(run: OpenRun) -> dict[str, Any]:
    """What heads a run's pages.

    Args:
        run: the run, under its lock.
    """
    state = run.state()
    return {
        "key": run.key,
        "name": run.name,
        "record": run.directory.read_record(),
        "stages": stages_of(run.config),
        "columns": {name: column.record() for name, column in run.reader.columns().items()},
        "detail": run.setting("detail"),
        "damage": run.damage(),
        "state": state.kind,
        "heartbeat": state.heartbeat,
    }


_TOLD = ("name", "kind", "unit", "help", "listed", "counted")


def fields_view(run: OpenRun) -> dict[str, Any]:
    """The fields of a run's trajectories, by name; ``kind`` of a text that a list alone shows is
    ``long``.

    Args:
        run: the run, under its lock.
    """
    declared = run.reader.columns()
    found = []
    for name, field in run.index().fields().items():
        own = declared.get(name.removeprefix("annotation.")) if "." in name else None
        told = {"unit": own.unit, "help": own.help} if own is not None else {}
        found.append({**{key: getattr(field, key) for key in _TOLD}, **told})
    texts = (Field(name, "text", "Its beginning.") for name in TEXTS)
    found += [
        {**{key: getattr(field, key) for key in _TOLD}, "kind": "long"} for field in texts
    ]
    return {"fields": found}


def last_time(run: OpenRun) -> float | None:
    """When the run wrote last, in seconds since the epoch."""
    own = run.directory
    paths: list[Path] = [
        own.metrics_path,
        own.events_path,
        own.ledger_path,
        own.live_folder,
    ]
    paths += [own.record_path, own.sealed_folder, own.heartbeat_path]
    return max((path.lstat().st_mtime for path in paths if path.exists()), default=None)


def stages_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, algorithm and number of steps of each stage."""
    return [
        {
            "name": stage.get("name"),
            "algorithm": mapping(stage.get("algorithm")).get("name"),
            "steps": mapping(stage.get("train")).get("steps"),
        }
        for stage in stages_in(config)
    ]


def steps_of(config: Mapping[str, Any], stage: object) -> int | None:
    """How many steps a stage is to make; None where nobody knows."""
    named = [entry["steps"] for entry in stages_of(config) if entry["name"] == stage]
    return named[0] if named and isinstance(named[0], int) else None


def _sparkline(run: OpenRun) -> tuple[str | None, Sequence[tuple[float, float]]]:
    """The first headline metric of the newest stage, thinned out."""
    stage = run.metrics.stage(run.metrics.newest_stage)
    for name in _HEADLINES:
        points = stage.series(name).thinned(_POINTS).points()
        if len(points) > 1:
            return name, points
    return None, []


_MOST_ALERTS = 200
_EPISODES = 3
"""Of a finding."""


def overview(run: OpenRun) -> dict[str, Any]:
    """The overview.

    Args:
        run: the run, under its lock.
    """
    run.metrics.refresh()
    alerts = [located(run, event) for event in run.events() if event.get("level") != "info"]
    stage = _trained_by_rewards(run)
    own = run.metrics.stage(stage)
    found = findings(
        {
            name: (one.step, one.value)
            for name in sorted(own.names())
            for one in [own.series(name)]
        },
        alerts,
        worst_token=lambda step: _worst_token(run, step, stage),
        stage=stage if len(run.metrics.stages) > 1 else None,
        health=_health(run, stage),
    )
    return {
        "findings": [{**asdict(one), "episodes": _episodes(run, one)} for one in found],
        "kept": kept_of_run(run),
        "dropped": [
            {"reason": reason, "count": count, "link": dropped_link(reason)}
            for reason, count in run.index().facets(names=["drop"])["columns"]["drop"]
            if reason
        ],
        "headlines": [name for name in _HEADLINES if name in run.metrics.names()],
        "evaluations": _evaluations(run),
        "alerts": [alert(event) for event in alerts[-_MOST_ALERTS:]],
    }


def _episodes(run: OpenRun, finding: OverviewFinding) -> list[str]:
    """The first episodes that show it."""
    if not finding.query:
        return []
    rows = run.index().page(finding.query, "id", limit=_EPISODES).rows
    return [row["id"] for row in rows]


def _health(run: OpenRun, stage: str | None) -> HealthSpec:
    """The thresholds of a stage; the defaults where this agentrl does not know its settings."""
    for own in stages_in(run.config):
        if own.get("name") == stage:
            health = mapping(own.get("health"))
            known = {
                name: health[name] for name in HealthSpec.model_fields if name in health
            }
            with suppress(ValidationError):
                return HealthSpec.model_validate(known)
    return HealthSpec()


def kept_of_run(run: OpenRun) -> list[dict[str, Any]]:
    """What ``store.keep`` left of how many trajectories, in which steps of each stage, since each
    counts its own; stages that are whole are left out.
    """
    return [
        {
            "stage": stage,
            "kept": sum(kept for kept, _ in steps.values()),
            "of": sum(of for _, of in steps.values()),
            "steps": [min(steps), max(steps)],
        }
        for stage, steps in run.reader.kept_by_stage().items()
    ]


def alert(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event of ``events.jsonl`` as the viewer shows it, with a link to its evidence."""
    shown = {name: event.get(name) for name in ("time", "level", "event", "step", "stage")}
    shown["trajectories"] = event.get("trajectories") or []
    return {**shown, "text": event.get("message"), "link": alert_link(event)}


def located(run: OpenRun, event: Mapping[str, Any]) -> dict[str, Any]:
    """A line of events, with its stage where a link to its step must name it: where the run has
    several.
    """
    return {**event, "stage": event.get("stage") if len(run.metrics.stages) > 1 else None}


def _trained_by_rewards(run: OpenRun) -> str | None:
    """The newest stage that logs rewards; else the newest."""
    stages = run.metrics.stages
    rewarded = [name for name, own in stages.items() if "reward/mean" in own.names()]
    return [None, *stages, *rewarded][-1]


def _worst_token(run: OpenRun, step: int, stage: str | None) -> BlameRow | None:
    """The token of the largest mismatch of a step; kept, since a step does not change."""
    key = (step, stage)
    if key not in run.worst_tokens:
        try:
            found = blame_of_step(run, step, "mismatch", "token", stage=stage, limit=1).rows
        except (DataError, StoreError):
            # the run keeps no logprobs of the trainer, or lost them
            found = ()
        run.worst_tokens[key] = found[0] if found else None
    return run.worst_tokens[key]


def _evaluations(run: OpenRun) -> list[dict[str, Any]]:
    """What was measured when, each with a query of the trajectories that it was measured on; None
    where there are none.
    """
    stages = run.metrics.stages
    found = []
    for name, own in mapping(run.summary.get("eval")).items():
        for when, values in mapping(own).items():
            for kind, value in mapping(values).items():
                label = f"{name}/{when}/{kind}"
                # of several stages that measured it the summary has the last
                measured = [
                    one for one in stages if f"eval/{name}/{kind}" in stages[one].names()
                ]
                is_played = kind in ("sampled", "greedy") and value is not None
                query = _of_label(run, label, [None, *measured][-1]) if is_played else None
                found.append({"name": label, "values": {"score": value}, "query": query})
    return found or [one for stage in stages for one in _measured_last(run, stage)]


def _measured_last(run: OpenRun, stage: str | None) -> Iterator[dict[str, Any]]:
    """The newest evaluation of each set by a stage, as its metrics have it."""
    several = len(run.metrics.stages) > 1
    own = run.metrics.stage(stage)
    for metric in sorted(name for name in own.names() if name.startswith("eval/")):
        shown = metric.removeprefix("eval/")
        for step, value in own.series(metric).points()[-1:]:
            within = f"step:{int(step)}" + (
                f" {term('stage', stage or '')}" if several else ""
            )
            name, _, kind = shown.rpartition("/")
            whens = ("before", f"step={int(step):06d}", "after")
            labels = [
                one for one, _ in run.index().facets(within, ["label"])["columns"]["label"]
            ]
            measured = {f"{name}/{when}/{kind}" for when in whens}
            label = next((one for one in labels if one in measured), None)
            yield {
                "name": shown,
                "values": {f"step {step:g}" + (f" of {stage}" if several else ""): value},
                "query": None if label is None else _of_label(run, label, stage),
            }


def _of_label(run: OpenRun, label: str, stage: str | None) -> str:
    """What finds the trajectories of an evaluation; with its stage where the run has several."""
    terms = [term("label", label)]
    if len(run.metrics.stages) > 1 and stage is not None:
        terms.append(term("stage", stage))
    return " ".join(terms)
