"""Local backends: ``landlock``, ``bubblewrap``, and ``unsafe`` without any confinement.

Root is given up before bubblewrap starts: no sandbox ever runs as a uid that means anything
outside. Started by root, each sandbox has a uid of its own; started by a user, all have the user's,
each in a user namespace of its own. Which processes and files each run sees is in
``host/confine/namespaces.py``.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, ClassVar

from agentrl.errors import MachineError, SandboxError
from agentrl.sandbox.host.confine import drop_privileges, namespaces, uids
from agentrl.sandbox.host.interpreter import PROGRAMS, SYSTEM_FILES
from agentrl.sandbox.host.proc import owned
from agentrl.types.loop_thread import LoopThread

from .channel import OnEnd, OnFrame
from .hosts import shared_server
from .launcher import HOST_FOLDER, Launcher, LocalLauncher, ProcessHost, host_argv
from .server import HostSettings
from .slot_sandbox import ForkedSandbox

if TYPE_CHECKING:
    from agentrl.sandbox.sandbox_spec import SandboxSpec


def landlock(spec: SandboxSpec) -> ForkedSandbox:
    """Landlock, seccomp and rlimits around the warm interpreter.

    Raises:
        MachineError: not on Linux.
    """
    if sys.platform != "linux":
        raise MachineError(f"it needs Linux, this is {sys.platform}")
    return forked(spec, confine=True)


def unsafe(spec: SandboxSpec) -> ForkedSandbox:
    """The same host with nothing but limits."""
    return forked(spec, confine=False)


def forked(
    spec: SandboxSpec, *, confine: bool, launcher: Launcher | None = None
) -> ForkedSandbox:
    """A sandbox in the host that this process's sandboxes of such a spec share.

    Args:
        spec: what the host and the sandbox are told.
        confine: whether each run enters Landlock and seccomp.
        launcher: where the host runs; None beside this process.
    """
    settings = HostSettings(
        confine=confine,
        preload=spec.preload_modules,
        folders=module_folders(spec),
        max_executing=spec.max_executing,
        launcher=launcher or LocalLauncher(),
        recycle_after=spec.recycle_after,
        network=spec.network.allow,
    )
    return ForkedSandbox(
        lambda: shared_server(settings),
        spec.limits,
        persist=spec.persist,
        start_timeout_s=spec.start_timeout_s,
    )


def module_folders(spec: SandboxSpec) -> tuple[str, ...]:
    """Folders of modules beyond the standard library that the code may read and import."""
    names = ("purelib", "platlib") if spec.site_packages else ()
    return tuple(dict.fromkeys(map(sysconfig.get_path, names)))


_INFO_S = 30.0
# where the host finds its own modules
_HOST = f"{namespaces.PLACE}/code"
# to be walked through and not listed, also by its owner's uid, which the code may have
_PASSABLE = (
    "--perms",
    "0111",
)
# no zero: a mapping of it is shared memory that no process shows
_DEVICES = (
    "null",
    "full",
    "random",
    "urandom",
)
_ISOLATION = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts",
    "--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session",
)  # fmt: skip
# words of bubblewrap where the kernel refused it
_REFUSAL = (
    "namespace",
    "ermission",
    "not permitted",
)
_SWITCHES = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor allows user namespaces to named programs only (Ubuntu 23.10 and later): "
        "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or give bwrap a profile "
        "that allows userns",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are switched off: `sudo sysctl kernel.unprivileged_userns_clone=1`",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "user namespaces are switched off: `sudo sysctl user.max_user_namespaces=10000`",
    ),
)


def bubblewrap(spec: SandboxSpec) -> ForkedSandbox:
    """Namespaces of its own for each sandbox and each run, Landlock inside where the kernel has it,
    seccomp, rlimits.

    Raises:
        MachineError: not on Linux, or bubblewrap is not installed.
    """
    if sys.platform != "linux":
        raise MachineError(f"it needs Linux, this is {sys.platform}")
    find_bwrap()
    return forked(spec, confine=True, launcher=BubblewrapLauncher(module_folders(spec)))


def find_bwrap() -> str:
    """The path of ``bwrap``.

    Raises:
        MachineError: it is not installed.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise MachineError(
            "bubblewrap is not installed: no bwrap in PATH; install the system's package "
            "bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`)"
        )
    return os.path.realpath(found)


class BubblewrapHost(ProcessHost):
    """A host in bubblewrap; the reserved uids are held as long as it is there."""

    reservation: socket.socket | None = None
    _problem = ""

    def give_up(self, why: str) -> None:
        """End it at once; the message about its end says why."""
        self._problem = f"bwrap: {why}"
        self._process.kill()

    def said(self) -> str:
        said = self._problem or super().said()
        return f"{said}; {_remedy(said)}" if "bwrap: " in said else said

    def clear(self, facts: Mapping[str, Any]) -> None:
        super().clear(facts)
        if self.reservation is not None:
            self.reservation.close()


