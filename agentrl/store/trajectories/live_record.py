"""Live record: a stored row as a short JSON object, and the bytes of its texts and arrays.

A list of what is live parses the objects alone; the bytes lie in the frame beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.jsonl import read_jsonl
from agentrl.store.step_files.live import frame_of, read_frame
from agentrl.store.trajectories.columns import COLUMNS, SUMMARY_COLUMNS, Row, chosen
from agentrl.store.trajectories.token_arrays import TokenArrays

_TEXTS = tuple(name for name in COLUMNS if name not in SUMMARY_COLUMNS)


def live_record(row: Row, arrays: TokenArrays) -> tuple[dict[str, Any], bytes]:
    """The object of a row, and its bytes: the arrays, then the texts end to end.

    Args:
        row: every column.
        arrays: its arrays.

    Returns:
        The object has the summary columns, and ``texts`` with the name and the size of each text.
    """
    texts = {name: row[name].encode() for name in _TEXTS}
    record = {name: row[name] for name in SUMMARY_COLUMNS}
    record["texts"] = [[name, len(data)] for name, data in texts.items()]
    return record, b"".join([arrays.pack(), *texts.values()])


def read_record(record: Mapping[str, Any], data: bytes) -> tuple[Row, TokenArrays]:
    """The row and arrays of ``live_record``.

    Raises:
        StoreError: the bytes do not fit the object, or it lacks a column.
    """
    sizes = record.get("texts", [])
    start = len(data) - sum(size for _, size in sizes)
    if start < 0:
        raise StoreError(
            f"the texts of trajectory {record.get('id')!r} need {len(data) - start} bytes, got "
            f"{len(data)}"
        )
    arrays = data[:start]
    texts = {}
    for name, size in sizes:
        texts[name] = data[start : start + size].decode()
        start += size
    row = chosen({**record, **texts})
    return row, TokenArrays.unpack(arrays, row["num_tokens"])


def read_live_row(path: Path, record: Mapping[str, Any]) -> tuple[Row, TokenArrays]:
    """The row and arrays of a line.

    Args:
        path: the lines' file.
        record: the line's object.

    Raises:
        StoreError: the frame is not there or is damaged, or does not fit the line.
    """
    return read_record(record, read_frame(path, frame_of(str(path), record)))


def live_texts(path: Path) -> Iterator[Row]:
    """The rows of a live file, without their arrays; nothing where it was sealed meanwhile.

    What cannot be read is passed over; ``TrajectoryReader.damage`` names it.
    """

    def named_by_the_reader(error: StoreError) -> None:
        pass

    for record in read_jsonl(path, named_by_the_reader):
        try:
            row, _ = read_live_row(path, record)
        except StoreError as error:
            named_by_the_reader(error)
        else:
            yield row
