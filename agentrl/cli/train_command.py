"""Run commands: ``agentrl train`` and ``agentrl rollout``."""

from __future__ import annotations

import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import (
    Count,
    Flag,
    LastingConsole,
    PositiveCount,
    console,
    counted,
    print_table,
    reading_stored_files,
    say,
)

if TYPE_CHECKING:
    from agentrl.store import TrajectorySummary


def train_command(
    config: Path,
    /,
    *overrides: Annotated[str, Parameter(negative=(), allow_leading_hyphen=False)],
    resume: Flag = False,
    dry_run: Flag = False,
    view: Flag = False,
    then_view: Flag = False,
    retries: Count = 0,
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
    retries
        Start the run again from its last checkpoint where its process dies, so many times at most;
        no more once no step was gained twice.
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
        if not resume:
            RunDirectory.check_new(place)
        # what is not here may be fetched
        elif RunDirectory(Path(place)).record_path.is_file() or not any(
            stage.checkpoint.copy_to for stage in loaded.config.resolved_stages()
        ):
            RunDirectory.open(place)
    if retries:
        from agentrl.run.lifetime.retries import outlive

        flags = {"--resume": resume, "--view": view, "--then-view": then_view}
        given = [flag for flag, is_given in flags.items() if is_given]
        outlive(retries, place, ["train", str(config), *overrides, *given])
    console = LastingConsole()
    # rich takes FORCE_COLOR for a terminal, and nobody sits before that one.
    terminal = sys.stdout.isatty()
    with ExitStack() as stack:
        if view:
            from agentrl.viewer.beside import viewer_beside

            told = partial(console.print, markup=False, highlight=False, soft_wrap=True)
            stack.enter_context(viewer_beside(Path(place), told, terminal=terminal))
        from agentrl.run.trainer import Trainer

        trainer = stack.enter_context(Trainer(loaded, console=console))
        trainer.train(resume=resume)
    if not (then_view and terminal):
        say(f"show it in the browser: agentrl view {shlex.quote(place)}", whole=True)
        return
    from agentrl.cli.view_command import show

    say("the run has ended; Ctrl-C ends the viewer too")
    with reading_stored_files():
        show(Path(place))


def rollout_command(
    model: Path,
    config: str | None = None,
    /,
    *overrides: str,
    tasks: PositiveCount | None = None,
    samples: PositiveCount | None = None,
    out: Path | None = None,
) -> None:
    """Collect trajectories of a policy as a data set, without training.

    `agentrl rollout RUN|MODEL CONFIG` plays the tasks of data.train; `agentrl rollout CONFIG` does
    so with the model of its model.path, or with that of an OpenAI-compatible server
    (rollout.engine=openai). What is collected lies in a run directory, for `agentrl ls`, `agentrl
    show` and Hugging Face's datasets. The same command again goes on where an earlier one was
    interrupted, plays again what failed, and may ask for more tasks.

    Parameters
    ----------
    model
        A run directory, whose last policy plays, or a model folder (Hugging Face's layout);
        or the configuration.
    config
        A configuration file; by default the run's own.
    overrides
        Settings that go before the file's, as key=value.
    tasks
        Only the first so many tasks of data.train; by default all.
    samples
        Episodes a task; by default rollout.group_size.
    out
        The run directory; by default run.dir with "-rollouts" behind it.
    """
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from agentrl.run.collection import collect
    from agentrl.run.policy_source import named_policy

    alone = named_policy(model, config, overrides, command="agentrl rollout")
    folder = out or Path(f"{alone.run.dir}-rollouts")
    columns = (
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console(), transient=True, redirect_stdout=False
    ) as progress:
        bar = progress.add_task("groups", total=None)
        collected = collect(
            alone,
            folder,
            num_tasks=tasks,
            samples=samples,
            played=lambda done, total: progress.update(bar, completed=done, total=total),
            tell=progress.console.print,
        )
    _report(collected)
    listing = f"agentrl ls {shlex.quote(str(folder))}"
    say(f"{folder}: {counted(len(collected), 'episode')}; {listing}", whole=True)


_COLUMNS = (
    "data source",
    "tasks",
    "episodes",
    "terminated",
    "truncated",
    "failed",
    "reward",
    "turns",
    "policy tokens",
)


def _report(collected: Sequence[TrajectorySummary]) -> None:
    sources: defaultdict[str, list[TrajectorySummary]] = defaultdict(list)
    for summary in collected:
        sources[summary.data_source].append(summary)
    print_table(_COLUMNS, [_row(name, own) for name, own in sorted(sources.items())])


def _row(
    name: str, own: Sequence[TrajectorySummary]
) -> tuple[str | int | float | None, ...]:
    statuses = Counter(summary.status for summary in own)
    finished = [
        (summary.reward, summary.num_turns, summary.num_policy_tokens)
        for summary in own
        if summary.reward is not None
    ]
    return (
        name,
        len({summary.group_index for summary in own}),
        len(own),
        statuses["terminated"],
        statuses["truncated"],
        statuses["failed"],
        *(map(fmean, zip(*finished, strict=True)) if finished else (None, None, None)),
    )
