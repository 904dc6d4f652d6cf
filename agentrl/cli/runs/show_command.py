"""Show command: ``agentrl show``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import print_json, reading_stored_files, say_passed_over
from agentrl.cli.views.run_overview import overview, print_overview
from agentrl.cli.views.token_text import shown_trajectory, token_text_of
from agentrl.cli.views.trajectory_json import trajectory_json
from agentrl.cli.views.trajectory_text import print_trajectory
from agentrl.store import RunDirectory, TrajectoryReader


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
    directory = RunDirectory.open(run)
    if trajectory:
        reader = TrajectoryReader(directory)
        stored = reader.get(trajectory)
        if json:
            print_json(trajectory_json(stored))
        else:
            shown = shown_trajectory(directory, reader, trajectory)
            print_trajectory(replace(stored, trajectory=shown), token_text_of(directory))
    else:
        damage: list[str] = []
        found = overview(directory, damage)
        say_passed_over(damage)
        print_json(found) if json else print_overview(found)
