"""Owner id: names the owner of what a sandbox leaves, as no other process is ever named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from .host import proc


@dataclass(frozen=True, slots=True)
class Owner:
    """A process of this boot, told from a later one with its pid, and from one with its pid in
    another container.

    Folders, process titles and container labels carry ``str(owner)``, so that a later process can
    tell whether their owner still lives.

    Attributes:
        pid: in its own pid namespace.
        started: clock ticks from the boot to its start; 0 where the system has no /proc.
        namespace: the inode of its pid namespace; 0 likewise.
        boot: the first 12 hexadecimal digits of the kernel's boot id; empty likewise.
    """

    pid: int
    started: int
    namespace: int
    boot: str

    @classmethod
    def current(cls) -> Self:
        """This process."""
        pid = os.getpid()
        return cls(pid, _started(pid) or 0, _namespace(), _boot())

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What ``str(owner)`` wrote; None for anything else."""
        parts = text.split("-")
        if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]):
            return None
        return cls(int(parts[0]), int(parts[1]), int(parts[2]), parts[3])

    def __str__(self) -> str:
        return f"{self.pid}-{self.started}-{self.namespace}-{self.boot}"

    @property
    def is_dead(self) -> bool:
        """Whether it is certain that the process has ended; False where this process cannot know.

        A process of another pid namespace (another container over the same folder) cannot be looked
        up.
        """
        if not self.boot:
            return False
        if self.boot != _boot():
            return bool(_boot())
        return self.namespace == _namespace() and _started(self.pid) != self.started


def _started(pid: int) -> int | None:
    """Field 22 of proc(5)'s stat; None where there is no such process, or it is a zombie."""
    fields = proc.stat(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().replace("-", "")[:12]
    except OSError:
        return ""
