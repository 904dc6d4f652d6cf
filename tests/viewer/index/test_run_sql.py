"""SQL over a run: what the views have, and what no statement can do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.store import Annotation, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.store.annotations.rollbacks import record_resume
from agentrl.viewer.index import RunIndex
from agentrl.viewer.run_sql import RunSql, SqlError
from tests.store.kept_run import write_run

from .conftest import Make


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone in which times are told."""
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def sql(run: RunDirectory, make: Make, tmp_path: Path) -> Iterator[RunSql]:
    """A sealed trajectory, one that is older than it, and a live one."""
    with TrajectoryWriter(run, "old") as writer:
        writer.write(make(1, reward=0.0), step=1)
    with TrajectoryWriter(run) as writer:
        writer.write(make(1, text='it\'s "done"', reward=0.5), step=2)
        writer.annotate(Annotation("1-0-0", 2, values={"credit": 0.25}))
        writer.seal(2)
        writer.write(make(2), step=3)
        writer.flush()
        metrics = [{"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": None}]
        run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in metrics))
        event = {
            "time": 1.0,
            "level": "warning",
            "event": "x",
            "message": "m",
            "other": [1],
        }
        run.events_path.write_text(json.dumps(event) + "\n")
        with (
            RunIndex(run, tmp_path / "cache") as index,
            RunSql(run, index, threads=1) as opened,
        ):
            yield opened


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("SELECT id, reward FROM trajectories ORDER BY id", [("1-0-0", 0.5), ("2-0-0", 1.0)]),
        ("SELECT len(token_ids) FROM trajectories WHERE step = 2", [(6,)]),
        ('SELECT turn, "text", num_calls FROM turns WHERE step = 2', [(0, "it's \"done\"", 1)]),
        ("SELECT id, step, values_json ->> '$.credit' FROM annotations", [("1-0-0", 2, "0.25")]),
        ("SELECT step, \"reward/mean\" FROM metrics", [(1, 0.5), (2, None)]),
        ("SELECT event, fields FROM events", [("x", '{"other":[1]}')]),
        ("SELECT note, \"drop\", trained_step FROM trajectories LIMIT 1", [([], "", None)]),
        ("WITH a AS (SELECT 1 AS x) SELECT x FROM a", [(1,)]),
    ],
)  # fmt: skip
def test_the_views(sql: RunSql, statement: str, rows: list[tuple[object, ...]]) -> None:
    assert sql.query(statement).rows == rows


TIME = "1970-01-01 00:00:01.5+00"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("to_timestamp(1.5) AT TIME ZONE 'UTC'", "1970-01-01 00:00:01.500000"),
        ("to_timestamp(1.5)", TIME),
        ("date_trunc('minute', to_timestamp(1.5))", "1970-01-01 00:00:00+00"),
        ("now() > to_timestamp(1.5)", True),
        ("[to_timestamp(1.5), NULL]", [TIME, None]),
        ("{'at': [to_timestamp(1.5)], 'n': 1}", {"at": [TIME], "n": 1}),
        ("map {to_timestamp(1.5): 2}", {TIME: 2}),
        ("list(1::DECIMAL(9,2))", [1.0]),
        ("{'a': 0.5::DECIMAL(9,2), 'b': DATE '2026-01-02'}", {"a": 0.5, "b": "2026-01-02"}),
        ("map {2: [DATE '2026-01-02']}", {"2": ["2026-01-02"]}),
        ("[INTERVAL 1 DAY]", ["1 day, 0:00:00"]),
        ("['a'::BLOB]", ["b'a'"]),
        ("[true, 1, NULL]", [1, 1, None]),
    ],
)
def test_times_and_nested_values_are_plain(
    sql: RunSql, expression: str, value: object
) -> None:
    found = sql.query(
        f"SELECT {expression} AS told, 1 AS told FROM range(1) ORDER BY 1; -- so"
    )
    # of which 1 and a Decimal of 1 are two
    assert repr(found.rows) == repr([(value, 1)])
    assert found.columns == ("told", "told")


