"""Watch: enforces the limits that no rlimit counts over all processes of a run together."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from ..files import usage
from . import process_tree
from .session import InterpreterSession
from .slot import Slot

# looks
_FILES_EVERY = 5
# what is reserved, and of a small file system the tenth part
_RESERVE_BYTES = 512 * 2**20
_RESERVE_SHARE = 10
# of its disk limit: a run that wrote as much since its files were counted is not waited for
_EARLY_SHARE = 8
# of its disk limit: a run that wrote as much has its part in a full file system
_BLAMED_SHARE = 4

# a result's status and detail
Verdict = tuple[str, str]


class SpaceShort(Exception):  # noqa: N818
    """The file system of the sandboxes has less than its reserve left, and this run did not fill
    it.
    """


@dataclass
class Watch:
    """Looked through ten times a second while a run goes on.

    Attributes:
        slot: whose children are watched.
        limits: of the run.
        session: the interpreter that does the run, where it keeps its variables.
        looks: how many there were.
        reaped_before: bytes written by what the slot had reaped at the first look.
        written: bytes written, by process.
        counted_at: bytes written when files were last counted.
    """

    slot: Slot
    limits: dict[str, Any]
    session: InterpreterSession | None
    looks: int = 0
    reaped_before: int | None = None
    written: dict[int, int] = field(default_factory=dict)
    counted_at: int = 0

    def look(self) -> Verdict | None:
        """What ends the run, if anything does.

        Raises:
            SpaceShort: as the class says.
        """
        slot = self.slot
        limits = self.limits
        if slot.config.abi is None and sys.platform != "linux":
            return None
        self.looks += 1
        resting = slot.session if self.session is None else None
        # first processes of pid namespaces, which do nothing, and an interpreter that rests
        own = set() if slot.namespaces is None else set(slot.namespaces.firsts.values())
        if resting is not None:
            own.add(resting.pid)
        pids = [pid for pid in process_tree.descendants(os.getpid()) if pid not in own]
        if len(pids) > limits["processes"]:
            return "killed", f"more than {limits['processes']} processes"
        if slot.memory.is_spent or (len(pids) > 1 and self._passes_memory(pids)):
            return "oom", f"all processes together passed {limits['memory_bytes']} bytes"
        if self.session is not None and limits["cpu_s"] is not None:
            # RLIMIT_CPU counts a process's whole life
            used_s = self.session.used_s()
            if used_s > limits["cpu_s"]:
                return (
                    "timeout",
                    f"used {used_s:.2f} s of processor time; the limit is {limits['cpu_s']:g} s",
                )
        return None if slot.namespaces is not None else self._look_at_files(pids)

    def _passes_memory(self, pids: list[int]) -> bool:
        """Whether what the processes made, and what their sockets and pipes may hold, is more than
        the limit.
        """
        left = self.limits["memory_bytes"] - process_tree.memory_beyond_own(pids)
        return left < 0 or (self.slot.bound is None and usage.of_buffers(pids, left) > left)

    def _look_at_files(self, pids: list[int]) -> Verdict | None:
        max_bytes = self.limits["disk_bytes"]
        max_files = self.limits["max_files"]
        short = ""
        early = False
        if not self.slot.config.bounded:
            short = self._short_of_space()
            written = self._written_bytes(pids)
            early = written - self.counted_at > max_bytes // _EARLY_SHARE
        if self.looks % _FILES_EVERY and not early and not short:
            return None
        try:
            used, entries = usage.of_folders(self.slot.own_folders, max_files)
        except usage.Uncountable as error:
            return "killed", str(error)
        holders = {*pids, self.slot.resting_pid} - {0}
        used += usage.of_unlinked(holders, os.stat(self.slot.work).st_dev)
        if used > max_bytes:
            return "killed", f"{used} bytes in files; the limit is {max_bytes} bytes"
        if entries > max_files:
            return "killed", f"more than {max_files} files"
        if self.slot.config.bounded:
            return None
        self.counted_at = written
        if short and (
            max(used, written) >= max_bytes // _BLAMED_SHARE or usage.hides_files(holders)
        ):
            return "killed", f"{short}, and the code has its part in it"
        if short:
            raise SpaceShort(f"{short}: free some, or lower it")
        return None

    def _short_of_space(self) -> str:
        """What is to be said of a file system that has less left than its reserve; nothing of any
        other.
        """
        held = os.statvfs(self.slot.work)
        free = held.f_bavail * held.f_frsize
        reserve = self.limits["reserve_bytes"]
        if reserve is None:
            reserve = min(_RESERVE_BYTES, held.f_blocks * held.f_frsize // _RESERVE_SHARE)
        if free >= reserve:
            return ""
        left = f"{free} bytes are left where sandboxes keep their files"
        return f"{left}, and Limits.reserve_bytes is {reserve}"

    def _written_bytes(self, pids: list[int]) -> int:
        """By the processes of the run that were seen, or by those that the slot has reaped since
        its first look.
        """
        reaped = usage.written_bytes(os.getpid())
        if self.reaped_before is None:
            self.reaped_before = reaped
        for pid in pids:
            self.written[pid] = max(self.written.get(pid, 0), usage.written_bytes(pid))
        return max(sum(self.written.values()), reaped - self.reaped_before)
