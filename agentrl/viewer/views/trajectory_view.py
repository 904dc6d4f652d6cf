"""Trajectory view: one trajectory's turns, results and what was learned of it, without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import JSON_COLUMNS, StoredRow
from agentrl.viewer.views.neighbours import neighbours
from agentrl.viewer.wire import finite

_LONG_COLUMNS = ("prompt", "final_text", *JSON_COLUMNS)


def trajectory_view(run: OpenRun, row: StoredRow) -> dict[str, Any]:
    """All of a trajectory but its tokens.

    Args:
        run: whose, under its lock.
        row: the trajectory.
    """
    own = {name: row.json(name) for name in JSON_COLUMNS if name != "turns"}
    turns = _turns(row)
    states = [turn["state"] for turn in turns if turn.get("state") is not None]
    trajectory_id = row.columns["id"]
    summary = {name: value for name, value in row.columns.items() if name not in _LONG_COLUMNS}
    return {
        "summary": {**summary, "rewards": own["rewards"], "reward": finite(summary["reward"])},
        **own,
        "last_state": states[-1] if states else own["first_state"],
        "turns": turns,
        "annotations": [
            {
                "learner": one.learner,
                "step": one.step,
                "pass_index": one.pass_index,
                "values": one.values,
            }
            for one in row.annotations
        ],
        "neighbours": neighbours(run.index(), row.columns),
        "notes": run.notes.records([trajectory_id]),
        "missing": _missing(run, turns, own),
    }


def _turns(row: StoredRow) -> list[dict[str, Any]]:
    counts = np.bincount(row.arrays.turn_index, minlength=len(row.turns))
    turns = []
    for place, (record, sequence) in enumerate(zip(row.turns, row.sequences, strict=True)):
        segments = [*record["context"], *record["completion"]]
        versions = {segment.get("policy_version") for segment in segments} - {None}
        shown = {
            name: value for name, value in record.items() if name not in ("context", "completion")
        }
        turns.append(
            {
                **shown,
                "sequence": int(sequence),
                "num_tokens": int(counts[place]),
                "versions": sorted(versions),
            }
        )
    return turns


def _missing(run: OpenRun, turns: list[dict[str, Any]], own: Mapping[str, Any]) -> dict[str, str]:
    """Why a part of the trajectory is not there, and what brings it."""
    info = own["info"] or {}
    absent: dict[str, str] = {}
    if not own["first_state"] and not any(turn.get("state") for turn in turns):
        failed = info.get("snapshot_error")
        absent["state"] = (
            f"Env.snapshot() failed: {failed}"
            if failed
            else "Env.snapshot() of the environment gives it, whatever store.states is; this one "
            "gave none, or an agent program took the environment's place"
        )
    if not any(turn.get("files") for turn in turns):
        absent["files"] = _no_files(run, info)
    if not own["reasons"]:
        absent["reasons"] = "a part of the reward that returns Score(value, why) says why"
    if not own["rewards"]:
        absent["rewards"] = "the rubric gave no parts, or the episode failed before it was judged"
    if not any(turn.get("started_at") or turn.get("timings") for turn in turns):
        absent["timings"] = "no turn has any: the producer of this run wrote none"
    return absent


def _no_files(run: OpenRun, info: Mapping[str, Any]) -> str:
    if "files_error" in info:
        return f"the sandbox could not be read: {info['files_error']}"
    note = run.setting_note("states")
    if run.setting("states") in ("turn", "end"):
        return f"no file of a sandbox of the environment changed{note}"
    return f"store.states: turn or end records the changed files of the environment's sandbox{note}"
