"""Rows that were read last are not read again, unless their shard was replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.store.shard_folders import KEPT, RecentRows


def test_a_row_is_read_once_until_its_shard_is_replaced_or_others_follow(
    tmp_path: Path,
) -> None:
    shard = tmp_path / "driver-0001.parquet"
    shard.write_text("first")
    reads: list[int] = []

    def read(path: Path, row: int) -> str:
        reads.append(row)
        if not path.exists():
            raise StoreError(f"{path} cannot be read")
        return f"{path.read_text()} {row}"

    rows = RecentRows(read)
    assert [rows.get(shard, 1), rows.get(shard, 1), rows.get(shard, 2)] == [
        "first 1",
        "first 1",
        "first 2",
    ]
    assert reads == [1, 2]

    other = tmp_path / "new"
    other.write_text("second")
    other.replace(shard)
    assert (rows.get(shard, 1), reads) == ("second 1", [1, 2, 1])

    for row in range(10, 10 + KEPT):
        rows.get(shard, row)
    rows.get(shard, 1)
    assert reads[-2:] == [10 + KEPT - 1, 1]

    shard.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        rows.get(shard, 1)
