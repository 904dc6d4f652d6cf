"""Ls command: ``agentrl ls``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl.store import TrajectorySummary


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
    from dataclasses import asdict

    from agentrl.cli.terminal import print_json
    from agentrl.cli.views.stored_files import reading_stored_files
    from agentrl.store import RunDirectory, TrajectoryReader

    with reading_stored_files():
        reader = TrajectoryReader(RunDirectory.open(run))
        found = reader.summaries(step=step, label=label, task_id=task, status=status)
    if json:
        print_json([asdict(summary) for summary in found])
    else:
        _print(found, limit)


def _print(found: Sequence[TrajectorySummary], limit: int) -> None:
    from agentrl.cli.terminal import print_table, say

    columns = ("id", "step", "task", "status", "reward", "turns", "tokens", "sampled", "version")
    latest = found[-limit:] if limit else found
    print_table(
        columns,
        [
            (
                summary.id,
                summary.step,
                summary.task_id,
                f"{summary.status}({summary.status_reason})"
                if summary.status_reason
                else summary.status,
                summary.reward,
                summary.num_turns,
                summary.num_tokens,
                summary.num_policy_tokens,
                _versions(summary),
            )
            for summary in latest
        ],
    )
    counts = ", ".join(
        f"{count} {status}" for status, count in sorted(Counter(s.status for s in found).items())
    )
    hidden = (
        f"; {len(found) - len(latest)} earlier ones not shown (--limit 0)"
        if len(latest) < len(found)
        else ""
    )
    say(f"{len(found)} trajectories{': ' if counts else ''}{counts}{hidden}")


def _versions(summary: TrajectorySummary) -> str | None:
    low = summary.policy_version_min
    high = summary.policy_version_max
    return None if low is None else str(low) if low == high else f"{low}-{high}"
