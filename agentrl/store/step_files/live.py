"""Live files: a line for each record, its bytes in a zstd frame beside it.

The frame is written before its line, so a whole line has a whole frame; what a death tore is at the
end of both files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from agentrl.errors import StoreError
from agentrl.guards.regular_file import check_regular, open_regular
from agentrl.store.jsonl import Damage, JsonFollower, JsonlWriter, Record, write_all
from agentrl.store.write_error import os_refusals

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
            self._frames = os.open(frames_path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
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
