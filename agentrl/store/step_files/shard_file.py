"""Shard file: opens a Parquet file that is a regular file."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from agentrl.guards.regular_file import check_regular


def shard_file(path: Path) -> pq.ParquetFile:
    """The Parquet file of a name; the caller closes it.

    Raises:
        OSError, pa.ArrowException: it is none.
    """
    check_regular(path)
    return pq.ParquetFile(path)
