"""Run overview: prints a run's settings, progress and evaluations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from agentrl.cli.terminal import print_table, say
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.run_view import kept_of_run

_HEADLINES = (
    "reward",
    "eval",
    "turns",
    "length",
    "tool",
    "policy",
    "mismatch",
    "optim",
    "perf",
    "time",
)


def overview(run: OpenRun) -> dict[str, Any]:
    """What is known of a run, as JSON; parts that it has not come to yet are None or empty."""
    run.metrics.refresh()
    stage = run.metrics.newest_stage
    step = run.metrics.newest_step
    # Each stage counts its own steps, so that a step alone names no row.
    logged = {} if step is None else run.metrics.stage(stage).row(step)
    state = run.state()
    kept = kept_of_run(run)
    return {
        "run_dir": str(run.directory.root),
        "record": run.directory.read_record(),
        "state": state.kind,
        "heartbeat": state.heartbeat,
        "steps": step,
        "trajectories": dict(
            sorted(run.index().facets(names=["status"])["columns"]["status"])
        ),
        "dropped_by_keep": sum(own["of"] - own["kept"] for own in kept),
        "last_metrics": {**logged, "stage": stage} if logged else None,
        "summary": run.summary or None,
    }


def print_overview(found: Mapping[str, Any]) -> None:
    """The same for people."""
    record = found["record"]
    git = record.get("git") or {}
    # Each stage counts its own steps.
    stage = (found["last_metrics"] or {}).get("stage")
    facts = {
        "run": found["run_dir"],
        "state": _state(found),
        "created": record.get("created"),
        "command": shlex.join(record.get("command", [])),
        "commit": git.get("commit", "")[:12]
        + (" (changed)" if git.get("diff_sha256") else ""),
        "seed": record.get("seed"),
        "steps": f"{found['steps']} of stage {stage}" if stage else found["steps"],
        "trajectories": ", ".join(
            f"{count} {status}" for status, count in found["trajectories"].items()
        ),
        "dropped": f"{found['dropped_by_keep']} by store.keep"
        * bool(found["dropped_by_keep"]),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            say(f"{name:>12}  {value}", hang=14, whole=name == "command")
    if found["last_metrics"]:
        print()
        rows = [
            (name, value)
            for name, value in found["last_metrics"].items()
            if _is_headline(name, value)
        ]
        print_table(("metric of the last step", "value"), rows)
    if found["summary"] and found["summary"].get("eval"):
        print()
        rows = []
        for name, entry in found["summary"]["eval"].items():
            stages = [entry.get(when) or {} for when in ("before", "after")]
            values = [own.get(kind) for kind in ("sampled", "greedy") for own in stages]
            rows.append((name, entry.get("num_tasks"), *values))
        columns = (
            "held-out set",
            "tasks",
            "sampled before",
            "after",
            "greedy before",
            "after",
        )
        print_table(columns, rows)


def _state(found: Mapping[str, Any]) -> str:
    if found["state"] == "stopped":
        return "stopped before its end; go on with --resume"
    if found["state"] == "finished":
        return "finished"
    beat = found["heartbeat"]
    stage = f" of stage {beat['stage']}" if beat["stage"] else ""
    return f"alive, behind step {beat['step']}{stage} (process {beat['pid']} on {beat['host']})"


def _is_headline(name: str, value: Any) -> bool:
    known = name != "time" and any(f"{part}/" in f"{name}/" for part in _HEADLINES)
    return known and isinstance(value, int | float)
