"""Read commands: ``agentrl ls``, ``query``, ``show``, ``diff``, ``tail`` and ``top``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from agentrl.cli.terminal import (
    Count,
    Flag,
    PositiveCount,
    Seconds,
    console,
    counted,
    print_json,
    print_table,
    reading_stored_files,
    say,
    say_passed_over,
)
from agentrl.cli.views.diff_text import print_diff
from agentrl.cli.views.run_overview import overview, print_overview
from agentrl.cli.views.tail_lines import RunTail, print_entry
from agentrl.cli.views.top_text import RunTop, print_top
from agentrl.cli.views.trajectory_text import (
    print_trajectory,
    token_text_of,
    trajectory_json,
)
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.viewer.analysis.side_by_side import turn_diff
from agentrl.viewer.analysis.stored_rows import add_texts
from agentrl.viewer.index import RunIndex, parse_query, quoted
from agentrl.viewer.run_sql import MAX_ROWS, RunSql
from agentrl.viewer.runs.open_run import OpenRun

_ORDER = "step,stage,label,group,rollout,attempt"
_COLUMNS = "id,step,task,status,reward,turns,tokens,version"


@reading_stored_files()
def ls_command(
    run: Path,
    query: str = "",
    /,
    *,
    sort: Annotated[str, Parameter(allow_leading_hyphen=True)] = _ORDER,
    columns: str = _COLUMNS,
    step: int | None = None,
    label: str | None = None,
    task: str | None = None,
    status: Literal["terminated", "truncated", "failed", "cancelled"] | None = None,
    limit: Count = 50,
    json: Flag = False,
) -> None:
    """List the trajectories of a run, also while it trains.

    Parameters
    ----------
    run
        The run directory.
    query
        Only those that fit, such as 'reward<0.5 tool:python text:"No such file"' (docs/query.md).
    sort
        Fields by which they stand, with commas between; - before one for the greatest first.
    columns
        Fields that are shown, with commas between (docs/query.md).
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
    # so that a fault is named by its place in what was typed
    parse_query(query)
    asked = {"step": step, "label": label, "task": task, "status": status}
    terms = [
        f"{name}:{quoted(str(value))}" for name, value in asked.items() if value is not None
    ]
    whole = " ".join([*terms, f"({query})" if query.strip() else ""])
    directory = RunDirectory.open(run)
    with RunIndex(directory) as index:
        index.refresh(timeout_s=60.0)
        names = columns.split(",")
        say_passed_over(index.damage())
        found = index.page(whole, sort, limit=None if json else 0)
        if json:
            print_json(found.rows)
            return
        shown = min(limit or found.total, found.total)
        offset = found.total - shown if sort == _ORDER else 0
        rows = index.page(whole, sort, offset, shown).rows
        add_texts(directory, TrajectoryReader(directory), rows, index.fields(), names)
        counts = dict(index.facets(whole, ["status"])["columns"]["status"])
    print_table(names, ([_cell(one, name) for name in names] for one in rows))
    by_status = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    told = f"{counted(found.total, 'trajectory')}{': ' if by_status else ''}{by_status}"
    if shown < found.total:
        which = "earlier" if sort == _ORDER else "later"
        told += f"; {found.total - shown} {which} ones not shown (--limit 0)"
    say(told)


def _cell(one: Mapping[str, Any], name: str) -> str | int | float | None:
    value = one.get(name)
    if name == "status" and one["reason"]:
        return f"{value}({one['reason']})"
    return ",".join(value) if isinstance(value, list) else value


