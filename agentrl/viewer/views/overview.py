"""Overview: where to look first, the charts, the evaluations and the alerts of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentrl.errors import DataError, StoreError
from agentrl.viewer.analysis.blame import BlameRow
from agentrl.viewer.analysis.findings import alert_link, findings
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.comparisons import blame_of_step

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
    found = findings(
        _rows(run, stage),
        alerts,
        dropped=_dropped(run),
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


def _rows(run: OpenRun, stage: str | None) -> list[dict[str, Any]]:
    return [located(run, row, stage) for row in run.metrics.stage(stage).rows()]


def _dropped(run: OpenRun) -> dict[str, int]:
    counts = run.index().facets()["columns"].get("drop_reason", [])
    return {reason: count for reason, count in counts if reason}


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
    evaluated = run.summary.get("eval")
    for name, own in evaluated.items() if isinstance(evaluated, dict) else ():
        for when, values in own.items() if isinstance(own, dict) else ():
            for kind, value in values.items() if isinstance(values, dict) else ():
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
