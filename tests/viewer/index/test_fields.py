"""Fields: one name in queries, orders, facets, lists and SQL, also of what a run names itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from agentrl.errors import ConfigError
from agentrl.store import (
    Annotation,
    KeepSpec,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
)
from agentrl.store.annotations.rollbacks import record_resume
from agentrl.store.trajectories.columns import ADDED
from agentrl.types import CallRecord, ToolCall, ToolResult
from agentrl.viewer.index import QueryError, RunIndex
from agentrl.viewer.index import growth as index_growth
from agentrl.viewer.index.fields import FIELDS
from agentrl.viewer.run_sql import RunSql
from tests.store.made import made_trajectory

from .conftest import Make


def timed_out(group: int) -> CallRecord:
    call = ToolCall(f"c{group}", "python", {"code": "1"})
    return CallRecord(
        call, None, ToolResult(call.id, "python", "too long", error="timeout")
    )


def learn(writer: TrajectoryWriter, name: str, step: int, **values: object) -> None:
    writer.annotate(
        Annotation(name, step, values={"stage": "rl", "trained_step": step, **values})
    )


def test_a_field_has_one_name_everywhere(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        info = {
            "score": np.float32(2.5),
            "solved": True,
            "retok_frac": 0.25,
            "nan": float("nan"),
        }
        writer.write(make(1, info=info), step=1)
        calls = [timed_out(0), timed_out(1)]
        writer.write(made_trajectory(2, calls=calls, info={"score": "none"}), step=1)
        learn(writer, "1-0-0", 1, credit=0.5, staleness=3, verdict="good", judged=4)
    index.refresh()
    told = {
        "info.score": 2.5,
        "info.solved": 1,
        "retok_frac": 0.25,
        "credit": 0.5,
        "staleness": 3,
        "annotation.judged": 4,
        "reward.correct": 1,
    }
    row, other = index.page(sort="-retok_frac").rows
    assert {name: row[name] for name in told} == told
    assert (
        not {"info.nan", "annotation.verdict", "annotation.trained_step"}
        & index.fields().keys()
    )
    assert (other["error"], other["error.timeout"], other["finish"]) == (
        ["timeout"],
        2,
        "stop",
    )
    assert "info.score" not in other
    for name, value in told.items():
        assert index.ids(f"{name}>={value}", "id")[0] == "1-0-0"
        assert len(index.ids("", f"-{name}")) == 2
        assert index.facets("", [name])["histograms"][name]["counts"]
    assert index.ids("error:timeout error.timeout:2") == ["2-0-0"]
    assert index.ids("info.score:none") == ["2-0-0"]
    with RunSql(run, index, threads=1) as sql:
        names = [name for name in index.fields() if name not in ("started_at", "ended_at")]
        columns = ", ".join(f'"{name}"' for name in names)
        found = sql.query(f"SELECT {columns} FROM trajectories ORDER BY id").rows
        assert dict(zip(names, found[0], strict=True)) == {n: row.get(n) for n in names}
        assert (
            sql.query("SELECT answer, final FROM trajectories").rows == [("42", "done")] * 2
        )
        with pytest.raises(Exception, match="turns"):
            sql.query("SELECT num_turns FROM trajectories")


def test_no_field_is_declared_twice() -> None:
    stored = [field.stored for field in FIELDS.values() if field.stored]
    assert len(stored) == len(set(stored))
    assert all(field.help for field in FIELDS.values())


def test_stale_rollouts_are_found_by_their_oldest_token(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for group, behind in ((1, 0), (2, 2), (3, 4)):
            writer.write(make(group), step=9)
            learn(writer, f"{group}-0-0", 9, staleness=behind)
    index.refresh()
    assert index.ids("staleness>=2", "id") == ["2-0-0", "3-0-0"]
    assert index.ids("version<=6", "id") == ["1-0-0", "2-0-0", "3-0-0"]


def test_what_only_some_shards_have_and_what_changes_its_type(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    infos: list[dict[str, object]] = [{}, {"depth": 3}, {"depth": "deep"}, {"depth": [1]}]
    with TrajectoryWriter(run) as writer:
        for group, info in enumerate(infos):
            writer.write(make(group, info=info), step=group)
            writer.seal(group)
            writer.flush()
            index.refresh()
            if not group:
                with pytest.raises(QueryError, match="a field must be known"):
                    index.ids("info.depth:any")
    assert index.ids("info.depth:any") == ["1-0-0"]
    assert index.ids("", "info.depth")[0] == "1-0-0"
    assert index.damage() == []


def test_a_shard_of_an_earlier_version_lacks_the_newer_columns(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), step=0)
    path = run.shard_path(0, "driver", 1)
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(list(ADDED)), path)
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    index.refresh()
    assert index.ids("finish:none") == ["0-0-0"]
    assert index.ids("finish:any") == ["1-0-0"]
    reader = TrajectoryReader(run)
    assert [one.finish_reason for one in reader.summaries()] == [None, "stop"]
    assert reader.get("0-0-0").trajectory.turns[0].finish_reason == "stop"
    with RunSql(run, index, threads=1) as sql:
        found = sql.query("SELECT id, finish FROM trajectories ORDER BY id").rows
        assert found == [("0-0-0", None), ("1-0-0", "stop")]
    assert index.damage() == []


def test_a_run_without_annotations_has_no_value_of_theirs(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    index.refresh()
    assert index.ids("staleness>=0 or credit:any") == []
    assert index.ids("", "-mismatch") == ["1-0-0"]
    assert index.facets("", ["clip_frac"])["histograms"]["clip_frac"]["counts"] == []


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("rewrd", "did you mean 'reward'"),
        ("num_tokens", "did you mean 'tokens'"),
        ("policy_version_min", "did you mean 'version'"),
        ("info.scor", "did you mean 'info.score'"),
        ("nothing_near", "fields are id, step"),
        ("prompt", "a text sorts and counts nothing"),
    ],
)
def test_a_name_that_is_no_field_is_refused(
    run: RunDirectory, make: Make, index: RunIndex, name: str, remedy: str
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1, info={"score": 1}), step=1)
    index.refresh()
    for ask in (
        lambda: index.page(sort=name),
        lambda: index.facets("", [name]),
        lambda: index.columns([name]),
    ):
        with pytest.raises(ConfigError, match=remedy):
            ask()


def test_before_the_first_trajectory_a_query_may_name_what_will_come(
    index: RunIndex,
) -> None:
    index.refresh()
    assert index.ids("info.score>1 or reward.correct:none") == []
    with pytest.raises(QueryError):
        index.ids("score>1")


def test_names_that_no_query_could_have_are_no_fields(
    run: RunDirectory, make: Make, index: RunIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_growth, "_MOST_FOUND", 3)
    names = [
        "two words",
        'a"b',
        "x,y",
        "a:b",
        "\ud800",
        "\x00",
        "",
        "ok",
        "OK",
        "z",
        "more",
    ]
    with TrajectoryWriter(run) as writer:
        writer.write(make(1, info=dict.fromkeys(names, 1)), step=1)
        writer.write(make(2, rewards={}, info={"ok": 10**400, "z": 10**18}), step=1)
        writer.flush()
        index.refresh()
    index.refresh()
    # SQL knows no case, and a run names three at most here
    assert index.fields().keys() - FIELDS.keys() == {"reward.correct", "info.ok", "info.z"}
    assert index.ids("info.ok:1") == ["1-0-0"]
    assert index.ids("info.z>1e17") == ["2-0-0"]
    assert index.damage() == []


def test_of_several_annotations_the_newest_counts_live_and_sealed(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
        learn(writer, "1-0-0", 1, credit=0.25, judged=1)
        writer.flush()
        assert index.refresh() == 1
        learn(writer, "1-0-0", 2, credit=0.75)
        writer.flush()
        assert index.refresh() == 1
        writer.seal(1)
        writer.flush()
        index.refresh()
        (row,) = index.page().rows
        assert (row["credit"], row["annotation.judged"]) == (0.75, 1)
    index.refresh()
    assert index.page().rows == [row]
    assert index.refresh() == 0


def test_what_a_resume_took_back_is_not_learned(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            writer.write(make(step), step=step)
            learn(writer, f"{step}-0-0", step, credit=step)
    index.refresh()
    record_resume(run, {"rl": 1})
    index.refresh()
    assert [row["credit"] for row in index.page(sort="id").rows] == [1, None]
    with TrajectoryWriter(run, "again") as writer:
        writer.write(make(2, reward=0.5), step=2)
        learn(writer, "2-0-0", 2, credit=7)
    index.refresh()
    assert [row["credit"] for row in index.page(sort="id").rows] == [1, 7]


def test_a_shard_that_shrank_keeps_what_was_learned(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run, keep=KeepSpec(last_steps=1, reward_above=0.5)) as writer:
        for step in (1, 2, 3):
            for place in range(2):
                group = 2 * step + place
                writer.write(make(group, reward=float(place)), step)
                learn(writer, f"{group}-0-0", step, credit=group)
            writer.seal(step)
            writer.flush()
            index.refresh()
    index.refresh()
    found = {row["id"]: row["credit"] for row in index.page().rows}
    assert found
    assert all(int(name.partition("-")[0]) == credit for name, credit in found.items())


def test_damaged_annotations_hide_themselves_alone(
    run: RunDirectory, make: Make, index: RunIndex, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            writer.write(make(step), step=step)
            learn(writer, f"{step}-0-0", step, credit=step)
            writer.seal(step)
    [shard] = run.sealed_annotations_folder.glob("step=000001/*.parquet")
    shard.write_bytes(shard.read_bytes()[:-100])
    index.refresh()
    assert [row["credit"] for row in index.page(sort="id").rows] == [None, 2]
    (damage,) = index.damage()
    assert str(shard) in damage
    shutil.rmtree(shard.parent)
    index.refresh()
    assert index.damage() == []


def test_training_comes_before_evaluations(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for step in (1, 2):
            writer.write(make(step), step=step)
            played = make(step + 10, label="code/during/greedy", purpose="eval", stage="rl")
            writer.write(played, step=step)
    index.refresh()
    found = [row["id"] for row in index.page().rows]
    assert found[:2] == ["2-0-0", "1-0-0"]
    assert [name.rpartition("/")[2] for name in found[2:]] == ["12-0-0", "11-0-0"]


def test_the_page_has_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "query.md").read_text(encoding="utf-8")
    for field in FIELDS.values():
        assert f"| `{field.name}` | " in page
        assert field.help.replace("|", "\\|") in page
