"""Train command: ``agentrl train``."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import reading_stored_files, say


def train_command(
    config: Path,
    /,
    *overrides: Annotated[str, Parameter(negative=(), allow_leading_hyphen=False)],
    resume: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    view: Annotated[bool, Parameter(negative=())] = False,
    then_view: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train an agent as a configuration file says.

    Parameters
    ----------
    config
        A YAML file (docs/configuration.md).
    overrides
        Settings that go before the file's, as key=value: train.steps=10 stages.warmup.steps=5
    resume
        Go on with the run in run.dir from its last checkpoint.
    dry_run
        Check the configuration, print it whole with the origin of each value, and stop.
    view
        Show the run in the browser as long as it trains.
    then_view
        Show the run in the browser when it has been trained, until Ctrl-C. Without a terminal
        nothing is started.
    """
    from agentrl.config import load_with_origins, to_yaml

    loaded = load_with_origins(config, overrides)
    if dry_run:
        print(to_yaml(loaded.config, loaded.origin), end="")
        return
    from agentrl.store import RunDirectory

    place = loaded.config.run.dir or ""
    # A folder that cannot be used is refused before the imports below, which take seconds.
    with reading_stored_files():
        RunDirectory.open(place) if resume else RunDirectory.check_new(place)
    from rich.console import Console

    console = Console()
    # rich takes FORCE_COLOR for a terminal, and nobody sits before that one.
    terminal = sys.stdout.isatty()
    with ExitStack() as stack:
        if view:
            from agentrl.viewer.beside import ViewerBeside

            told = partial(console.print, markup=False, highlight=False, soft_wrap=True)
            stack.enter_context(ViewerBeside(Path(place), told, terminal=terminal))
        from agentrl.run.trainer import Trainer

        trainer = stack.enter_context(Trainer(loaded.config, console=console))
        trainer.train(resume=resume)
    if not (then_view and terminal):
        say(f"show it in the browser: agentrl view {shlex.quote(place)}")
        return
    from agentrl.cli.runs.view_command import show

    say("the run has ended; Ctrl-C ends the viewer too")
    with reading_stored_files():
        show(Path(place))
