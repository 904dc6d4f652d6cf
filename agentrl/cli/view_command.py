"""View commands: ``agentrl view`` and ``agentrl export``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from agentrl.cli.terminal import (
    Flag,
    Port,
    Positive,
    counted,
    reading_stored_files,
    say,
    say_passed_over,
)
from agentrl.errors import ConfigError, DataError


@reading_stored_files()
def view_command(
    source: Path | None = None,
    /,
    *,
    demo: Flag = False,
    host: str = "127.0.0.1",
    port: Port = 0,
    allow_host: tuple[str, ...] = (),
    open: Annotated[bool, Parameter(negative="--no-open")] = True,  # noqa: A002  the option's name
) -> None:
    """Show runs in the browser, also while they train.

    Whoever has the printed link sees the runs, and nobody else.

    Parameters
    ----------
    source
        A run directory, or a folder above some; by default this folder.
    demo
        Show a recorded run that comes with agentrl, with faults to find.
    host
        The address to listen on; another than this machine's own is reached by others, without
        encryption.
    port
        The port; 0 takes a free one.
    allow_host
        A name by which the viewer may also be asked for, such as a proxy's.
    open
        Open a browser where there is a desktop.
    """
    if demo and source is not None:
        raise ConfigError(
            f"--demo shows its own run, so name none beside it, got {str(source)!r}"
        )
    # Arrow's own pool keeps what each thread has read: some 50 MB over a large run
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if demo:
        from agentrl.viewer.demo import unpack_demo

        source = unpack_demo()
    show(source or Path("."), host=host, port=port, allow_hosts=allow_host, opens=open)


def show(source: Path, **options: Any) -> None:
    """Shows runs until Ctrl-C, and says where.

    Args:
        source: a run directory, or a folder above some.
        options: as ``agentrl.viewer.launch.show`` has them.
    """
    from agentrl.viewer import launch

    def tell(lines: Sequence[str]) -> None:
        say(f"viewing {source} at {lines[0]}")
        for line in lines[1:]:
            # to be copied, and so in one piece
            print(line, flush=True)

    launch.show(source, tell, terminal=sys.stdout.isatty(), **options)


@reading_stored_files()
def export_html_command(
    run: Path,
    out: Path,
    /,
    *,
    query: str = "",
    limit: int = 200,
    redact: tuple[str, ...] = (),
) -> None:
    """Write trajectories of a run into one HTML file, which opens without a server.

    The file holds the viewer, its token view included, and everything that it shows of them.

    Parameters
    ----------
    run
        The run directory.
    out
        The file, such as failed.html.
    query
        Which trajectories, as in the viewer: status:failed step>=10
    limit
        At most so many, up to 200; the latest steps first.
    redact
        A regular expression of what must not leave: it is taken out of texts, token ids, blobs and
        the configuration. May be given several times.
    """
    from agentrl.viewer.export.html_file import export_html
    from agentrl.viewer.runs.run_folder import RunFolder

    runs = RunFolder(run)
    try:
        if not runs.is_one_run:
            raise DataError(f"'{run}' is a folder of runs; name one of them")
        done = export_html(runs.runs()[0], out, query=query, limit=limit, redact=redact)
    finally:
        runs.close()
    say_passed_over(done.damage)
    of = f" of {done.found} (--limit, --query)" if done.found > done.trajectories else ""
    say(f"{out}: {counted(done.trajectories, 'trajectory')}{of}, {done.size / 1e6:.1f} MB")


@reading_stored_files()
def export_model_command(
    run: Path,
    /,
    *,
    to: str,
    step: int | None = None,
    stage: str | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    shard_gb: Positive = 5.0,
    merge: Flag = False,
) -> None:
    """Write a checkpoint as a model's folder: safetensors, configuration and tokenizer. That of an
    adapter (model.lora) is written as peft does.

    It needs no GPU, and holds one file of weights in memory at a time.

    Parameters
    ----------
    run
        The run directory.
    to
        The folder, which may not exist or be empty, or the URL of one: s3://bucket/models/a
    step
        Of the checkpoint; the newest by default.
    stage
        Of the checkpoint; by default the one that wrote the newest.
    dtype
        Of the weights; by default as the model that the stage began from, an adapter's in float32.
    shard_gb
        At most so many gigabytes a file.
    merge
        An adapter into its base, where that was trained on, as a whole model's folder.
    """
    from agentrl.run.model_export import find_checkpoint
    from agentrl.store import RunDirectory
    from agentrl.training.fsdp.checkpoint_export import export_checkpoint

    found = find_checkpoint(RunDirectory.open(run), stage=stage, step=step)
    size = export_checkpoint(
        found, to, dtype=dtype, shard_bytes=int(shard_gb * 1e9), merges=merge
    )
    say(
        f"{to}: {found.parent.parent.name}, {found.parent.name}, {size / 1e6:,.1f} MB of weights"
    )
