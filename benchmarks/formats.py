"""Formats: today's five formats of a run against one engine, Arrow and Parquet read by DuckDB.

``live`` stores one trajectory at a time; ``lists`` finds, sorts, counts and follows in a large run.
What was decided by these figures stands in docs/run-directory.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.store.step_files import FramedWriter
from agentrl.store.trajectories.codec import encode_trajectory
from agentrl.store.trajectories.columns import SCHEMA, SUMMARY_COLUMNS, EncodedRow
from agentrl.store.trajectories.files import (
    LAYOUT,
    TrajectoryFiles,
    TrajectoryShardWriter,
    live_record,
)
from agentrl.store.trajectories.listing import LiveListing
from agentrl.viewer.index import RunIndex
from agentrl.viewer.index.fields import FIELDS
from benchmarks.figures import Figures, add_arguments, measure_parts
from benchmarks.viewers import index
from benchmarks.viewers.synthetic_run import GROUP_SIZE, large_run
from benchmarks.viewers.trajectories import Episodes

__all__ = ["PARTS"]

TOKENS = 2_000
ROWS = 256
A_LOOK = 8
ARRIVING = 1_000
WITHIN_S = 60.0
KILLS = 100
REPEATS = 5
STEP = 10**6


def stored_rows(number: int, first_group: int = 0) -> list[EncodedRow]:
    """Rows of different ids, ``GROUP_SIZE`` a group, with the content of a few."""
    episodes = Episodes(TOKENS, 0)
    few = [
        encode_trajectory(episodes.trajectory(0, 0), step=STEP, recorded_at=2e9)
        for _ in range(A_LOOK)
    ]
    found = []
    for place in range(number):
        row, arrays = few[place % A_LOOK]
        group, rollout = first_group + place // GROUP_SIZE, place % GROUP_SIZE
        own = {"group_index": group, "rollout_index": rollout, "id": f"{group}-{rollout}-0"}
        found.append(({**row, **own}, arrays))
    return found


def batch_of(rows: Sequence[EncodedRow]) -> pa.RecordBatch:
    """Rows as a shard has them."""
    return TrajectoryShardWriter(Path("unused")).batch(rows)


class Lines:
    """Today's: a line of JSON, and a zstd frame."""

    def __init__(self, folder: Path) -> None:
        path = folder / "one.jsonl"
        self._writer = FramedWriter(path)
        self._listing = LiveListing(path, _fail)

    def append(self, row: EncodedRow) -> None:
        self._writer.append(*live_record(*row))

    def look(self) -> list[str]:
        self._listing.grow()
        return [own for own, _ in self._listing.places()]


class Messages:
    """An Arrow message a row, in one file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "one.arrows"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._end = 0
        self._ids: list[str] = []
        self.batches: list[pa.RecordBatch] = []
        self.look()
        os.ftruncate(self._file, self._end)
        if not self._end:
            os.write(self._file, SCHEMA.serialize())

    def append(self, row: EncodedRow) -> None:
        left = memoryview(batch_of([row]).serialize())
        while left:
            left = left[os.write(self._file, left) :]

    def look(self) -> list[str]:
        size = os.fstat(self._file).st_size
        source = pa.BufferReader(os.pread(self._file, size - self._end, self._end))
        start = self._end
        while True:
            try:
                message = pa.ipc.read_message(source)
            # its end is missing
            except (EOFError, OSError, pa.ArrowInvalid):
                return self._ids
            self._end = start + source.tell()
            if message.type == "record batch":
                batch = pa.ipc.read_record_batch(message, SCHEMA)
                summary = batch.select(SUMMARY_COLUMNS).to_pylist()
                self._ids += [one["id"] for one in summary]
                self.batches.append(batch.select(SUMMARY_COLUMNS))


class Files:
    """A Parquet file a row."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = len(list(folder.glob("*.parquet")))
        self._ids: dict[str, str] = {}

    def append(self, row: EncodedRow) -> None:
        temporary = self._folder / "one.tmp"
        with pq.ParquetWriter(temporary, SCHEMA, **LAYOUT.options) as file:
            file.write_batch(batch_of([row]))
        temporary.rename(self._folder / f"{self._number:06d}.parquet")
        self._number += 1

    def look(self) -> list[str]:
        for path in sorted(self._folder.glob("*.parquet")):
            if path.name not in self._ids:
                table = pq.ParquetFile(path).read(list(SUMMARY_COLUMNS), use_threads=False)
                self._ids[path.name] = table.to_pylist()[0]["id"]
        return list(self._ids.values())


