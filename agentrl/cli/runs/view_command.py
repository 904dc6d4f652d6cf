"""View command: ``agentrl view``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from agentrl.cli.arguments import Port
from agentrl.cli.terminal import reading_stored_files, say
from agentrl.errors import ConfigError


@reading_stored_files()
def view_command(
    source: Path | None = None,
    /,
    *,
    demo: Annotated[bool, Parameter(negative=())] = False,
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
        raise ConfigError(f"--demo shows its own run, so name none beside it, got {str(source)!r}")
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
