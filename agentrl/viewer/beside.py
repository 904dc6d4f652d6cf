"""Viewer beside a run: a process that shows a run while another one makes it, and ends with that.

The process is started before the run exists: it waits for the run, then prints its link. It ends
when its standard input does, or when it has another parent: so it outlives no run, whatever ended
that.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentrl.store import RunDirectory

_POLL_S = 0.2
_END_S = 10.0
_WAKING_S = 1.0


@contextmanager
def viewer_beside(
    run: Path, tell: Callable[[str], None], *, terminal: bool
) -> Iterator[None]:
    """Shows a run as long as the block lasts.

    Args:
        run: its directory, which need not exist yet.
        tell: is given each line for people, on a thread of its own.
        terminal: whether people read what is told.
    """
    # a session of its own: Ctrl-C is for the run, which may still have to save itself
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(run.absolute()), str(int(terminal))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # ends with the process's output
    reader = threading.Thread(target=_pass_on, args=(process, tell), daemon=True)
    reader.start()
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(_END_S)


def _pass_on(process: subprocess.Popen[str], tell: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            tell(line.rstrip("\n"))


def main(run: Path, *, terminal: bool) -> None:
    """Waits for a run, then serves it, until standard input ends."""
    ended = threading.Event()
    threading.Thread(target=_watch_parent, args=(ended,), daemon=True).start()
    while not RunDirectory(run).record_path.is_file():
        if ended.wait(_POLL_S):
            return
    from agentrl.viewer.launch import show

    def tell(lines: Sequence[str]) -> None:
        print(f"watch the run at {lines[0]}", *lines[1:], sep="\n", flush=True)  # noqa: T201

    show(run, tell, terminal=terminal, until=ended.wait)


def _watch_parent(ended: threading.Event) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], _WAKING_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    ended.set()
    time.sleep(_END_S)
    # what hangs must not outlive the run
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), terminal=sys.argv[2] == "1")
