"""Ls command: ``agentrl ls``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from agentrl.cli.terminal import print_json, print_table, reading_stored_files, say
from agentrl.store import RunDirectory, TrajectoryReader, TrajectorySummary


@reading_stored_files()
def ls_command(
    run: Path,
    /,
    *,
    step: int | None = None,
    label: str | None = None,
    task: str | None = None,
    status: Literal["terminated", "truncated", "failed", "cancelled"] | None = None,
    limit: int = 50,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """List the trajectories of a run, also while it trains.

    Parameters
    ----------
    run
        The run directory.
    step
        Only those that finished in this step.
    label
        Only those of this evaluation, such as code/before/greedy.
    task
        Only those of this task.
    status
        Only those that ended so.
    limit
        At most so many lines, the latest; 0 for all. JSON is never cut.
    json
        A JSON array of everything known of each.
    """
    reader = TrajectoryReader(RunDirectory.open(run))
    found = reader.summaries(step=step, label=label, task_id=task, status=status)
    if json:
        print_json([asdict(summary) for summary in found])
        return
    latest = found[-limit:] if limit else found
    columns = ("id", "step", "task", "status", "reward", "turns", "tokens", "sampled", "version")
    print_table(columns, map(_row, latest))
    statuses = sorted(Counter(summary.status for summary in found).items())
    counts = ", ".join(f"{count} {name}" for name, count in statuses)
    told = f"{len(found)} trajectories{': ' if counts else ''}{counts}"
    if len(latest) < len(found):
        told += f"; {len(found) - len(latest)} earlier ones not shown (--limit 0)"
    say(told)


def _row(one: TrajectorySummary) -> tuple[str | int | float | None, ...]:
    reason = f"({one.status_reason})" if one.status_reason else ""
    versions = dict.fromkeys((one.policy_version_min, one.policy_version_max))
    return (
        one.id,
        one.step,
        one.task_id,
        f"{one.status}{reason}",
        one.reward,
        one.num_turns,
        one.num_tokens,
        one.num_policy_tokens,
        None if None in versions else "-".join(map(str, versions)),
    )
