"""Diff command: ``agentrl diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import print_json, reading_stored_files
from agentrl.store import RunDirectory


@reading_stored_files()
def diff_command(
    run: Path,
    a: str,
    b: str,
    /,
    *,
    other: Annotated[Path | None, Parameter(name="--run-b")] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
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
    from agentrl.cli.views.diff_text import print_diff
    from agentrl.cli.views.token_text import token_text_of
    from agentrl.viewer.analysis.side_by_side import turn_diff
    from agentrl.viewer.runs.open_run import OpenRun

    directory = RunDirectory.open(run)
    with OpenRun(directory) as one, OpenRun(RunDirectory.open(other or run)) as another:
        found = turn_diff(one.trajectory(a), another.trajectory(b))
        if json:
            print_json(found)
            return
        first, second = one.shown(one.row(a)), another.shown(another.row(b))
    print_diff(found, first, second, token_text_of(directory))
