"""Runs a command as long as its owner lives: ``python lifeline.py COMMAND...``, with a pipe as standard input.

The command gets a session of its own. When the pipe ends (its owner closed it or died), or the command does, every
process of that session is ended: first asked, then killed. Standard library alone: any interpreter runs this file.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

_GRACE_S = 2.0
_POLL_S = 0.2


def main(command: list[str]) -> int:
    """Returns the command's exit code, or 0 where its owner ended it."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    code: int | None = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_end(child)))
    while code is None:
        readable, _, _ = select.select([sys.stdin], [], [], _POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            return _end(child)
        code = child.poll()
    _end(child)
    return code


def _end(child: subprocess.Popen[bytes]) -> int:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
        except ProcessLookupError:
            break
        end = time.monotonic() + _GRACE_S
        while time.monotonic() < end and _group_lives(child):
            time.sleep(_POLL_S / 4)
    child.wait()
    return 0


def _group_lives(child: subprocess.Popen[bytes]) -> bool:
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
