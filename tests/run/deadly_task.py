"""A reward that kills the process that asks for it, at calls that the environment names."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from agentrl.envs import EpisodeView
from tests.run.tiny_task import graded

DEADLY, CALLS = "DEADLY_CALLS", "DEADLY_COUNT"
"""Numbers of the calls, or ``all``; the file that has a byte a call, of all processes."""


def deadly(episode: EpisodeView) -> float:
    path = Path(os.environ[CALLS])
    with path.open("ab") as file:
        file.write(b".")
    if (
        os.environ[DEADLY] == "all"
        or str(path.stat().st_size) in os.environ[DEADLY].split()
    ):
        os.kill(os.getpid(), signal.SIGKILL)
    return graded(episode)
