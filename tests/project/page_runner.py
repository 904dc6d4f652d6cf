"""Page runner: programs of pages, each in a fork of one process that has imported what they need.

A line of the input is a script; its answer is the exit code. What a script says lies beside it in
a file ``.log``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import datasets  # noqa: F401
import ray  # noqa: F401
import transformers  # noqa: F401

import agentrl.agent_server
import agentrl.engines.torch
import agentrl.run.trainer
import agentrl.training  # noqa: F401

LIMIT_S = 200  # ends what hangs


def run(script: Path) -> None:
    signal.alarm(LIMIT_S)
    os.chdir(script.parent)
    log = os.open(script.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.argv = [str(script)]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


while line := sys.stdin.readline():
    if not (child := os.fork()):
        run(Path(line.strip()))
        break  # it ends as a program does, with what is to be done at its exit
    sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
    sys.stdout.flush()
