"""Packages: Debian's packages of English text, fetched and unpacked by its own tools."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PACKAGES", "NoPackagesError", "unpack"]

PACKAGES = (
    *("dict-gcide", "dict-wn", "dict-foldoc", "dict-jargon", "dict-devil", "anarchism"),
    *("manpages", "manpages-dev", "freebsd-manpages", "perl-doc", "git-doc", "vim-doc"),
    *("postgresql-doc-15", "sqlite3-doc", "python3.11-doc", "cmake-doc", "r-doc-html"),
    *(
        "debian-reference-en",
        "debian-policy",
        "developers-reference",
        "libreoffice-help-en-us",
    ),
    *(
        "erlang-doc",
        "linux-doc-6.1",
        "libgtk-3-doc",
        "libboost1.81-doc",
        "qtbase5-doc-html",
    ),
    *("libstdc++-12-doc", "openjdk-17-doc"),
)
"""In the order in which they are read: those with the most prose first."""
LIMIT_S = 600.0


class NoPackagesError(Exception):
    """Debian's tools or its mirror are not within reach."""


def unpack(package: str, folder: Path) -> Path:
    """Fetches a package and unpacks it into a folder of its name; one that is there is kept.

    Raises:
        NoPackagesError: this machine lacks Debian's tools, or they failed; their last words.
    """
    unpacked = folder / package
    if not unpacked.is_dir():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise NoPackagesError("apt-get and dpkg-deb of Debian's family are missing")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fetched:
            _run(["apt-get", "download", package], Path(fetched))
            (archive,) = Path(fetched).glob("*.deb")
            _run(["dpkg-deb", "-x", str(archive), "unpacked"], Path(fetched))
            Path(fetched, "unpacked").rename(unpacked)
    return unpacked


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise NoPackagesError(
            f"{' '.join(command[:2])} failed: {done.stderr.strip()[-500:]}"
        )
