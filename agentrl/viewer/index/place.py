"""Index place: the folder in which a run's index lies, on a file system that can hold it."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|ceph|gpfs|beegfs|afs|9p|virtiofs|pvfs2|orangefs|panfs|"
    r"glusterfs|wekafs|fuse(\..+)?|fuseblk"
)
"""File systems that may be shared by machines, or that only a daemon knows: SQLite's shared memory
does not work there.
"""

MEMORY = ":memory:"
"""The place of an index that no folder takes."""


def index_places(run: Path, cache: Path | None = None) -> Iterator[str]:
    """Where the index of a run may lie, the best first; what is passed over is told in the log.

    Args:
        run: the run's folder.
        cache: the folder for indices; by default ``agentrl/index`` in the user's cache.

    Yields:
        A path of a file in a folder that exists and can be written, at last ``MEMORY``.
    """
    name = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:32] + ".sqlite"
    for folder in (cache or user_cache() / "index", _temporary()):
        why = _unfit(folder)
        if not why:
            yield str(folder / name)
        else:
            told = {"event": "index_moved", "folder": str(folder), "why": why}
            logger.warning("no index in %s: %s; it lies elsewhere", folder, why, extra=told)
    yield MEMORY


def user_cache() -> Path:
    """``agentrl`` in the cache of the user."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "agentrl"


def file_system_type(path: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds ``path``, as in ``ext4``; empty where the system does
    not say.

    Args:
        path: it need not exist.
        mounts: the text of ``/proc/self/mountinfo``.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    whole = Path(os.path.realpath(path))
    found = (Path("/"), "")
    for line in mounts.splitlines():
        own, _, own_type = line.partition(" - ")
        fields = own.split()
        if len(fields) < 5 or not own_type:
            continue
        # spaces and the like are written in octal
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        # of two on one point the later one is on top
        if whole.is_relative_to(point) and len(point.parts) >= len(found[0].parts):
            found = (point, own_type.split()[0])
    return found[1]


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"agentrl-index-{os.getuid()}"


def _unfit(folder: Path) -> str:
    """Why an index cannot lie in a folder; empty where it can."""
    kind = file_system_type(folder)
    if _NETWORK.fullmatch(kind):
        return f"its file system, {kind}, may be shared by machines"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
        if state.st_uid != os.getuid() and folder == _temporary():
            return "it belongs to another user"
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return error.strerror or str(error)
    return ""
