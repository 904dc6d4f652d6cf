"""Query command: ``agentrl query``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.arguments import PositiveCount, Seconds
from agentrl.cli.terminal import (
    counted,
    print_json,
    print_table,
    reading_stored_files,
    say,
    say_passed_over,
)
from agentrl.store import RunDirectory


@reading_stored_files()
def query_command(
    run: Path,
    sql: str,
    /,
    *,
    limit: PositiveCount = 100,
    timeout: Seconds = 60.0,
    memory: str = "2GB",
    json: Annotated[bool, Parameter(negative=())] = False,
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
    from agentrl.viewer.index import RunIndex
    from agentrl.viewer.run_sql import MAX_ROWS, RunSql

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
