"""Show command: ``agentrl show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import print_json, reading_stored_files, say_passed_over
from agentrl.store import RunDirectory


@reading_stored_files()
def show_command(
    run: Path,
    trajectory: str | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
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
    from agentrl.cli.views.run_overview import overview, print_overview
    from agentrl.cli.views.token_text import token_text_of
    from agentrl.cli.views.trajectory_json import trajectory_json
    from agentrl.cli.views.trajectory_text import print_trajectory
    from agentrl.viewer.runs.open_run import OpenRun

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
