"""Tail command: ``agentrl tail``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.arguments import Count, Seconds
from agentrl.cli.terminal import reading_stored_files
from agentrl.store import RunDirectory


@reading_stored_files()
def tail_command(
    run: Path,
    query: str = "",
    /,
    *,
    lines: Count = 5,
    interval: Seconds = 1.0,
    json: Annotated[bool, Parameter(negative=())] = False,
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
    from agentrl.cli.views.tail_lines import RunTail, print_entry

    with RunTail(RunDirectory.open(run), query, lines) as tail:
        try:
            for entry in tail.follow(interval):
                print_entry(entry, as_json=json)
        except KeyboardInterrupt:
            # which is how one stops looking
            return
