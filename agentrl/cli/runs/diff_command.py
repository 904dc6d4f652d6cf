"""Diff command: ``agentrl diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import print_json, reading_stored_files
from agentrl.cli.views.diff_text import print_diff
from agentrl.cli.views.token_text import token_text_of
from agentrl.store import RunDirectory, TrajectoryReader


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
    from agentrl.viewer.analysis.turn_diff import turn_diff

    directory = RunDirectory.open(run)
    first = TrajectoryReader(directory).get(a)
    second = TrajectoryReader(RunDirectory.open(other) if other else directory).get(b)
    found = turn_diff(first.trajectory, second.trajectory)
    if json:
        print_json(found)
    else:
        print_diff(found, first.trajectory, second.trajectory, token_text_of(directory))
