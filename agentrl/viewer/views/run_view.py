"""Run view: a run's row in the list of runs, the heads of its pages, and where to look first."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.errors import DataError, StoreError
from agentrl.guards.parsing import mapping
from agentrl.viewer.analysis.blame import BlameRow
from agentrl.viewer.analysis.findings import alert_link, findings
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.comparisons import blame_of_step

logger = logging.getLogger(__name__)

_POINTS = 60
_HEADLINES = ("reward/mean", "accuracy/mean", "policy/nll", "policy/loss", "reward_model/loss")


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
                "the run %s cannot be listed: %r", run.name, error, extra={"event": "run_unlisted"}
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


def last_time(run: OpenRun) -> float | None:
    """When the run wrote last, in seconds since the epoch."""
    own = run.directory
    paths: list[Path] = [own.metrics_path, own.events_path, own.ledger_path, own.live_folder]
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
        for stage in _stages(config)
    ]


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved configuration, its stages by name, so that those of two runs can be compared."""
    stages = {
        str(stage.get("name")): {name: value for name, value in stage.items() if name != "name"}
        for stage in _stages(config)
    }
    return {**config, "stages": stages}


def _stages(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    stages = config.get("stages")
    return [one for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []


def steps_of(config: Mapping[str, Any], stage: object) -> int | None:
    """How many steps a stage is to make; None where nobody knows."""
    named = [entry["steps"] for entry in stages_of(config) if entry["name"] == stage]
    return named[0] if named and isinstance(named[0], int) else None


def _sparkline(run: OpenRun) -> tuple[str | None, Sequence[tuple[float, float]]]:
    """The first headline metric of the newest stage, thinned out."""
    stage = run.metrics.stage(run.metrics.newest_stage)
    for name in _HEADLINES:
        points = stage.series(name)
        if len(points) > 1:
            stride = -(-len(points) // _POINTS)
            return name, [*points[:-1:stride], points[-1]]
    return None, []


_MOST_ALERTS = 200
_CHARTS: Sequence[tuple[str, Sequence[str]]] = (
    ("Reward", ("reward/mean", "reward/std")),
    ("Accuracy", ("accuracy/mean", "reward_model/accuracy")),
    ("Evaluation", (r"eval/.+",)),
    ("Loss", ("policy/loss", "policy/nll", "reward_model/loss")),
    ("Entropy", ("policy/entropy",)),
    ("Information of answers about questions", ("answer/question_mi",)),
    ("Length", ("length/response/mean", "length/response/max")),
    ("Turns", ("turns/mean", "tool/calls_per_traj")),
    ("Tool errors", (r"tool/[^/]+/error_frac", r"tool/error/.+_frac")),
    ("Mismatch of sampler and trainer", ("mismatch/logp_abs/mean", "mismatch/logp_abs/max")),
    ("KL divergence", ("policy/kl_ref", "policy/kl_old", "mismatch/k3_kl")),
    ("Clipping", (r"policy/clip_frac_.+",)),
    ("Gradient norm", ("optim/grad_norm",)),
    ("Staleness", (r"async/staleness/.+",)),
    ("Without signal", ("group/zero_std_frac", "excluded_frac")),
    ("Speed", ("perf/tokens_per_s", "perf/rollout_tokens_per_s")),
    ("Seconds", ("time/step_s", "time/wait_rollout_s", "time/update_s")),
    ("Idle rollouts", ("time/idle_frac",)),
)
"""Title, and the metrics as patterns; what a run does not log is left out."""
_MOST_LINES = 6


def overview(run: OpenRun) -> dict[str, Any]:
    """The overview.

    Args:
        run: the run, under its lock.
    """
    run.metrics.refresh()
    alerts = [located(run, event) for event in run.events() if event.get("level") != "info"]
    stage = _trained_by_rewards(run)
    reasons = run.index().facets()["columns"].get("drop_reason", [])
    found = findings(
        [located(run, row, stage) for row in run.metrics.stage(stage).rows()],
        alerts,
        dropped={reason: count for reason, count in reasons if reason},
        worst_token=lambda step: _worst_token(run, step, stage),
    )
    return {
        "findings": list(map(asdict, found)),
        "kept": kept_of_run(run),
        "charts": _charts(run.metrics.names()),
        "evaluations": _evaluations(run),
        "alerts": [alert(event) for event in alerts[-_MOST_ALERTS:]],
    }


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


def located(run: OpenRun, row: Mapping[str, Any], stage: str | None = None) -> dict[str, Any]:
    """A line of events or metrics, with its stage where a link to its step must name it: where the
    run has several.
    """
    several = len(run.metrics.stages) > 1
    return {**row, "stage": (stage or row.get("stage")) if several else None}


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


def _charts(names: Sequence[str]) -> list[dict[str, Any]]:
    charts = []
    for title, patterns in _CHARTS:
        drawn = [name for pattern in patterns for name in names if re.fullmatch(pattern, name)]
        if drawn:
            charts.append({"title": title, "names": drawn[:_MOST_LINES]})
    return charts


def _evaluations(run: OpenRun) -> dict[str, dict[str, Any]]:
    """By label, what was measured when."""
    found: dict[str, dict[str, Any]] = {}
    for name, own in mapping(run.summary.get("eval")).items():
        for when, values in mapping(own).items():
            for kind, value in mapping(values).items():
                found[f"{name}/{when}/{kind}"] = {"score": value}
    if not found:
        for stage, own in run.metrics.stages.items():
            of_stage = f" of {stage}" if len(run.metrics.stages) > 1 else ""
            for name in sorted(own.names()):
                if name.startswith("eval/"):
                    step, value = own.series(name)[-1]
                    values = found.setdefault(name.removeprefix("eval/"), {})
                    values[f"step {step:g}{of_stage}"] = value
    return found
