"""Step files: a step's live files with their frames, and their sealing into shards.

The frame is written before its line, so a whole line has a whole frame; what a death tore is at the
end of both files.

A row goes to both: to the live file, from which a death takes nothing, and to a shard that grows
beside its place, which it takes when the step is sealed. So sealing reads nothing back.

A live file bears the number of the shard it becomes: a live file beside a shard of its name was
sealed just before a death, and is only to be removed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

import zstandard

from agentrl.errors import StoreError
from agentrl.guards.regular_file import check_regular, open_regular
from agentrl.store.disk import os_refusals
from agentrl.store.jsonl import Damage, JsonFollower, JsonlWriter, Record, write_all
from agentrl.store.run_directory import step_name
from agentrl.store.shard import Row, ShardWriter

_MOST_BYTES = 2**30
"""Of a frame, unpacked."""


class FramedWriter:
    """Appends records to a pair of files; what a death tore is cut off first.

    Raises:
        StoreError: a file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # the files last until the step is sealed: quick before small
        self._compressor = zstandard.ZstdCompressor(level=-50)
        self._lines = JsonlWriter(path)
        with os_refusals(f"{path} cannot be opened"):
            self._frames = os.open(
                frames_path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
            )
            # a frame whose line was partial stays as a gap that no line names
            self._end = os.fstat(self._frames).st_size

    def append(self, record: Mapping[str, Any], data: bytes) -> None:
        """Write one record and its bytes; they survive the death of the process as soon as this
        returns.

        Args:
            record: a JSON object without the key ``frame``.
            data: what the record describes.

        Raises:
            OSError, StoreError: it cannot be written; the files may then end in a partial record.
        """
        frame = self._compressor.compress(data)
        write_all(self._frames, frame)
        place = [self._end, len(frame)]
        self._end += len(frame)
        self._lines.append({**record, "frame": place})

    def sync(self) -> None:
        """Make every record so far durable.

        Raises:
            OSError, StoreError: the disk refuses.
        """
        # Frames first: a durable line never lacks its frame.
        os.fsync(self._frames)
        self._lines.sync()

    def close(self) -> None:
        """Close both files; called once."""
        os.close(self._frames)
        self._lines.close()


def frames_path(path: Path) -> Path:
    """The frames' file beside the lines' file."""
    return path.with_suffix(".zst")


def remove_framed(path: Path) -> None:
    """Remove a pair of files: the lines first, so that no line is ever without its frame.

    Raises:
        OSError: the disk refuses.
    """
    path.unlink(missing_ok=True)
    frames_path(path).unlink(missing_ok=True)


def read_framed(path: Path) -> Iterator[Record]:
    """The records that are there with their frames, in order, ``frame`` included; nothing where
    there is no file.

    Args:
        path: the lines' file.

    Raises:
        StoreError: a whole line is no JSON object, or names no frame.
    """
    _, records = JsonFollower(path).look()
    for _, record in with_frames(path, records):
        yield record


def with_frames(
    path: Path, records: Iterable[tuple[int, Record]], on_damage: Damage | None = None
) -> Iterator[tuple[int, Record]]:
    """Records of a live file up to the first whose frame the disk did not keep, as the death of the
    machine leaves it.

    Args:
        path: the lines' file.
        records: as a ``JsonFollower`` gives them.
        on_damage: is told of a record that names no frame; without it that is raised.
    """
    size = 0
    for start, record in records:
        try:
            end = sum(frame_of(f"the line at {start} of {path}", record))
        except StoreError as error:
            if on_damage is None:
                raise
            on_damage(error)
            continue
        if end > size:
            size = frames_size(path)
        if end > size:
            return
        yield start, record


def frame_of(place: str, record: Mapping[str, Any]) -> Sequence[int]:
    """Where a record's frame lies: its offset and its bytes.

    Args:
        place: where the record is, for the message.
        record: of a lines' file.

    Raises:
        StoreError: the record does not say.
    """
    frame = record.get("frame")
    if not (isinstance(frame, list) and [type(one) for one in frame] == [int, int]):
        raise StoreError(f"{place} must name its frame as [offset, bytes], got {frame!r}")
    return frame


def frames_size(path: Path) -> int:
    """The bytes of frames beside the lines' file ``path``; 0 where there are none."""
    try:
        return check_regular(frames_path(path)).st_size
    except FileNotFoundError:
        return 0


def read_frame(path: Path, frame: Sequence[int]) -> bytes:
    """The bytes of a record in the lines' file ``path``.

    Raises:
        StoreError: the frame is not there or is damaged.
    """
    return read_frames(path, [frame])[0]


def read_frames(path: Path, places: Sequence[Sequence[int]]) -> list[bytes]:
    """The arrays' bytes of several records.

    Raises:
        StoreError: a frame is not there or is damaged.
    """
    frames = frames_path(path)
    decompress = zstandard.ZstdDecompressor().decompress
    found = []
    offset = 0
    try:
        with open_regular(frames) as file:
            end = os.fstat(file.fileno()).st_size
            for offset, size in places:
                file.seek(offset)
                frame = file.read(min(size, end))
                if zstandard.frame_content_size(frame) > _MOST_BYTES:
                    raise ValueError(f"it says that it has more than {_MOST_BYTES:,} bytes")
                found.append(decompress(frame))
    except (OSError, ValueError, TypeError, zstandard.ZstdError) as error:
        raise StoreError(
            f"the frame at {offset} of {frames} cannot be read: {error}; move it and {path.name} "
            "away"
        ) from error
    return found