@dataclass(frozen=True)
class BubblewrapLauncher:
    """Starts the host in bubblewrap.

    Attributes:
        folders: folders of modules beyond the standard library that the code may read and import.
    """

    folders: tuple[str, ...] = ()

    host_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"namespaced": True})

    def start(self, io: LoopThread, on_frame: OnFrame, on_end: OnEnd) -> BubblewrapHost:
        bwrap = find_bwrap()
        folders = _own_folders(self.folders)
        if os.getuid() != 0:
            argv = [bwrap, *_arguments(folders), "--", *_command()]
            return BubblewrapHost(argv, io, on_frame, on_end)
        reserved = uids.reserve()
        if reserved is None:
            raise MachineError(uids.NONE_TO_SPARE)
        first, reservation = reserved
        info, tell = os.pipe()
        blocked, unblock = os.pipe()
        with os.fdopen(info, "rb") as told, os.fdopen(unblock, "wb", buffering=0) as go:
            with owned(tell), owned(blocked):
                argv = _argv_of_root(bwrap, folders, first + uids.BLOCK - 1, tell, blocked)
                try:
                    host = BubblewrapHost(
                        argv, io, on_frame, on_end, pass_fds=(tell, blocked)
                    )
                except SandboxError:
                    reservation.close()
                    raise
            host.reservation = reservation
            try:
                if _map_uids(told, first):
                    go.write(b"1")
            except OSError as error:
                host.give_up(f"its user namespace could not be given uids: {error}")
        return host


def _own_folders(modules: Sequence[str]) -> dict[str, str]:
    """Folders that only this installation has, each by where it is seen inside."""
    wanted = [os.path.realpath(sys.base_prefix), *modules]
    folders = {
        path: path
        for path in wanted
        if os.path.isdir(path) and not _is_below(path, PROGRAMS)
    }
    for path in folders:
        if _is_below(path, (namespaces.TEMP, namespaces.PLACE)):
            raise MachineError(
                f"{path} is needed, and each run has a {namespaces.TEMP} of its own; install "
                "it elsewhere"
            )
    return {f"{_HOST}/host": str(HOST_FOLDER), **folders}


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _arguments(folders: Mapping[str, str]) -> list[str]:
    """What the host sees of this machine, as bubblewrap's options.

    Args:
        folders: by where they are seen inside, where they are found outside.
    """
    args = [*_ISOLATION]
    for path in PROGRAMS:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    seen = (*folders, *SYSTEM_FILES)
    parents = {str(parent) for inside in seen for parent in PurePath(inside).parents} - {
        "/",
        _HOST,
    }
    # as bubblewrap makes them, they may be closed to the uids of slots
    for path in sorted(parents):
        args += [*_PASSABLE, "--dir", path]
    for path in SYSTEM_FILES:
        args += ["--ro-bind-try", path, path]
    args += ["--perms", "0755", "--dir", _HOST]
    for inside, outside in folders.items():
        args += ["--ro-bind", outside, inside]
    args += ["--proc", "/proc", *_PASSABLE, "--size", "65536", "--tmpfs", "/dev"]
    for device in _DEVICES:
        args += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    args += ["--symlink", namespaces.TEMP, "/dev/shm", "--remount-ro", "/dev"]
    for path in (
        namespaces.TEMP,
        namespaces.WORK,
        namespaces.EMPTY,
        namespaces.STORE,
    ):
        args += [*_PASSABLE, "--dir", path]
    return [*args, "--chmod", "0111", "/", "--remount-ro", "/", "--chdir", "/"]


def _argv_of_root(
    bwrap: str, folders: Mapping[str, str], uid: int, tell: int, blocked: int
) -> list[str]:
    """The command line that gives up root first, and lets this process give bubblewrap a block of
    uids.
    """
    staged = {
        inside: drop_privileges.staged(number) for number, inside in enumerate(folders)
    }
    argv = [
        bwrap,
        *_arguments(staged),
        "--info-fd",
        str(tell),
        "--userns-block-fd",
        str(blocked),
    ]
    # over the block alone: a uid for each slot
    for capability in (
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_KILL",
    ):
        argv += ["--cap-add", capability]
    order = {
        "uid": uid,
        "folders": list(folders.values()),
        "argv": [*argv, "--", *_command()],
    }
    return [*host_argv("confine.drop_privileges"), json.dumps(order)]


def _command() -> list[str]:
    """The host's own command line, as it runs inside."""
    python, *rest = host_argv(folder=_HOST)
    return [os.path.realpath(python), *rest]


def _map_uids(told: IO[bytes], first: int) -> bool:
    """Give bubblewrap's user namespace a block of uids that are the same inside and outside.

    Returns:
        Whether bubblewrap said which namespace; where it did not, the end of the host says why.

    Raises:
        OSError: it did not start in time, or the kernel refused.
    """
    if not select.select([told], [], [], _INFO_S)[0]:
        raise TimeoutError(f"bubblewrap did not start within {_INFO_S:g} s")
    answer = told.read()
    if not answer:
        return False
    pid = json.loads(answer)["child-pid"]
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"{first} {first} {uids.BLOCK}")
    return True


def _remedy(said: str) -> str:
    """What to do where bubblewrap is installed and refused, by what the machine's settings say."""
    if "Unknown option" in said:
        return "it is too old: version 0.6 or later is needed"
    for path, refusing, remedy in _SWITCHES:
        is_set = os.path.exists(path) and Path(path).read_text().strip() == refusing
        if is_set and any(word in said for word in _REFUSAL):
            return remedy
    if "setuid" in said:
        remedy = "`chmod u-s` it where user namespaces are allowed"
        return f"a setuid bwrap cannot be used here: {remedy}"
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return (
            "this container refuses namespaces: start it with --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined (and "
            "--cap-add SYS_ADMIN where it runs as root)"
        )
    return (
        "this machine refuses what bubblewrap needs; bwrap --unshare-all --ro-bind / / true shows "
        "it as well"
    )
