"""Notes: what people wrote on a run, a trajectory, a turn or a range of tokens.

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
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from agentrl.errors import StoreError
from agentrl.guards.regular_file import descriptor
from agentrl.guards.secret_mask import SecretMask
from agentrl.store.disk import Stamp, os_refusals, stamps_of
from agentrl.store.json_text import to_json
from agentrl.store.jsonl import Damage, DamageList, cut_torn_line, read_jsonl, write_all
from agentrl.viewer.viewer_error import ViewerError, bad_request, fault_of, not_found

Index: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Time: TypeAlias = Annotated[float, Field(strict=True)]


def _word(given: str) -> str:
    if not re.fullmatch(r"[\w./:+-]{1,64}", given):
        raise ValueError("must have 1 to 64 letters, digits and . / : + - _ without blanks")
    return given


def _rising(given: tuple[int, int]) -> tuple[int, int]:
    if not given[0] < given[1]:
        raise ValueError("must be [first, end] with first < end")
    return given


Label: TypeAlias = Annotated[str, AfterValidator(_word)]


class Note(BaseModel):
    """One note.

    Args:
        id: names it within the run.
        trajectory: the id of the trajectory; empty where its labels are tags of the run.
        turn: the turn, or None for the whole trajectory.
        tokens: ``(first, end)`` on the trajectory's token axis, or None.
        labels: words without blanks, to filter by.
        text: what was written.
        user: who wrote it.
        time: seconds since the epoch.
        recorded_at: of the trajectory's record that it is about, since a resumed run may play an
            episode again; None where it is not known.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    trajectory: Annotated[str, Field(max_length=1000)]
    turn: Index | None = None
    tokens: Annotated[tuple[Index, Index], AfterValidator(_rising)] | None = None
    labels: Annotated[
        tuple[Label, ...],
        Field(max_length=20),
        AfterValidator(lambda given: tuple(dict.fromkeys(given))),
    ] = ()
    text: Annotated[str, Field(max_length=20_000)] = ""
    user: str
    time: Time
    recorded_at: Time | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.text.strip() or self.labels):
            raise ValueError("it must have a text or a label, got neither")
        if not self.trajectory and (self.turn is not None or self.tokens is not None):
            raise ValueError("a turn or tokens must be of a trajectory, got none")
        return self

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
        # guards _read and _stamps
        self._lock = threading.Lock()
        self._read: dict[str, Note] = {}
        self._stamps: dict[Path, Stamp | None] = {}
        self.damage = DamageList()
        """What could not be read of the notes when they were read last."""

    def all(self) -> list[Note]:
        """Every note, the oldest first."""
        stamps = stamps_of(self.folder.glob("*.jsonl"))
        with self._lock:
            # Every page asks for notes: their files are read again only where one changed.
            if stamps != self._stamps:
                self.damage = DamageList()
                self._read = _read(self.folder, self.damage.add)
                self._stamps = stamps
            return sorted(self._read.values(), key=lambda note: note.time)

    def records(self, trajectories: Container[str] | None = None) -> list[dict[str, Any]]:
        """The notes of some trajectories, or of all, as JSON, the oldest first."""
        return [
            note.model_dump()
            for note in self.all()
            if trajectories is None or note.trajectory in trajectories
        ]

    def add(self, fields: Mapping[str, Any]) -> Note:
        """Writes a note of this user.

        Args:
            fields: ``trajectory``, and any of ``turn``, ``tokens``, ``labels``, ``text``,
                ``recorded_at``.

        Raises:
            ViewerError: a field is not what it must be, or the run cannot be written.
        """
        own = {"id": uuid.uuid4().hex[:16], "user": self.user, "time": time.time()}
        try:
            note = Note.model_validate({**fields, **own})
        except ValidationError as error:
            raise bad_request(f"the note: {fault_of(error.errors())}") from error
        self._append(note.model_dump())
        return note

    def delete(self, note_id: str) -> None:
        """Takes back a note of this user.

        Raises:
            ViewerError: there is none, it is another's, or the run cannot be written.
        """
        note = next((note for note in self.all() if note.id == note_id), None)
        if note is None:
            raise not_found(
                f"the run has no note {note_id[:40]!r}; it may be deleted already"
            )
        if note.user != self.user:
            raise ViewerError(
                403, f"the note is {note.user}'s: a user deletes their own notes alone"
            )
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
                    # and with it the lock
                    os.close(file)
        except StoreError as error:
            raise ViewerError(
                403,
                f"the note was not kept: {error}; notes lie in the run, so make it writable",
            ) from error


def _read(folder: Path, on_damage: Damage) -> dict[str, Note]:
    notes: dict[str, Note] = {}
    # A deletion counts in its own file alone: nobody takes back another's note.
    gone: set[tuple[str, str]] = set()
    for path in sorted(folder.glob("*.jsonl")):
        for record in read_jsonl(path, on_damage):
            if record.get("deleted"):
                gone.add((path.stem, str(record.get("id"))))
                continue
            try:
                # the file says whose it is: a line cannot speak for another user
                note = Note.model_validate({**record, "user": path.stem})
            except ValidationError:
                # not written by a viewer: nothing can be shown of it
                continue
            notes[note.id] = note
    return {key: note for key, note in notes.items() if (note.user, key) not in gone}


def _system_user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # a container whose user has no name
        name = f"uid-{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "user"
