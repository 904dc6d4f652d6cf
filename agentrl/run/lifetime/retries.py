"""Retries: outlives the driver of a run, and starts it again where it died (``agentrl train
--retries``).

``python retries.py RETRIES RUN_DIR COMMAND...`` takes the place of the command line's process, and
imports the standard library alone: what outlives a machine that runs out of memory has to be small.

- The kernel ends the driver with this process. It leads a session of its own, so that Ctrl-C
  reaches it once, from here.
- What a driver started bears ``RETRY``. It ends by its own lifelines before the next driver begins;
  what does not is killed.
- A signal that asks a run to end is passed on, and the driver that ends by it is not started again.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

RETRY = "AGENTRL_RETRY"
"""The environment variable that all processes of a driver inherit: ``PID.TIME/WHY``, where the
second part says of which death this is the retry."""

_ASK = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_OWN_TO_RUN, _OF_MACHINE = 1, 4
_MOST_IN_VAIN = 2
"""Deaths in a row without a step gained, after which no more is tried."""
_LIFELINE_S = 30.0
"""Of them a process takes five; Ray's own take longer where the machine is busy."""
_LOOK_S = 0.1
_PR_SET_PDEATHSIG = 1
_PROC = Path("/proc")


def outlive(retries: int, run_dir: str, words: Sequence[str]) -> NoReturn:
    """Replaces this process by one that starts ``agentrl WORDS``, and starts it again where it
    dies.

    Args:
        retries: the most.
        run_dir: of the run.
        words: the command line, without ``--retries``.

    Raises:
        MachineError: this machine has no proc(5).
    """
    # the script below imports the standard library alone
    from agentrl.errors import MachineError

    if not _PROC.is_dir():
        raise MachineError(
            "--retries finds by /proc what a dead driver left, and this machine has none; leave "
            "--retries out, and start the run again with --resume"
        )
    # as this process was started, so that what it could import the driver can
    own = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    command = [sys.executable, *own, *words]
    sys.stdout.flush()
    script = [sys.executable, "-P", __file__, str(retries), run_dir]
    os.execv(sys.executable, [*script, *command])


def main(retries: int, run_dir: Path, command: list[str]) -> int:
    """Starts the driver, and again where it dies.

    Returns:
        The exit code of the last one, a shell's where a signal ended it.
    """
    drivers = _Drivers()
    words = command[command.index("train") :]
    told: list[str] = []
    in_vain = 0
    gained, _ = progress(run_dir)
    for retry in range(retries + 1):
        if retry and "--resume" not in command and (run_dir / "run.json").exists():
            command.append("--resume")
        code = drivers.run(
            command, f"retry {retry} of {retries}: {told[-1]}" if told else ""
        )
        before, (gained, newest) = gained, progress(run_dir)
        if drivers.asked or not _may_be_mended(code, gained):
            break
        how = (
            f"died by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        told.append(f"the driver {how}, with {newest}")
        in_vain = 0 if gained > before else in_vain + 1
        if in_vain == _MOST_IN_VAIN or retry == retries:
            spent = (
                "no step was gained twice" if in_vain == _MOST_IN_VAIN else "all are spent"
            )
            _give_up(spent, told, run_dir, [*words, "--retries", str(retries)])
            break
        drivers.end_rest()
    if code >= 0:
        return code
    # agentrl's own code for what a shell calls 138
    return 143 if code == -signal.SIGUSR1 else 128 - code


def _give_up(spent: str, told: Sequence[str], run_dir: Path, words: Sequence[str]) -> None:
    """Says what was seen, and how the run goes on."""
    seen = "\n".join(f"  {number}. {line}" for number, line in enumerate(told, 1))
    on = shlex.join(
        ["agentrl", *(word for word in words if word != "--resume"), "--resume"]
    )
    _say(
        f"error: agentrl train --retries gives up, since {spent}:\n{seen}\n"
        f"look into {run_dir / 'logs' / 'driver.jsonl'}, lower checkpoint.every where a driver "
        f"lives for less, and go on with: `{on}`"
    )


def progress(run_dir: Path) -> tuple[int, str]:
    """Steps that checkpoints keep, of all stages together, and the newest checkpoint in words."""
    steps: dict[str, int] = {}
    found = list(run_dir.glob("checkpoints/*/step=*/manifest.json"))
    for path in found:
        step = int(path.parent.name.removeprefix("step=").partition(".")[0])
        stage = path.parent.parent.name
        steps[stage] = max(step, steps.get(stage, 0))
    if not found:
        return 0, "no checkpoint"
    return sum(steps.values()), f"checkpoint {max(found, key=os.path.getmtime).parent}"


def _may_be_mended(code: int, gained: int) -> bool:
    """Whether a resume may succeed: not after a mistake in the configuration or the data, or where
    the machine lacks what it lacked from the first."""
    if code < 0:
        return -code not in _ASK
    return code == _OWN_TO_RUN or (code == _OF_MACHINE and gained > 0)


class _Drivers:
    """Starts them, one after the other, and passes signals on.

    Attributes:
        asked: the signals that asked the run to end.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._marker = ""
        self._running: subprocess.Popen[bytes] | None = None
        for number in _ASK:
            signal.signal(number, self._ask)

    def run(self, command: Sequence[str], why: str) -> int:
        """The exit code of a driver, negative for a signal; that of what asked the run to end where
        it came before.

        Args:
            command: starts it.
            why: it is started again; empty for the first one.
        """
        if self.asked:
            return -self.asked[-1]
        if why:
            _say(f"! {why}")
        self._marker = f"{os.getpid()}.{time.monotonic_ns()}/{why}"
        self._running = subprocess.Popen(
            command,
            env={**os.environ, RETRY: self._marker},
            start_new_session=True,
            preexec_fn=partial(_end_with, os.getpid()),
        )
        if self.asked:  # before it could be passed on
            self._running.send_signal(self.asked[-1])
        code = self._running.wait()
        self._running = None
        return code

    def end_rest(self) -> None:
        """Waits until nothing is left of a dead driver, but for agents of Ray's, which hold nothing
        of the run and would try for a minute to report its death."""
        end = time.monotonic() + _LIFELINE_S
        while time.monotonic() < end and not self.asked:
            names = (_read(pid, "cmdline").rstrip(b"\0") for pid in _bearing(self._marker))
            if all(name.endswith(b"Agent") for name in names):
                break
            time.sleep(_LOOK_S)
        for pid in _bearing(self._marker):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _ask(self, number: int, frame: object) -> None:
        self.asked.append(number)
        if self._running is not None:
            self._running.send_signal(number)


def _end_with(owner: int) -> None:
    """Has the kernel end this process with its owner."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        os._exit(1)


def _bearing(marker: str) -> Iterator[int]:
    wanted = f"{RETRY}={marker}".encode()
    for name in os.listdir(_PROC):
        if name.isdigit() and wanted in _read(int(name), "environ").split(b"\0"):
            yield int(name)


def _read(pid: int, name: str) -> bytes:
    """A file of proc(5); empty where the process has ended, or belongs to someone else."""
    try:
        return (_PROC / f"{pid}" / name).read_bytes()
    except OSError:
        return b""


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
