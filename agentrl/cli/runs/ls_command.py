"""Ls command: ``agentrl ls``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from agentrl.cli.arguments import Count
from agentrl.cli.terminal import (
    counted,
    print_json,
    print_table,
    reading_stored_files,
    say,
    say_passed_over,
)
from agentrl.store import RunDirectory

_ORDER = "step,stage,label,group_index,rollout_index,attempt"


@reading_stored_files()
def ls_command(
    run: Path,
    query: str = "",
    /,
    *,
    sort: Annotated[str, Parameter(allow_leading_hyphen=True)] = _ORDER,
    step: int | None = None,
    label: str | None = None,
    task: str | None = None,
    status: Literal["terminated", "truncated", "failed", "cancelled"] | None = None,
    limit: Count = 50,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """List the trajectories of a run, also while it trains.

    Parameters
    ----------
    run
        The run directory.
    query
        Only those that fit, such as 'reward<0.5 tool:python text:"No such file"' (docs/query.md).
    sort
        Columns by which they stand, with commas between; - before one for the greatest first.
    step
        Only those that finished in this step.
    label
        Only those of this evaluation, such as code/before/greedy.
    task
        Only those of this task.
    status
        Only those that ended so.
    limit
        At most so many lines, the latest, or with --sort the first; 0 for all. JSON is never cut.
    json
        A JSON array of everything known of each.
    """
    from agentrl.viewer.index import RunIndex, parse_query, quoted

    # so that a fault is named by its place in what was typed
    parse_query(query)
    asked = {"step": step, "label": label, "task": task, "status": status}
    terms = [f"{name}:{quoted(str(value))}" for name, value in asked.items() if value is not None]
    whole = " ".join([*terms, f"({query})" if query.strip() else ""])
    with RunIndex(RunDirectory.open(run)) as index:
        index.refresh(timeout_s=60.0)
        say_passed_over(index.damage())
        found = index.page(whole, sort, limit=None if json else 0)
        if json:
            print_json(found.rows)
            return
        shown = min(limit or found.total, found.total)
        offset = found.total - shown if sort == _ORDER else 0
        rows = index.page(whole, sort, offset, shown).rows
        counts = dict(index.facets(whole)["columns"]["status"])
    columns = ("id", "step", "task", "status", "reward", "turns", "tokens", "sampled", "version")
    print_table(columns, map(_row, rows))
    by_status = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    told = f"{counted(found.total, 'trajectory')}{': ' if by_status else ''}{by_status}"
    if shown < found.total:
        which = "earlier" if sort == _ORDER else "later"
        told += f"; {found.total - shown} {which} ones not shown (--limit 0)"
    say(told)


def _row(one: Mapping[str, Any]) -> tuple[str | int | float | None, ...]:
    reason = f"({one['status_reason']})" if one["status_reason"] else ""
    versions = dict.fromkeys((one["policy_version_min"], one["policy_version_max"]))
    return (
        one["id"],
        one["step"],
        one["task_id"],
        f"{one['status']}{reason}",
        one["reward"],
        one["num_turns"],
        one["num_tokens"],
        one["num_policy_tokens"],
        None if None in versions else "-".join(map(str, versions)),
    )
