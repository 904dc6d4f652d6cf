"""Trajectory view: a trajectory's turns, results and neighbours, without tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.viewer.index import RunIndex
from agentrl.viewer.index.query import term
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import JSON_COLUMNS, StoredRow
from agentrl.viewer.wire import finite

_WITHIN_STEP = "stage,label,group,rollout,attempt"
_BEFORE = "-step,-stage,-label,-group,-rollout,-attempt"
_AFTER = f"step,{_WITHIN_STEP}"


def neighbours(index: RunIndex, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The ids beside a trajectory of its stage; None where there is none.

    Args:
        index: of the run.
        columns: of the trajectory.
    """
    own = columns["id"]
    stage = term("stage", columns["stage"])
    step = f"step:{columns['step']} {stage}"
    before, after = beside(index.ids(step, _WITHIN_STEP), own)
    # At an end of the step, the nearest step of the stage that has any goes on.
    if before is None:
        before = _first(index, f"step<{columns['step']} {stage}", _BEFORE)
    if after is None:
        after = _first(index, f"step>{columns['step']} {stage}", _AFTER)
    # its rollouts end in several steps where the engine plays ahead
    group = f"group:{columns['group_index']} {stage} {term('label', columns['label'])}"
    task = term("task", columns["task_id"])
    task_before, task_after = beside(index.ids(task, _AFTER) if task else [], own)
    return {
        "previous": before,
        "next": after,
        "siblings": index.ids(group, "rollout,attempt"),
        "same_task_previous": task_before,
        "same_task_next": task_after,
    }


def beside(ids: Sequence[str], own: str) -> tuple[str | None, str | None]:
    """What stands before and after ``own``."""
    if own not in ids:
        return None, None
    place = ids.index(own)
    before = ids[place - 1] if place else None
    return before, ids[place + 1] if place + 1 < len(ids) else None


def _first(index: RunIndex, query: str, sort: str) -> str | None:
    rows = index.page(query, sort, limit=1).rows
    return str(rows[0]["id"]) if rows else None


def _fate(index: RunIndex, trajectory_id: str) -> dict[str, Any]:
    """What the ledger says became of it; a shard is written before."""
    rows = index.page(term("id", trajectory_id), limit=1).rows
    own = next((row for row in rows if row["id"] == trajectory_id), {})
    return {name: own.get(name) for name in ("trained_step", "drop")}


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
    summary = {
        name: value for name, value in row.columns.items() if name not in _LONG_COLUMNS
    }
    summary |= {"rewards": own["rewards"], "reward": finite(summary["reward"])}
    return {
        "summary": summary | _fate(run.index(), trajectory_id),
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
            name: value
            for name, value in record.items()
            if name not in ("context", "completion")
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


def _missing(
    run: OpenRun, turns: list[dict[str, Any]], own: Mapping[str, Any]
) -> dict[str, str]:
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
        absent["rewards"] = (
            "the rubric gave no parts, or the episode failed before it was judged"
        )
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
