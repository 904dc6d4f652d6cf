"""Index database: the SQLite file of an index, which is disposable, and where it can lie.

- One process writes at a time: it holds ``flock`` on the file ``.lock`` beside. Any number reads.
- A file that is damaged, of another version or of another run is removed and rebuilt.
- A folder that takes nothing more is left for the next one, at last for memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.viewer.index.fields import FIELDS, Field

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
            mounts = Path("/proc/self/mountinfo").read_text(
                encoding="utf-8", errors="replace"
            )
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


logger = logging.getLogger(__name__)

VERSION = 4
"""Of the tables below; an index of another one is rebuilt."""

_TYPES = {"integer": "INTEGER", "real": "REAL", "text": "TEXT", "list": "TEXT"}
_GENERATED = {"seconds": "nullif(max(ended_at - started_at, 0), 0)"}
"""Fields that follow from others."""
_POLL_S = 0.02
_BUSY_S = 10.0


def _column(field: Field) -> str:
    told = f"{field.column} {_TYPES[field.kind]}"
    if field.name in _GENERATED:
        return f"{told} AS ({_GENERATED[field.name]}) VIRTUAL"
    empty = "0" if field.is_number else "''"
    return told if field.nullable else f"{told} NOT NULL DEFAULT {empty}"


_TABLES = f"""
CREATE TABLE trajectories (
    key INTEGER PRIMARY KEY,
    {", ".join(map(_column, FIELDS.values()))},
    file INTEGER NOT NULL,
    change INTEGER NOT NULL,
    annotated REAL
);
CREATE UNIQUE INDEX by_id ON trajectories (id);
CREATE INDEX by_group ON trajectories ("group", rollout);
CREATE INDEX by_file ON trajectories (file);
CREATE INDEX by_change ON trajectories (change);
CREATE TABLE files (
    key INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    damage TEXT NOT NULL DEFAULT ''
);
CREATE TABLE ledger (
    group_index INTEGER NOT NULL,
    rollout_index INTEGER NOT NULL,
    trained_step INTEGER,
    drop_reason TEXT NOT NULL,
    PRIMARY KEY (group_index, rollout_index)
) WITHOUT ROWID;
CREATE TABLE owner (run TEXT NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('change', 0), ('removals', 0);
PRAGMA user_version = {VERSION};
"""
_INDEXED = {field.name: field.column for field in FIELDS.values() if field.indexed}
SORT_INDICES = {
    f"by_{name}": f"CREATE INDEX IF NOT EXISTS by_{name} ON trajectories ({columns})"
    for name, columns in {**_INDEXED, "default": "label, step DESC"}.items()
}
"""By name. They are made once rows are there: to keep them while a large run is first taken costs
more than all else of it.
"""
_MATCHES = (
    "CREATE TEMP TABLE text_match (needle TEXT, trajectory INTEGER, "
    "PRIMARY KEY (needle, trajectory)) WITHOUT ROWID"
)


class IndexDatabase:
    """An index's file, open for reading and for writing.

    Args:
        run: the run's folder.
        cache: the folder for indices; by default in the user's cache.

    Attributes:
        reader: its user serialises its use.
        writer: used while ``locked`` alone.
        opened: grows whenever the file is another one, so that what was read of it is void.
    """

    def __init__(self, run: Path, cache: Path | None = None) -> None:
        self._places = index_places(run, cache)
        self.opened = 0
        self.place = next(self._places)
        self._open_somewhere()

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[bool]:
        """Holds the writer's lock; False, after ``timeout_s`` at most, where another process does.

        Raises:
            OSError: the lock file cannot be opened.
        """
        if self.place == MEMORY:
            yield True
            return
        # The kernel releases flock when its process dies, whatever ended that.
        file = os.open(self.place + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + timeout_s
        try:
            while not (held := _try_lock(file)) and time.monotonic() < end:
                time.sleep(_POLL_S)
            yield held
        finally:
            # which releases the lock
            os.close(file)

    def follow(self) -> None:
        """Opens the file again where another process has rebuilt it."""
        if self.place != MEMORY and self._identity != _identity(self.place):
            self.close()
            self._open_somewhere()

    def belong_to(self, run: str) -> None:
        """Makes the index that of a run; one of another run, which was deleted from the same
        folder, is made anew.

        Args:
            run: which (``run_identity``).
        """
        known = self.writer.execute("SELECT run FROM owner").fetchone()
        if known is not None and known != (run,):
            self.close()
            self._remove()
            self._open_somewhere()
        if known != (run,):
            self.writer.execute("INSERT INTO owner VALUES (?)", (run,))

    def recover(self, error: sqlite3.Error) -> None:
        """Rebuilds the index after an error, here or in the next place; it is empty then.

        Raises:
            StoreError: another index would help nothing.
        """
        self.close()
        if _is_damage(error) or "no such" in str(error):
            self._rebuild(error)
        elif _named(
            error,
            "SQLITE_FULL",
            "SQLITE_IOERR",
            "SQLITE_CANTOPEN",
            "SQLITE_READONLY",
            "SQLITE_PERM",
        ):
            self._move(error)
        else:
            raise StoreError(
                f"the index {self.place} failed: {error}; remove it"
            ) from error
        self._open_somewhere()

    def close(self) -> None:
        """Closes both connections; a second call does nothing."""
        self.reader.close()
        self.writer.close()

    def _rebuild(self, error: sqlite3.Error) -> None:
        told = {"event": "index_rebuilt", "path": self.place, "why": str(error)}
        logger.warning("the index %s is rebuilt: %s", self.place, error, extra=told)
        self._remove()

    def _move(self, error: sqlite3.Error) -> None:
        if self.place == MEMORY:
            raise StoreError(f"the index in memory failed: {error}") from error
        told = {
            "event": "index_moved",
            "folder": str(Path(self.place).parent),
            "why": str(error),
        }
        logger.warning(
            "no index in %s: %s; it lies elsewhere", self.place, error, extra=told
        )
        self._remove()
        self.place = next(self._places)

    def _open_somewhere(self) -> None:
        while True:
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                (self._rebuild if _is_damage(error) else self._move)(error)
            else:
                return

    def _open(self) -> None:
        uri = f"file:agentrl-{uuid.uuid4().hex}?mode=memory&cache=shared"
        if self.place != MEMORY:
            uri = Path(self.place).as_uri()
        self.writer = _connect(uri)
        try:
            self._prepare()
            self.reader = _connect(uri)
            self.reader.execute(_MATCHES)
        except BaseException:
            self.writer.close()
            raise
        # By this a process knows that another one has put a new file in its place.
        self._identity = _identity(self.place)
        self.opened += 1

    def _prepare(self) -> None:
        found = self.writer.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, VERSION):
            why = f"it has version {found}, this agentrl makes {VERSION}"
            told = {"event": "index_rebuilt", "path": self.place, "why": why}
            logger.warning("the index %s is rebuilt: %s", self.place, why, extra=told)
            self.writer.close()
            self._remove()
            self.writer = _connect(Path(self.place).as_uri())
        if self.place != MEMORY:
            self.writer.execute("PRAGMA journal_mode = WAL")
        # two that open a new index at one time: the second waits, and finds the tables
        self.writer.execute("BEGIN IMMEDIATE")
        if self.writer.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            self.writer.execute("ROLLBACK")
            return
        for statement in _TABLES.split(";"):
            if statement.strip():
                self.writer.execute(statement)
        self.writer.execute("COMMIT")

    def _remove(self) -> None:
        if self.place == MEMORY:
            return
        for suffix in ("", "-wal", "-shm"):
            try:
                Path(self.place + suffix).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(
                    f"the index {self.place}{suffix} cannot be removed: {error.strerror or error}; "
                    "remove it"
                ) from error


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    # what a crash of the machine leaves is rebuilt
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("PRAGMA mmap_size = 268435456")
    # in memory both connections share their pages, whose locks would refuse a reader
    connection.execute("PRAGMA read_uncommitted = ON")
    return connection


def _named(error: sqlite3.Error, *names: str) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith(names)


def _is_damage(error: sqlite3.Error) -> bool:
    return _named(error, "SQLITE_CORRUPT", "SQLITE_NOTADB")


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(place: str) -> tuple[int, int] | None:
    try:
        state = os.stat(place)
    except OSError:
        return None
    return state.st_dev, state.st_ino