class StepFiles(ABC, Generic[Row]):
    """What one writer stores, by step, in one pair of folders. Used by one thread.

    Args:
        live: folder of the live files.
        sealed: folder of the shards.
        writer: the name of the files.
    """

    def __init__(self, live: Path, sealed: Path, writer: str) -> None:
        self._live = live
        self._sealed = sealed
        self._writer = writer
        self._open: dict[int, FramedWriter] = {}
        self._growing: dict[Path, ShardWriter[Row] | None] = {}
        """The shards of steps that are not sealed, by their live file; None where a row came that
        has no column in it, so that sealing reads the live file back."""

    @abstractmethod
    def new_shard(self, path: Path) -> ShardWriter[Row]:
        """What writes a shard of this kind."""

    @abstractmethod
    def seal_live(self, live: Path, shard: Path) -> int:
        """Make a shard of a live file alone; the number of its rows, of which none makes no shard.

        Raises:
            StoreError: a line or frame is damaged, or the shard cannot be written.
        """

    def recover(self) -> int:
        """Seal what an earlier writer of this name left; the number of its trajectories.

        Raises:
            StoreError: a file cannot be read or written.
        """
        for path in self._sealed.glob(f"step=*/.{self._writer}-*.parquet.*.tmp"):
            if self._is_own(path.name[1:].partition(".parquet.")[0]):
                # a shard that its death left half written
                path.unlink()
        recovered = 0
        for path in sorted(self._live.glob(f"step=*/{self._writer}-*.jsonl")):
            if self._is_own(path.stem):
                if not self._shard_of(path).exists():
                    recovered += self.seal_live(path, self._shard_of(path))
                self._remove(path)
        for path in self._live.glob(f"step=*/{self._writer}-*.zst"):
            # its lines were removed just before a death
            if self._is_own(path.stem):
                self._remove(path.with_suffix(".jsonl"))
        return recovered

    def add(self, step: int, record: Record, data: bytes, row: Row) -> None:
        """Add a row to a step.

        Args:
            step: whose.
            record, data: the row in the live file.
            row: in the shard.

        Raises:
            OSError, StoreError: it cannot be written.
        """
        if step not in self._open:
            name = f"{self._writer}-{self._next_number(step):04d}.jsonl"
            path = self._live / step_name(step) / name
            self._open[step] = FramedWriter(path)
            self._growing[path] = self.new_shard(self._shard_of(path))
        files = self._open[step]
        # The live file comes first, from which a death takes nothing.
        files.append(record, data)
        growing = self._growing[files.path]
        if growing is not None and growing.takes(row):
            growing.add(row)
        elif growing is not None:
            growing.discard()
            self._growing[files.path] = None

    def seal(self, step: int) -> None:
        """Turn a step's live files into a shard; nothing where it has none. Later ones of the step
        make another.

        Raises:
            OSError, StoreError: a file cannot be read or written; the live files stay.
        """
        if step not in self._open:
            return
        files = self._open.pop(step)
        files.close()
        growing = self._growing.pop(files.path)
        if growing is None:
            self.seal_live(files.path, self._shard_of(files.path))
        else:
            growing.publish()
        # The live file goes once the shard stands: a death before leaves it to `recover`.
        self._remove(files.path)

    def seal_all(self) -> None:
        """Seal every step that has live files.

        Raises:
            OSError, StoreError: as ``seal``.
        """
        for step in sorted(self._open):
            self.seal(step)

    def sync(self) -> None:
        """Make every live file durable.

        Raises:
            OSError, StoreError: the disk refuses.
        """
        for files in self._open.values():
            files.sync()

    def close(self) -> None:
        """Close the live files as they are; a second call does nothing."""
        while self._open:
            self._open.popitem()[1].close()
        while self._growing:
            growing = self._growing.popitem()[1]
            if growing is not None:
                # The next writer of the name makes the shard of the live file.
                growing.discard()

    def _is_own(self, stem: str) -> bool:
        """Whether a file of this name is this writer's, and none of one whose name begins so."""
        return stem.rpartition("-")[0] == self._writer

    def _next_number(self, step: int) -> int:
        folder = self._sealed / step_name(step)
        names = (
            path.stem.rpartition("-") for path in folder.glob(f"{self._writer}-*.parquet")
        )
        return 1 + max(
            (int(number) for writer, _, number in names if writer == self._writer),
            default=0,
        )

    def _shard_of(self, live: Path) -> Path:
        """The shard that a live file becomes."""
        return self._sealed / live.parent.name / f"{live.stem}.parquet"

    def _remove(self, live: Path) -> None:
        remove_framed(live)
        try:
            # The folder stays where another writer's files of the step lie in it.
            live.parent.rmdir()
        except OSError as error:
            if not any(live.parent.iterdir()):
                raise StoreError(f"{live.parent} cannot be removed: {error}") from error