Live = Lines | Messages | Files
"""Where trajectories lie that are not sealed yet: ``append`` stores a row, which survives the death
of the process as soon as it returns; ``look`` gives the ids of all, and reads what is new alone.
"""
LIVE: Mapping[str, Callable[[Path], Live]] = {
    "a JSON line and a frame": Lines,
    "an Arrow message": Messages,
    "a Parquet file": Files,
}


def measure_live(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of storing one trajectory at a time."""
    rows = stored_rows(ROWS)
    for name, kind in LIVE.items():
        least = {"append": np.inf, "look": np.inf}
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as folder:
                live = kind(Path(folder))
                spent = {"append": 0.0, "look": 0.0}
                for start in range(0, ROWS, A_LOOK):
                    for row in rows[start : start + A_LOOK]:
                        spent["append"] += _cpu_s(partial(live.append, row))
                    spent["look"] += _cpu_s(live.look)
                if len(live.look()) != ROWS:
                    raise RuntimeError(
                        f"{name}: {ROWS} rows were stored, got {len(live.look())}"
                    )
                size = sum(
                    one.stat().st_size for one in Path(folder).rglob("*") if one.is_file()
                )
                least = {what: min(spent[what], before) for what, before in least.items()}
        figures.report(
            f"{name}: processor time of storing it", least["append"] / ROWS * 1e6, "us"
        )
        figures.report(
            f"{name}: processor time of listing it", least["look"] / ROWS * 1e6, "us"
        )
        figures.report(f"{name}: on disk", size / ROWS / 1e3, "kB")
        figures.at_most(
            f"{name}: lost or twice after {KILLS} kills",
            _faults(kind, arguments.seed),
            "",
            0,
        )
    figures.note(
        f"Live: one trajectory of {TOKENS:,} tokens at a time, {ROWS} times, without the shard "
        f"that grows beside; a reader looks after each {A_LOOK}. The best of {REPEATS}. Kills: a "
        "process stores without a pause and tells what it has stored; SIGKILL ends it at a random "
        "moment, and the next one goes on in the same files."
    )


def _faults(kind: Callable[[Path], Live], seed: int) -> int:
    chosen = random.Random(seed)
    rows = stored_rows(A_LOOK)
    # Arrow loads pandas with the first row that it takes, which each fork would do again
    batch_of(rows)
    told: set[str] = set()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(KILLS):
            reader, writer = multiprocessing.Pipe(duplex=False)
            work = (kind, Path(folder), rows, number, writer)
            process = multiprocessing.get_context("fork").Process(target=_store, args=work)
            process.start()
            writer.close()
            reader.recv()
            # the moment is what is drawn
            time.sleep(chosen.uniform(0, 0.03))
            process.kill()
            process.join()
            try:
                while True:
                    told.add(reader.recv())
            # all that it told was read, but for what the kill tore
            except (EOFError, OSError):
                pass
            found = kind(Path(folder)).look()
            faults += len(told - set(found)) + len(found) - len(set(found))
    return faults


def _store(
    kind: Callable[[Path], Live],
    folder: Path,
    rows: Sequence[EncodedRow],
    number: int,
    told: multiprocessing.connection.Connection,
) -> None:
    live = kind(folder)
    told.send("started")
    place = 0
    while True:
        row, arrays = rows[place % A_LOOK]
        own = f"{number}-{place}-0"
        live.append(({**row, "id": own}, arrays))
        told.send(own)
        place += 1


def _fail(error: StoreError) -> None:
    raise error


class Index:
    """Today's: SQLite in the user's cache, and columns in memory."""

    def __init__(self, root: Path, cache: Path) -> None:
        run = RunDirectory.open(root)
        self._index = RunIndex(run, cache)
        self._files = TrajectoryFiles(run, "one")

    def refresh(self) -> None:
        self._index.refresh()

    def page(self, query: str, sort: str, offset: int) -> int:
        return self._index.page(query, sort, offset).total

    def facets(self, query: str = "") -> None:
        self._index.facets(query)

    def store(self, rows: Sequence[EncodedRow]) -> None:
        for row in rows:
            self._files.append(STEP, *row)


SQL = {
    "": "true",
    "reward<0.5": "reward < 0.5",
    "env:code reward<0.5 tool_errors>=2": "env = 'code' AND reward < 0.5 AND num_tool_errors >= 2",
    "reward.correct>=1": "CAST(json_extract(rewards, '$.correct') AS DOUBLE) >= 1",
    "reward<0.001 tool:search": "reward < 0.001 AND list_contains(tools, 'search')",
    "reward<0.5 tool:python": "reward < 0.5 AND list_contains(tools, 'python')",
}
"""Today's queries for DuckDB."""
NAMES = ", ".join(SUMMARY_COLUMNS)
JOINED = "trained_step, '' AS drop_reason, CAST([] AS VARCHAR[]) AS labels"
LEDGER = (
    "SELECT group_index, rollout_index, max(step) AS trained_step FROM (SELECT group_index, "
    "unnest(rollout_indices) AS rollout_index, step FROM read_json($1, "
    "format = 'newline_delimited') WHERE \"to\" = 'trained') GROUP BY ALL"
)
NEWEST = "QUALIFY row_number() OVER (PARTITION BY id ORDER BY recorded_at DESC) = 1"


class Scan:
    """DuckDB over the shards and the ledger: nothing is kept but the shards' footers."""

    made = "VIEW"

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root
        self._run = duckdb.connect().execute
        self._run("SET parquet_metadata_cache = true")
        self._run("SET threads = 2")
        self._run("SET enable_progress_bar = false")
        self._live = Messages(cache)
        self._known = 0

    def refresh(self) -> None:
        if not self._known:
            shards = ", ".join(f"'{path}'" for path in self._shards())
            self._run(
                f"CREATE TABLE ledger AS {LEDGER}", [str(self._root / "ledger.jsonl")]
            )
            self._run(
                f"CREATE {self.made} trajectories AS SELECT found.*, {JOINED} FROM (SELECT {NAMES} "
                f"FROM read_parquet([{shards}], hive_partitioning = false) {NEWEST}) AS found "
                "LEFT JOIN ledger USING (group_index, rollout_index)"
            )
        self._known = self._known or len(self._shards())
        self._live.look()
        self.take(self._live.batches)
        self._live.batches = []

    def take(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Takes what is live into the table."""

    def page(self, query: str, sort: str, offset: int) -> int:
        where = f"FROM trajectories WHERE {SQL[query]}"
        ((total,),) = self._run(f"SELECT count(*) {where}").fetchall()
        column = FIELDS[sort.removeprefix("-")].stored
        order = f"{column} DESC" if sort.startswith("-") else column
        self._run(
            f"SELECT * {where} ORDER BY {order}, recorded_at LIMIT 200 OFFSET {offset}"
        ).fetchall()
        return int(total)

    def facets(self, query: str = "") -> None:
        where = f"FROM trajectories WHERE {SQL[query]}"
        for field in FIELDS.values():
            if not (field.counted and field.stored):
                continue
            if field.is_number:
                self._run(f"SELECT histogram({field.stored}) {where}").fetchall()
                continue
            value = (
                f"unnest({field.stored})"
                if field.name in ("agent", "tool")
                else field.stored
            )
            self._run(
                f"SELECT {value} AS value, count(*) {where} GROUP BY 1 ORDER BY 2"
            ).fetchall()

    def store(self, rows: Sequence[EncodedRow]) -> None:
        for row in rows:
            self._live.append(row)

    def _shards(self) -> list[Path]:
        return sorted(RunDirectory(self._root).sealed_folder.glob("step=*/*.parquet"))


class Table(Scan):
    """A table of DuckDB in the memory of each process."""

    made = "TABLE"

    def take(self, batches: Sequence[pa.RecordBatch]) -> None:
        if batches:
            # DuckDB finds it by its name
            fresh = pa.Table.from_batches(batches)  # noqa: F841
            self._run("CREATE OR REPLACE TEMP TABLE arrived AS SELECT * FROM fresh")
            self._run("DELETE FROM trajectories WHERE id IN (SELECT id FROM arrived)")
            self._run(
                f"INSERT INTO trajectories SELECT arrived.*, {JOINED} FROM arrived "
                "LEFT JOIN ledger USING (group_index, rollout_index)"
            )


Lists = Index | Scan
"""A run's list: ``refresh`` takes what is new, ``page`` reads 200 of those that fit and says how
many do, ``facets`` counts values, ``store`` stores rows as a writer does.
"""
LISTS: Mapping[str, Callable[[Path, Path], Lists]] = {
    "SQLite": Index,
    "DuckDB's table": Table,
    "DuckDB over the shards": Scan,
}
START = """
import sys
from pathlib import Path
from benchmarks.formats import LISTS
lists = LISTS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
lists.refresh()
lists.page("", "-step", 0)
"""


def measure_lists(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of a large run's list; each kind of list has a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with large_run(arguments) as root:
        for name in LISTS:
            with (
                tempfile.TemporaryDirectory() as cache,
                ProcessPoolExecutor(1, mp_context=spawn) as process,
            ):
                found = process.submit(
                    _figures_of, name, root, Path(cache), arguments.trajectories
                ).result()
                for what, (value, unit) in found.items():
                    figures.report(f"{name}: {what}", value, unit)
    figures.note(
        f"Lists: {arguments.trajectories:,} trajectories, the lists of `benchmarks.viewer --only "
        f"index`; the best of {REPEATS} of each. Following: {ARRIVING:,} arrive live, {A_LOOK} "
        f"between two looks; the share is of a core, were they to come within {WITHIN_S:g} s."
    )


def _figures_of(
    name: str, root: Path, cache: Path, trajectories: int
) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    lists = LISTS[name](root, cache)
    found["cold"] = (_wall_s(lists.refresh), "s")
    ms = {
        what: _best_ms(partial(lists.page, *asked)) for what, asked in index.LISTS.items()
    }
    found["fastest of nine lists"] = (min(ms.values()), "ms")
    found["slowest of nine lists"] = (max(ms.values()), "ms")
    found["facets for the first time"] = (_wall_s(lists.facets) * 1e3, "ms")
    found["facets of all"] = (_best_ms(lists.facets), "ms")
    command = [sys.executable, "-c", START, name, str(root), str(cache)]
    warm = min(
        _wall_s(partial(subprocess.run, command, check=True)) for _ in range(REPEATS)
    )
    found["start of a second process to its first page"] = (warm, "s")
    # the shards alone do not have what is live
    if name != "DuckDB over the shards":
        found |= _following(lists, trajectories)
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    found["memory at most"] = (int(peak[1]) / 1e3, "MB")
    return found


def _following(lists: Lists, trajectories: int) -> dict[str, tuple[float, str]]:
    spent = 0.0
    ms: list[float] = []
    asked = list(index.LISTS.values())
    rows = stored_rows(ARRIVING, first_group=-(-trajectories // GROUP_SIZE))
    for start in range(0, ARRIVING, A_LOOK):
        lists.store(rows[start : start + A_LOOK])
        spent += _cpu_s(lists.refresh)
        ms.append(_wall_s(partial(lists.page, *asked[start // A_LOOK % len(asked)])) * 1e3)
    if (total := lists.page("", "-step", 0)) != trajectories + ARRIVING:
        raise RuntimeError(f"{trajectories + ARRIVING} trajectories are there, got {total}")
    return {
        "share of a core while it follows": (spent / WITHIN_S * 100, "%"),
        "a list while it follows, p95": (float(np.percentile(ms, 95)), "ms"),
    }


def _wall_s(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _best_ms(work: Callable[[], object]) -> float:
    return min(_wall_s(work) for _ in range(REPEATS)) * 1e3


PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "live": measure_live,
    "lists": measure_lists,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.formats", description=__doc__
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--trajectories", type=int, default=100_000, help="of the large run (100,000)"
    )
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="keep the large run there"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser, benchmark="formats")
    return measure_parts(PARTS, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
