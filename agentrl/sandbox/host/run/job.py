"""Job: the description of a run that its process is given."""

from __future__ import annotations

import os
import sys

from .. import frames
from ..confine import namespaces
from .child import RunJob
from .session import InterpreterSession
from .slot import Slot

_SHARED_UID_MARGIN = 256  # processes that the user may start meanwhile


def job_of(
    slot: Slot, header: frames.Header, code: bytes, session: InterpreterSession | None
) -> RunJob:
    """What the process of a run is told.

    Args:
        slot: its parent.
        header: the request.
        code: the source, where it is no program's.
        session: whose interpreter it becomes; None runs the code once.
    """
    config = slot.config
    limits = header["limits"]
    if (
        session is not None
    ):  # the owner sees to it that the other limits are the same in each of its runs
        limits = {**limits, "cpu_s": None}
    env = {
        "PATH": config.path,
        **config.env,
        "HOME": slot.seen_work,
        "TMPDIR": slot.seen_temp,
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        **header["env"],
    }
    if config.uid is not None or (config.namespaced and namespaces.count_processes_apart()):
        process_limit = limits["processes"] + slot.num_own_processes
    elif config.process_base is not None:
        process_limit = config.process_base + limits["processes"] + _SHARED_UID_MARGIN
    else:
        process_limit = None
    return RunJob(
        code=code if header["argv"] is None else None,
        argv=tuple(header["argv"] or ()),
        env=env,
        cwd=slot.seen_work,
        limits=limits,
        confinement=slot.confinement,
        address_space=_address_space(),
        process_limit=process_limit,
        keep=config.keep,
        slot=os.getpid(),
        control=None if session is None else session.theirs,
        bound=slot.bound,
    )


def _address_space() -> int | None:
    """Bytes that a child has mapped when it starts; None where RLIMIT_AS does not work (macOS)."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
