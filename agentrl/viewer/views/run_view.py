"""Run view: a run's row in the list of runs, and what heads its pages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.parsing import mapping
from agentrl.viewer.runs.open_run import OpenRun

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
        except Exception as error:  # noqa: BLE001 - a run of a stranger's hides itself alone
            logger.warning(
                "the run %s cannot be listed: %r", run.name, error, extra={"event": "run_unlisted"}
            )
            why = f"its files are none of a run: {error!r}"
        return {**named, "state": "stopped", "error": why}


def _row(run: OpenRun) -> dict[str, Any]:
    record = run.record
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
        "record": run.record,
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
