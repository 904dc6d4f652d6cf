"""Show command: ``agentrl show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


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
    from agentrl.cli.views.stored_files import reading_stored_files

    with reading_stored_files():
        _show_trajectory(run, trajectory, json) if trajectory else _show_run(run, json)


def _show_run(run: Path, json: bool) -> None:
    from agentrl.cli.terminal import print_json
    from agentrl.cli.views.run_overview import overview, print_overview
    from agentrl.store import RunDirectory

    found = overview(RunDirectory.open(run))
    print_json(found) if json else print_overview(found)


def _show_trajectory(run: Path, trajectory: str, json: bool) -> None:
    from agentrl.cli.terminal import print_json
    from agentrl.cli.views.token_text import token_text_of
    from agentrl.cli.views.trajectory_json import trajectory_json
    from agentrl.cli.views.trajectory_text import print_trajectory
    from agentrl.store import RunDirectory, TrajectoryReader

    directory = RunDirectory.open(run)
    stored = TrajectoryReader(directory).get(trajectory)
    print_json(trajectory_json(stored)) if json else print_trajectory(
        stored, token_text_of(directory)
    )
