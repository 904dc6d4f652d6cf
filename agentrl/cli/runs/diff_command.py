"""Diff command: ``agentrl diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import print_json, reading_stored_files
from agentrl.cli.views.diff_text import print_diff
from agentrl.cli.views.token_text import shown_trajectory, token_text_of
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
    directory_b = RunDirectory.open(other) if other else directory
    reader = TrajectoryReader(directory)
    reader_b = TrajectoryReader(directory_b)
    found = turn_diff(reader.get(a).trajectory, reader_b.get(b).trajectory)
    if json:
        print_json(found)
    else:
        first = shown_trajectory(directory, reader, a)
        second = shown_trajectory(directory_b, reader_b, b)
        print_diff(found, first, second, token_text_of(directory))
