"""A writer in a process of its own that is killed at any moment."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.kit.forks import FORKS
from tests.kit.waiting import DEADLINE_S


def killed_writing(
    write_on: Callable[..., None],
    root: Path,
    first: int,
    told: int,
    *,
    chance: random.Random,
    waits: tuple[int, int],
    most_s: float,
) -> int:
    """What the writer told last before it was killed; ``told`` where it came to tell nothing.

    Args:
        write_on: writes ``(root, first, connection)`` until it is killed, and tells what is
            durable.
        root: of the run.
        first: where it begins.
        told: what was told last before.
        chance: chooses the moment.
        waits: the fewest and the most that it tells before the kill.
        most_s: the longest wait behind that: any moment, also of starting, sealing, and between a
            shard and the next.
    """
    receive, send = FORKS.Pipe(duplex=False)
    writing = FORKS.Process(target=write_on, args=(root, first, send))
    writing.start()
    send.close()
    try:
        for _ in range(chance.randint(*waits)):
            assert receive.poll(DEADLINE_S)
            told = receive.recv()
        time.sleep(chance.uniform(0.0, most_s))
    finally:
        assert writing.pid is not None
        writing.kill()
        writing.join(DEADLINE_S)
    assert writing.exitcode == -signal.SIGKILL
    while receive.poll():
        try:
            told = receive.recv()
        except EOFError:
            break
    return told
