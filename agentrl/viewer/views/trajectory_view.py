"""Trajectory view: one trajectory's turns, results and what was learned of it, without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.views.neighbours import neighbours
from agentrl.viewer.wire import finite

_JSON_COLUMNS = (
    *("task", "rewards", "reasons", "timings", "info"),
    *("first_state", "last_observed", "last_info"),
)
_LONG_COLUMNS = ("turns", "prompt", "final_text", *_JSON_COLUMNS)
_SETTING = {
    "state": "no turn has one: the environment's snapshot() gives it, and store.states: end or "
    "turn records it",
    "files": "no turn has any: store.states: turn records changed files of the sandbox",
    "reasons": "no reward part says why: a part that returns Score(value, why) does",
}


def trajectory_view(run: OpenRun, row: StoredRow) -> dict[str, Any]:
    """All of a trajectory but its tokens.

    Args:
        run: whose, under its lock.
        row: the trajectory.
    """
    own = {name: row.json(name) for name in _JSON_COLUMNS}
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
        "notes": [asdict(note) for note in run.notes.of(trajectory_id)],
        "missing": _missing(turns, own),
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


def _missing(turns: list[dict[str, Any]], own: Mapping[str, Any]) -> dict[str, str]:
    given = {
        "state": any(turn.get("state") for turn in turns),
        "files": any(turn.get("files") for turn in turns),
        "reasons": bool(own["reasons"]),
    }
    return {name: why for name, why in _SETTING.items() if not given[name]}
