"""Bundle: this interpreter with all that it needs as a tar, for an image or beside others.

Neither needs a registry. Only what runs in a container of this machine's architecture can be made
so: Linux.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping

from agentrl.errors import MachineError

GRAFT_FOLDER = "/.agentrl"
_PROGRAMS = (
    "sh",
    "cat",
    "cp",
    "echo",
    "env",
    "false",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sleep",
    "true",
)
_LEFT_OUT = frozenset(
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "ensurepip",
    }
)
_ACCOUNTS = {
    "etc/passwd": (b"root:x:0:0::/root:/bin/sh\n", 0o644),
    "etc/group": (b"root:x:0:\n", 0o644),
    "etc/shadow": (b"root:*:1::::::\n", 0o600),
}
_FOLDERS = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var")
_TOP_LINKS = ("bin", "lib", "lib32", "lib64", "sbin")


def image_tar() -> bytes:
    """A root file system with this Python, ``sh`` and a few programs, for ``docker import``.

    Raises:
        MachineError: this is not Linux.
    """
    python, stdlib = _interpreter()
    programs = [
        path for name in _PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))
    ]
    modules = _modules(stdlib)
    names = {path: path for path in (python, *programs, *modules)}
    names |= {path: path for path in _libraries([python, *programs, *modules])}
    links = {
        f"{top}": os.readlink(f"/{top}") for top in _TOP_LINKS if os.path.islink(f"/{top}")
    }
    if python != "/usr/bin/python3":
        links["usr/bin/python3"] = python
    return _tar(
        {_canonical(name): path for path, name in names.items()}, links, _ACCOUNTS, _FOLDERS
    )


def graft_tar(dockerfile: str) -> tuple[bytes, list[str]]:
    """A build's context with this Python as ``GRAFT_FOLDER``, and the command that starts it
    whatever libc is there.

    Args:
        dockerfile: how to build.

    Raises:
        MachineError: this is not Linux.
    """
    python, stdlib = _interpreter()
    modules = _modules(stdlib)
    libraries = _libraries([python, *modules])
    loader = next(path for path in libraries if os.path.basename(path).startswith("ld-"))
    inside = GRAFT_FOLDER.lstrip("/")
    names = {f"{inside}/lib/{os.path.basename(path)}": path for path in libraries}
    names |= {
        f"{inside}/lib/{os.path.basename(stdlib)}/{os.path.relpath(path, stdlib)}": path
        for path in modules
    }
    names[f"{inside}/bin/python3"] = python
    lib = f"{GRAFT_FOLDER}/lib"
    command = [
        f"{lib}/{os.path.basename(loader)}",
        "--library-path",
        lib,
        f"{GRAFT_FOLDER}/bin/python3",
    ]
    return _tar(names, {}, {"Dockerfile": (dockerfile.encode(), 0o644)}, ()), command


def _interpreter() -> tuple[str, str]:
    if sys.platform != "linux":
        raise MachineError(
            "this machine's Python can be put into an image on Linux alone, this is "
            f"{sys.platform}; set SandboxSpec.image to an image that has Python 3.10 or later"
        )
    return os.path.realpath(sys.executable), os.path.dirname(os.path.realpath(os.__file__))


def _modules(stdlib: str) -> list[str]:
    """Every file of the standard library but its tests and caches."""
    found = []
    for folder, folders, names in os.walk(stdlib):
        folders[:] = [
            name
            for name in folders
            if name not in _LEFT_OUT and not name.startswith("config-")
        ]
        found += [os.path.join(folder, name) for name in names]
    return found


def _libraries(files: Iterable[str]) -> list[str]:
    """What the loader finds for these programs and extension modules, itself included."""
    binaries = [path for path in files if _is_elf(path)]
    said = subprocess.run(
        ["ldd", *binaries], capture_output=True, text=True, check=False
    ).stdout
    return list(dict.fromkeys(re.findall(r"(/\S+) \(0x", said)))


def _is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _canonical(path: str) -> str:
    """The path without links among its folders, so that it does not lie below a link in the image
    either.
    """
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name).lstrip("/")


def _tar(
    paths: Mapping[str, str],
    links: Mapping[str, str],
    files: Mapping[str, tuple[bytes, int]],
    folders: Iterable[str],
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in folders:
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
        for name, target in links.items():
            entry = _entry(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = target
            tar.addfile(entry)
        for name, (data, mode) in files.items():
            entry = _entry(name, tarfile.REGTYPE, mode)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, path in paths.items():
            with open(path, "rb") as file:
                entry = _entry(
                    name, tarfile.REGTYPE, 0o755 if os.access(path, os.X_OK) else 0o644
                )
                entry.size = os.fstat(file.fileno()).st_size
                tar.addfile(entry, file)
    return out.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    return entry
