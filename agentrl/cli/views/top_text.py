"""Top text: what a run does now, and who waits for whom, from the files of its directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agentrl.cli.terminal import print_table, say
from agentrl.cli.views.tail_lines import TailEntry, print_entry
from agentrl.metrics import format_duration
from agentrl.store import RunDirectory, RunWatch
from agentrl.store.heartbeat import read_told
from agentrl.viewer.analysis.spans import seconds
from agentrl.viewer.runs.metrics_table import AppendedLines

_TURNS = ("run_failed", "interrupted", "resumed")
"""Events that say what became of a run."""
_MOST_ROWS = 12


class RunTop:
    """Looks at a run again and again.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._watch = RunWatch(run)
        self._metrics = AppendedLines(run.metrics_path)
        self._steps: list[dict[str, Any]] = [{}]

    def look(self) -> dict[str, Any]:
        """What is known now, as JSON."""
        state = self._watch.look()
        self._steps = [*self._steps, *self._metrics.take()[1]][-1:]
        found: dict[str, Any] = {
            "run": str(self._run.root),
            "state": state.kind,
            "heartbeat": state.heartbeat or {},
            "step": self._steps[0],
            "now": read_told(self._run.now_path) or {},
            "damage": self._metrics.damage,
        }
        if state.kind == "stopped":
            from agentrl.run.lifetime.interruption import resume_command

            if not found["heartbeat"].get("end"):
                found["state"] = "torn, without an end"
            events = AppendedLines(self._run.events_path).take()[1]
            turns = [event for event in events if event.get("event") in _TURNS]
            found["last_event"] = turns[-1].get("message") if turns else None
            words = self._run.read_record().get("command")
            found["go_on"] = resume_command(
                self._run, words if isinstance(words, list) else []
            )
        return found


def print_top(found: Mapping[str, Any]) -> None:
    """The same for people."""
    beat = found["heartbeat"]
    heard = f"process {beat.get('pid')} on {beat.get('host')}, heard of {_ago(beat)}"
    state = (
        f"{found['state']}, behind step {beat.get('step')} of {beat.get('stage')} ({heard})"
    )
    for name, value in {**found, "state": state}.items():
        if isinstance(value, str):
            say(f"{name.replace('_', ' '):>10} {value}", hang=11, whole=name == "go_on")
    if found["step"]:
        print_entry(TailEntry("step", found["step"]), as_json=False)
    if found["now"] and found["state"] != "finished":
        say(f"{'seen':>10} {_ago(found['now'])}")
        _print_tables(found["now"])


def _ago(told: Mapping[str, Any]) -> str:
    at = seconds(told.get("time"))
    if not at:
        return "at no known time"
    return f"{format_duration(max(0.0, time.time() - at))} ago"


def _print_tables(part: Mapping[str, Any]) -> None:
    """What a part tells, each table under its name."""
    for name, value in part.items():
        rows = value if isinstance(value, list) else [value]
        rows = [row for row in rows[:_MOST_ROWS] if isinstance(row, dict)]
        columns = [
            key for row in rows[:1] for key in row if not isinstance(row[key], dict | list)
        ]
        if columns:
            name, *headings = (text.replace("_", " ") for text in (name, *columns))
            say(f"\n{name}")
            print_table(headings, [[row.get(column) for column in columns] for row in rows])
        if isinstance(value, dict):
            _print_tables(value)
