"""Notes: what people wrote on a trajectory, a turn or a range of tokens.

Each user appends to a file of their own, ``notes/<user>.jsonl`` of the run; a deletion is a line
too. Several viewers may write at one time: a lock on the file keeps lines whole.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.regular_file import descriptor
from agentrl.store import SecretMask
from agentrl.store.json_text import to_json
from agentrl.store.jsonl import cut_torn_line, read_jsonl, write_all
from agentrl.store.write_error import os_refusals
from agentrl.viewer.api_error import ApiError, bad_request, not_found

_MOST_TEXT = 20_000
_MOST_LABELS = 20
_LABEL = re.compile(r"[\w./:+-]{1,64}")


@dataclass(frozen=True, slots=True)
class Note:
    """One note.

    Args:
        id: names it within the run.
        trajectory: the id of the trajectory.
        turn: the turn, or None for the whole trajectory.
        tokens: ``(first, end)`` on the trajectory's token axis, or None.
        labels: words without blanks, to filter by.
        text: what was written.
        user: who wrote it.
        time: seconds since the epoch.
        recorded_at: of the trajectory's record that it is about, since a resumed run may play an
            episode again; None where it is not known.
    """

    id: str
    trajectory: str
    turn: int | None
    tokens: tuple[int, int] | None
    labels: tuple[str, ...]
    text: str
    user: str
    time: float
    recorded_at: float | None = None

    def is_about(self, recorded_at: float) -> bool:
        """Whether it is about the record of this time, not one that was played before."""
        return self.recorded_at in (None, recorded_at)


class NoteBook:
    """The notes of a run; safe to use from several threads.

    Args:
        folder: ``notes`` of the run.
        user: who writes here; the system's user by default.
    """

    def __init__(self, folder: Path, user: str | None = None) -> None:
        self.folder = folder
        self.user = user or _system_user()
        # guards _read and _signature
        self._lock = threading.Lock()
        self._read: dict[str, Note] = {}
        self._signature: tuple[tuple[str, int, int], ...] = ()
        self.damage: list[str] = []
        """What could not be read of the notes when they were read last."""

    def all(self) -> list[Note]:
        """Every note, the oldest first."""
        signature = self._look()
        with self._lock:
            if signature != self._signature:
                damage: list[str] = []
                self._read = _read(self.folder, lambda error: damage.append(str(error)))
                self.damage = damage
                self._signature = signature
            return sorted(self._read.values(), key=lambda note: note.time)

    def of(self, trajectory: str) -> list[Note]:
        """The notes of one trajectory, the oldest first."""
        return [note for note in self.all() if note.trajectory == trajectory]

    def add(self, fields: Mapping[str, Any]) -> Note:
        """Writes a note of this user.

        Args:
            fields: ``trajectory``, and any of ``turn``, ``tokens``, ``labels``, ``text``,
                ``recorded_at``.

        Raises:
            ApiError: a field is not what it must be, or the run cannot be written.
        """
        note = Note(uuid.uuid4().hex[:16], **_checked(fields), user=self.user, time=time.time())
        self._append(asdict(note))
        return note

    def delete(self, note_id: str) -> None:
        """Takes back a note of this user.

        Raises:
            ApiError: there is none, it is another's, or the run cannot be written.
        """
        note = next((note for note in self.all() if note.id == note_id), None)
        if note is None:
            raise not_found(f"the run has no note {note_id[:40]!r}; it may be deleted already")
        if note.user != self.user:
            raise ApiError(403, f"the note is {note.user}'s: a user deletes their own notes alone")
        self._append({"id": note.id, "deleted": True, "time": time.time()})

    def _append(self, record: Mapping[str, Any]) -> None:
        path = self.folder / f"{self.user}.jsonl"
        line = (SecretMask()(to_json(record)) + "\n").encode()
        try:
            with os_refusals(f"{path} cannot be written"):
                path.parent.mkdir(parents=True, exist_ok=True)
                # no link leads a note out of the run: neither the folder nor the file may be one
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
                    file = descriptor(path.name, flags, folder=folder)
                finally:
                    os.close(folder)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    cut_torn_line(file)
                    write_all(file, line)
                    os.fsync(file)
                finally:
                    os.close(file)  # and with it the lock
        except StoreError as error:
            raise ApiError(
                403, f"the note was not kept: {error}; notes lie in the run, so make it writable"
            ) from error

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        if not self.folder.is_dir():
            return ()
        states = [(path.name, path.lstat()) for path in sorted(self.folder.glob("*.jsonl"))]
        return tuple((name, state.st_size, state.st_mtime_ns) for name, state in states)


def _read(folder: Path, on_damage: Callable[[StoreError], None]) -> dict[str, Note]:
    notes: dict[str, Note] = {}
    gone: set[tuple[str, str]] = set()
    for path in sorted(folder.glob("*.jsonl")):
        for record in read_jsonl(path, on_damage):
            if record.get("deleted"):
                gone.add((path.stem, str(record.get("id"))))
                continue
            try:
                # the file says whose it is: a line cannot speak for another user
                note = Note(
                    str(record["id"]),
                    **_checked(record),
                    user=path.stem,
                    time=float(record["time"]),
                )
            except (ApiError, KeyError, TypeError, ValueError):
                continue  # not written by a viewer: nothing can be shown of it
            notes[note.id] = note
    return {key: note for key, note in notes.items() if (note.user, key) not in gone}


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    trajectory = fields.get("trajectory")
    if not isinstance(trajectory, str) or not 0 < len(trajectory) <= 1000:
        raise bad_request(f"a note's trajectory must be its id, got {str(trajectory)[:100]!r}")
    turn = fields.get("turn")
    if not (turn is None or (_is_count(turn))):
        raise bad_request(f"a note's turn must be an index or null, got {str(turn)[:100]!r}")
    text = fields.get("text") or ""
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise bad_request(f"a note's text must have at most {_MOST_TEXT:,} characters")
    labels = _labels(fields.get("labels") or ())
    if not (text.strip() or labels):
        raise bad_request("a note must have a text or a label, got neither")
    return {
        "trajectory": trajectory,
        "turn": turn,
        "tokens": _range(fields.get("tokens")),
        "labels": labels,
        "text": text,
        "recorded_at": _time(fields.get("recorded_at")),
    }


def _labels(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > _MOST_LABELS:
        raise bad_request(f"a note's labels must be a list of at most {_MOST_LABELS}")
    for label in given:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise bad_request(
                "a label must have 1 to 64 letters, digits and . / : + - _ without blanks, got "
                f"{str(label)[:100]!r}"
            )
    return tuple(dict.fromkeys(given))


def _range(given: object) -> tuple[int, int] | None:
    if given is None:
        return None
    pair: Sequence[Any] = given if isinstance(given, list | tuple) else ()
    if len(pair) != 2 or not all(map(_is_count, pair)) or not pair[0] < pair[1]:
        raise bad_request(
            f"a note's tokens must be [first, end] with first < end, got {str(given)[:100]!r}"
        )
    return int(pair[0]), int(pair[1])


def _time(given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise bad_request(f"a note's recorded_at must be a number, got {str(given)[:100]!r}")
    return float(given)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _system_user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        name = f"uid-{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "user"
