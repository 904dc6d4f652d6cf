"""Owner id: names the owner of what a process leaves, as no other process is ever named.

What the dead left is found here, whatever it is: a host, a server, a folder, a cgroup, a container.
What belongs to a process that lives, or of which nothing can be known, is never found.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from .host import proc

_Thing = TypeVar("_Thing")
_Found = TypeVar("_Found", bound=tuple[Mapping[Any, "Owner"], ...])


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


def orphaned(named: Iterable[tuple[_Thing, str]]) -> dict[_Thing, Owner]:
    """Of things, each with the text that names its owner, those whose owner is dead."""
    owners = {thing: Owner.parse(text) for thing, text in named}
    return {
        thing: owner
        for thing, owner in owners.items()
        if owner is not None and owner.is_dead
    }


def owner_part(name: str, prefix: str) -> str:
    """What names the owner in a name of prefix, owner and suffix; empty where another begins it."""
    return name.removeprefix(prefix).rpartition("-")[0] if name.startswith(prefix) else ""


def orphaned_folders(prefix: str) -> dict[str, Owner]:
    """Temporary folders, named by a prefix, an owner and a suffix, that a dead owner left and this
    user may remove.
    """
    found = []
    # the first is a sandbox host's, which has no TMPDIR
    for base in dict.fromkeys(("/tmp", tempfile.gettempdir())):
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            found += [
                (entry.path, owner_part(entry.name, prefix))
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and is_ours(entry.path)
            ]
    return orphaned(found)


def left_after(grace_s: float, look: Callable[[], _Found]) -> _Found:
    """What looks still find after so many seconds, in which the dead's processes may end it."""
    for _ in proc.rounds(grace_s, 0.05):
        found = look()
        if not any(found):
            break
    return found


def is_ours(path: str) -> bool:
    """Whether this user may remove a folder, or end the process of a folder of ``/proc``."""
    try:
        return os.geteuid() in (0, os.stat(path, follow_symlinks=False).st_uid)
    except OSError:
        return False


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