def learned(sql: RunSql, reader: TrajectoryReader) -> list[str]:
    """The annotations of the view, which are those of the reader."""
    columns = "id, step, learner, pass_index, values_json, loss_weight"
    found = sorted(
        (row[0], row[1], row[2], row[3], json.loads(row[4]), row[5])
        for row in sql.query(f"SELECT {columns} FROM annotations").rows
    )
    read = sorted(
        (
            one.trajectory_id,
            one.step,
            one.learner,
            one.pass_index,
            dict(one.values),
            weights(one),
        )
        for one in reader.annotations()
    )
    assert found == read
    return [row[0] for row in found]


def weights(annotation: Annotation) -> list[float] | None:
    array = annotation.arrays.get("loss_weight")
    return None if array is None else array.tolist()


def annotate(writer: TrajectoryWriter, name: str, step: int, weight: float) -> None:
    arrays = {"loss_weight": np.array([weight, 0.0], np.float32)}
    writer.annotate(Annotation(name, step, values={"stage": "rl"}, arrays=arrays))


def test_live_annotations_have_their_arrays(
    run: RunDirectory, make: Make, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            writer.write(make(step), step=step)
            annotate(writer, f"{step}-0-0", step, 0.25 * step)
            writer.flush()
            if step == 1:
                writer.seal(1)
        writer.annotate(Annotation("2-0-0", 2, "judge", values={"verdict": "good"}))
        writer.flush()
        with (
            RunIndex(run, tmp_path / "cache") as index,
            RunSql(run, index, threads=1) as sql,
        ):
            assert learned(sql, TrajectoryReader(run)) == ["1-0-0", "2-0-0", "2-0-0"]
            total = sql.query("SELECT sum(list_sum(loss_weight)) FROM annotations").rows
            assert total == [(0.75,)]


def test_what_a_death_left_both_live_and_sealed_is_one_row(
    run: RunDirectory, make: Make, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
        annotate(writer, "1-0-0", 1, 0.5)
        writer.flush()
        shutil.copytree(run.root / "traj", tmp_path / "before")
        writer.seal(1)
    shutil.copytree(tmp_path / "before", run.root / "traj", dirs_exist_ok=True)
    with RunIndex(run, tmp_path / "cache") as index, RunSql(run, index, threads=1) as sql:
        assert learned(sql, TrajectoryReader(run)) == ["1-0-0"]
        assert sql.query("SELECT id FROM trajectories").rows == [("1-0-0",)]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_a_resume_took_back_is_no_row(
    run: RunDirectory, make: Make, tmp_path: Path, *, sealed: bool
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            writer.write(make(step), step=step)
            annotate(writer, f"{step}-0-0", step, 0.5)
            if sealed:
                writer.seal(step)
            writer.flush()
        kept = shutil.copytree(run.root, tmp_path / "run-so-far")
    run = RunDirectory.open(kept)
    record_resume(run, {"rl": 1})
    with TrajectoryWriter(run, "again") as writer:
        annotate(writer, "2-0-0", 2, 0.75)
        writer.flush()
        with (
            RunIndex(run, tmp_path / "cache") as index,
            RunSql(run, index, threads=1) as sql,
        ):
            assert learned(sql, TrajectoryReader(run)) == ["1-0-0", "2-0-0"]
            weight = "SELECT loss_weight[1] FROM annotations WHERE step = 2"
            assert sql.query(weight).rows == [(0.75,)]


def test_a_damaged_shard_of_annotations_is_passed_over_and_named(
    run: RunDirectory, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            writer.write(make(step), step=step)
            annotate(writer, f"{step}-0-0", step, 0.5)
            writer.seal(step)
    [shard] = run.sealed_annotations_folder.glob("step=000001/*.parquet")
    shard.write_bytes(shard.read_bytes()[:-100])
    with RunIndex(run, tmp_path / "cache") as index, RunSql(run, index, threads=1) as sql:
        assert learned(sql, TrajectoryReader(run)) == ["2-0-0"]
        [told] = sql.damage
        assert str(shard) in told
    statement = "SELECT count(*) AS number FROM annotations"
    assert run_command_line(["query", str(run.root), statement, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == [{"number": 1}]
    assert str(shard) in err


def test_live_and_sealed_have_the_same_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with RunIndex(run, tmp_path / "cache") as index, RunSql(run, index, threads=1) as sql:
        rows = sql.query('SELECT id, "group", rollout FROM trajectories ORDER BY id').rows
        assert sorted(index.ids()) == [row[0] for row in rows]
        assert len(rows) > 2
        assert all(f"{group}-{rollout}-" in name for name, group, rollout in rows)
        read = sorted(
            (one.trajectory_id, one.step) for one in TrajectoryReader(run).annotations()
        )
        assert read
        assert sorted(sql.query("SELECT id, step FROM annotations").rows) == read


@pytest.mark.parametrize(
    "statement",
    [
        "COPY trajectories TO '{out}'",
        "EXPLAIN ANALYZE COPY trajectories TO '{out}'",
        "CREATE TABLE t (a INT)",
        "ATTACH '{out}'",
        "SET threads = 3",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "",
        "INSERT INTO metrics_table VALUES (1)",
        "DELETE FROM trajectories",
        "INSTALL httpfs",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_text('{config}')",
        "SELECT * FROM nothing",
        "SELEC 1",
    ],
)
def test_a_statement_reads_the_views_and_nothing_else(
    sql: RunSql, run: RunDirectory, tmp_path: Path, statement: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SqlError):
        sql.query(statement.format(out=out, config=run.record_path))
    assert not out.exists()


def test_rows_time_and_memory_are_bounded(sql: RunSql) -> None:
    found = sql.query("SELECT * FROM range(100)", rows=10)
    assert (len(found.rows), found.cut) == (10, True)
    endless = (
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range = -1"
    )
    with pytest.raises(SqlError, match=r"longer than 0\.2 s"):
        sql.query(endless, timeout_s=0.2)
    assert sql.query("SELECT 1").rows == [(1,)]  # it goes on


def test_damaged_shards_are_passed_over(
    run: RunDirectory, make: Make, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        for number in (1, 2, 3):
            writer.write(make(number), step=number)
            arrays = {"ratio": np.ones(2, np.float32)}
            writer.annotate(Annotation(f"{number}-0-0", number, arrays=arrays))
            writer.seal(number)
    for number, folder in ((1, run.sealed_folder), (3, run.sealed_annotations_folder)):
        (shard,) = folder.glob(f"step={number:06d}/*.parquet")
        shard.write_bytes(shard.read_bytes()[:-100])
    with RunIndex(run, tmp_path / "cache") as index, RunSql(run, index, threads=1) as sql:
        assert sql.query("SELECT id FROM trajectories ORDER BY id").rows == [
            ("2-0-0",),
            ("3-0-0",),
        ]
        found = sql.query("SELECT id, ratio FROM annotations ORDER BY id").rows
    assert found == [("1-0-0", [1.0, 1.0]), ("2-0-0", [1.0, 1.0])]
    assert len(sql.damage) == 2
    assert any("shard of annotations" in part for part in sql.damage)


@pytest.mark.parametrize("memory", ["much", "5"])
def test_a_memory_that_is_no_size_is_named(
    run: RunDirectory, tmp_path: Path, memory: str
) -> None:
    with (
        RunIndex(run, tmp_path / "cache") as index,
        pytest.raises(SqlError, match=f"such as 500MB, got '{memory}'"),
    ):
        RunSql(run, index, memory=memory)


def test_a_query_that_needs_too_much_memory_is_an_error(
    run: RunDirectory, tmp_path: Path
) -> None:
    greedy = "SELECT list(range) FROM range(30000000)"
    with (
        RunIndex(run, tmp_path / "cache") as index,
        RunSql(run, index, memory="60MB", threads=1) as sql,
        pytest.raises(SqlError, match="the 60MB of memory that it may"),
    ):
        sql.query(greedy)


def test_a_memory_that_is_too_small_for_the_run_is_named(
    run: RunDirectory, make: Make, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    with (
        RunIndex(run, tmp_path / "cache") as index,
        pytest.raises(SqlError, match="the 1KB of memory that it may"),
        RunSql(run, index, memory="1KB") as sql,
    ):
        sql.query("SELECT count(*) FROM trajectories")
