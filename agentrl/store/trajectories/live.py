"""Live files: a line for each finished trajectory, its arrays in a zstd frame beside it.

The frame is written before its line, so a whole line has a whole frame; what a death tore is at the
end of both files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from agentrl.errors import StoreError
from agentrl.store.json_text import to_json
from agentrl.store.jsonl import cut_torn_line, read_jsonl, write_all
from agentrl.store.write_error import os_refusals


class FramedWriter:
    """Appends records to a pair of files; what a death tore is cut off first.

    Raises:
        StoreError: a file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._compressor = zstandard.ZstdCompressor()
        with os_refusals(f"{path} cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lines = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._frames = os.open(frames_path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            cut_torn_line(self._lines)
            # a frame whose line was partial stays as a gap that no line names
            self._end = os.fstat(self._frames).st_size

    def append(self, record: Mapping[str, Any], arrays: bytes) -> None:
        """Write one record and its arrays; they survive the death of the process as soon as this
        returns.

        Args:
            record: a JSON object without the key ``frame``.
            arrays: their bytes.

        Raises:
            OSError: it cannot be written; the files may then end in a partial record.
        """
        text = to_json(record)
        frame = self._compressor.compress(arrays)
        write_all(self._frames, frame)
        line = f'{text[:-1]},"frame":[{self._end},{len(frame)}]}}\n'
        self._end += len(frame)
        write_all(self._lines, line.encode())

    def sync(self) -> None:
        """Make every record so far durable.

        Raises:
            OSError: the disk refuses.
        """
        os.fsync(self._frames)
        os.fsync(self._lines)

    def close(self) -> None:
        """Close both files; called once."""
        os.close(self._frames)
        os.close(self._lines)


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


def read_framed(
    path: Path, on_damage: Callable[[StoreError], None] | None = None
) -> Iterator[dict[str, Any]]:
    """The records that are there with their frames, in order, ``frame`` included; nothing where
    there is no file.

    Args:
        path: the lines' file.
        on_damage: is told of a whole line that is no JSON object, which is then passed over.

    Raises:
        StoreError: without ``on_damage``, such a line; an object that names no frame.
    """
    end: int | None = None
    for number, record in enumerate(read_jsonl(path, on_damage), start=1):
        frame = record.get("frame")
        if not (isinstance(frame, list) and len(frame) == 2):
            raise StoreError(
                f"{path}:{number} must name its frame as [offset, bytes], got {frame!r}"
            )
        if end is None:
            end = frames_path(path).stat().st_size if frames_path(path).exists() else 0
        if (
            sum(frame) > end
        ):  # the machine died, not just the process, and the disk kept the line alone
            return
        yield record


def read_frame(path: Path, frame: Sequence[int]) -> bytes:
    """The arrays' bytes of a record in the lines' file ``path``.

    Raises:
        StoreError: the frame is not there or is damaged.
    """
    offset, size = frame
    frames = frames_path(path)
    try:
        with frames.open("rb") as file:
            file.seek(offset)
            return zstandard.ZstdDecompressor().decompress(file.read(size))
    except (OSError, zstandard.ZstdError) as error:
        raise StoreError(
            f"the frame at {offset} of {frames} cannot be read: {error}; move it and {path.name} "
            "away"
        ) from error