@reading_stored_files()
def query_command(
    run: Path,
    sql: str,
    /,
    *,
    limit: PositiveCount = 100,
    timeout: Seconds = 60.0,
    memory: str = "2GB",
    json: Flag = False,
) -> None:
    """Ask a run by SQL: one SELECT over trajectories, turns, annotations, metrics and events.

    Parameters
    ----------
    run
        The run directory.
    sql
        Such as 'SELECT step, avg(reward) FROM trajectories GROUP BY step ORDER BY step'.
    limit
        At most so many rows, 10000 at most.
    timeout
        Seconds after which the query is ended.
    memory
        That the query may take, such as 500MB.
    json
        A JSON array of an object a row.
    """
    directory = RunDirectory.open(run)
    with RunIndex(directory) as index, RunSql(directory, index, memory=memory) as database:
        say_passed_over(database.damage)
        found = database.query(sql, rows=limit, timeout_s=timeout)
    told = f"{counted(len(found.rows), 'row')} in {found.seconds:.2f} s"
    if found.cut:
        told += f"; there are more (--limit, {MAX_ROWS} at most)"
    if json:
        print_json([dict(zip(found.columns, row, strict=True)) for row in found.rows])
        if found.cut:
            # a script must not take them for all
            say(told, file=sys.stderr)
        return
    print_table(found.columns, found.rows)
    say(told)


@reading_stored_files()
def show_command(
    run: Path,
    trajectory: str | None = None,
    /,
    *,
    json: Flag = False,
) -> None:
    """Show a run, or one of its trajectories with the origin of every token.

    Parameters
    ----------
    run
        The run directory.
    trajectory
        An id of `agentrl ls`, such as 12-3-0 or code/before/greedy/4-0-0.
    json
        As JSON, token ids and logprobs included.
    """
    directory = RunDirectory.open(run)
    if trajectory and json:
        print_json(trajectory_json(directory, trajectory))
        return
    with OpenRun(directory) as opened:
        if trajectory:
            row = opened.row(trajectory)
            print_trajectory(row, opened.shown(row), token_text_of(directory))
            return
        found = overview(opened)
        say_passed_over(opened.damage())
    print_json(found) if json else print_overview(found)


@reading_stored_files()
def diff_command(
    run: Path,
    a: str,
    b: str,
    /,
    *,
    other: Annotated[Path | None, Parameter(name="--run-b")] = None,
    json: Flag = False,
) -> None:
    """Compare two trajectories turn by turn, and say at which token they part.

    Parameters
    ----------
    run
        The run directory.
    a
        An id of `agentrl ls`.
    b
        Another one.
    other
        The run directory of B, where it is not that of A.
    json
        As JSON.
    """
    directory = RunDirectory.open(run)
    with OpenRun(directory) as one, OpenRun(RunDirectory.open(other or run)) as another:
        found = turn_diff(one.trajectory(a), another.trajectory(b))
        if json:
            print_json(found)
            return
        first, second = one.shown(one.row(a)), another.shown(another.row(b))
    print_diff(found, first, second, token_text_of(directory))


@reading_stored_files()
def tail_command(
    run: Path,
    query: str = "",
    /,
    *,
    lines: Count = 5,
    interval: Seconds = 1.0,
    json: Flag = False,
) -> None:
    """Follow a run: its steps, new trajectories and alerts, until it ends or Ctrl-C comes.

    Parameters
    ----------
    run
        The run directory.
    query
        Only trajectories that fit, such as reward<0.5 (docs/query.md); steps and alerts always.
    lines
        So many of the latest steps, trajectories and alerts come first.
    interval
        Seconds between two looks.
    json
        A JSON object a line.
    """
    with RunTail(RunDirectory.open(run), query, lines) as tail:
        try:
            for entry in tail.follow(interval):
                print_entry(entry, as_json=json)
        except KeyboardInterrupt:
            # which is how one stops looking
            return


@reading_stored_files()
def top_command(
    run: Path,
    /,
    *,
    once: Flag = False,
    interval: Seconds = 1.0,
    json: Flag = False,
) -> None:
    """Show what a run does now and who waits for whom, until it ends or Ctrl-C comes.

    Parameters
    ----------
    run
        The run directory.
    once
        One look; also where the output is no terminal.
    interval
        Seconds between two looks.
    json
        One look, as JSON.
    """
    top = RunTop(RunDirectory.open(run))
    found = top.look()
    say_passed_over(found["damage"])
    if json:
        print_json(found)
        return
    if sys.stdout.isatty() and not once:
        out = console()
        try:
            with out.screen():
                while found["state"] == "alive":
                    out.clear()
                    print_top(found)
                    time.sleep(interval)
                    found = top.look()
        except KeyboardInterrupt:
            # which is how one stops looking
            pass
    print_top(found)
