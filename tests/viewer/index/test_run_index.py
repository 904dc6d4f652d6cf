"""The index of a run: what is in it, when, and in which order."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.errors import ConfigError, StoreError
from agentrl.store import Annotation, KeepSpec, RunDirectory, TrajectoryWriter
from agentrl.types import Status
from agentrl.viewer.index import RunIndex, parse_query, text_search
from agentrl.viewer.notes import NoteBook

from .conftest import Make


def test_a_live_trajectory_is_found_as_soon_as_it_reached_its_file(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=3)
        writer.flush()
        assert index.refresh() == 1
        writer.write(make(2), step=3)
        writer.flush()
        assert index.refresh() == 1
        assert index.ids("step:3", "group") == ["1-0-0", "2-0-0"]
    index.refresh()  # sealed now
    assert index.ids("step:3", "group") == ["1-0-0", "2-0-0"]
    assert index.refresh() == 0


def test_what_another_process_took_is_there_at_once(
    run: RunDirectory, make: Make, index: RunIndex, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    index.refresh()
    with RunIndex(run, tmp_path / "cache") as second:
        assert second.page().total == 1
        assert second.refresh() == 0


def test_of_two_records_of_one_id_the_newest_counts(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run, "first") as writer:
        writer.write(make(1, reward=0.0), step=1)
    with TrajectoryWriter(run, "second") as writer:
        writer.write(make(1, reward=0.5), step=2)
    index.refresh()
    (row,) = index.page().rows
    assert (row["step"], row["reward"]) == (2, 0.5)


def test_pages_are_sorted_and_what_has_no_value_comes_last(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for group, reward in enumerate((0.5, None, 1.0, 0.0)):
            writer.write(make(group, reward=reward), step=group)
    index.refresh()
    page = index.page(sort="-reward", offset=1, limit=2)
    assert page.total == 4
    assert [row["reward"] for row in page.rows] == [0.5, 0.0]
    assert [row["reward"] for row in index.page(sort="reward").rows] == [
        0.0,
        0.5,
        1.0,
        None,
    ]
    with pytest.raises(ConfigError, match="did you mean 'reward'"):
        index.page(sort="rewrd")


def test_rows_have_what_the_ledger_and_notes_say(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for group in (1, 2):
            writer.write(make(group, status=Status("failed", "env"), reward=None), step=4)
            writer.write(make(group, attempt=1), step=4)
    index.refresh()
    rows = [
        {
            "n": 0,
            "attempt": 0,
            "group_index": 1,
            "rollout_indices": [0],
            "to": "trained",
            "step": 5,
        },
        {
            "n": 1,
            "attempt": 0,
            "group_index": 2,
            "rollout_indices": [0],
            "to": "dropped",
            "reason": "stale",
        },
    ]
    run.ledger_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes = NoteBook(run.notes_folder, "ada")
    note = notes.add({"trajectory": "1-0-1", "labels": ["odd", "keep"], "text": "look"})
    assert index.refresh() == 2
    assert index.ids("trained_step:5") == ["1-0-1"]
    assert index.ids("drop:stale") == ["2-0-1"]
    assert index.page("note:odd").rows[0]["note"] == ["keep", "odd"]
    notes.delete(note.id)
    with run.ledger_path.open("a") as file:
        file.write(
            json.dumps(
                {
                    "attempt": 0,
                    "group_index": 1,
                    "rollout_indices": [0],
                    "to": "rolled_back",
                }
            )
        )
        file.write("\n")
    index.refresh()
    assert index.ids("note:any") == []
    assert index.ids("trained_step:any") == []


def test_a_note_that_was_there_before_its_trajectory_is_joined(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    NoteBook(run.notes_folder, "ada").add({"trajectory": "1-0-0", "labels": ["x"]})
    index.refresh()
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    index.refresh()
    assert index.ids("note:x") == ["1-0-0"]


def test_facets_count_what_a_query_holds_for(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    statuses = [
        Status("terminated"),
        Status("terminated"),
        Status("truncated", "max_turns"),
    ]
    with TrajectoryWriter(run) as writer:
        for group in range(9):
            writer.write(
                make(group, status=statuses[group % 3], reward=group / 8), step=group // 3
            )
        writer.flush()
        index.refresh()
        assert index.facets()["columns"]["status"] == [["terminated", 6], ["truncated", 3]]
        writer.write(make(9), step=9)
    index.refresh()
    found = index.facets("step<3")
    assert dict(found["columns"]["status"]) == Counter(terminated=6, truncated=3)
    assert found["histograms"]["step"] == {
        "edges": [0.0, 1.0, 2.0, 3.0],
        "counts": [3, 3, 3],
    }
    reward = found["histograms"]["reward"]
    assert (reward["edges"][0], reward["edges"][-1], sum(reward["counts"])) == (0.0, 1.0, 9)
    assert index.facets("step:99")["columns"]["status"] == []


def test_the_histogram_of_the_largest_numbers_counts_them(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for group, distance in enumerate((-1.7e308, 0.0, 1.7e308)):
            writer.write(make(group, rewards={"distance": distance}), step=1)
    index.refresh()
    found = index.facets(names=["reward.distance"])["histograms"]["reward.distance"]
    assert (found["edges"][0], found["edges"][-1]) == (-1.7e308, 1.7e308)
    assert [place for place, count in enumerate(found["counts"]) if count] == [0, 10, 19]


@pytest.mark.parametrize(
    ("needle", "found"),
    [
        ('"no such file"', ["1-0-0"]),  # lower case: in any case
        ('"No such file"', ["1-0-0"]),
        ('"NO SUCH FILE"', []),
        ('text:"say \\"hi\\""', ["2-0-0"]),
        ('"back\\\\slash"', ["2-0-0"]),
        ('"ünïcode"', ["2-0-0"]),
        ("how", ["1-0-0", "2-0-0", "4-0-0", "5-0-0"]),
        ("observed", []),  # a word of the format, in no text
        ("num_tokens", []),
        ("null", []),
        ("assistant", []),  # a value of the format
        ("tooled", ["5-0-0"]),  # a whole text
        ("robot", ["5-0-0"]),  # as the format spells a role, in a text
        ("0", ["4-0-0"]),  # a number of the format; the final text names half a pair by it
        ("nback", []),  # a letter of an escape
        ("1b", []),
        ('"content: it"', ["3-0-0"]),  # looks like a key
        ('"content"', ["3-0-0", "5-0-0"]),
        ('"tool that"', ["3-0-0"]),
        ('"of parts"', ["3-0-0"]),
        ("type", []),  # a key of a part
        ('"the rest é"', ["4-0-0"]),
        ('"[31mred"', ["4-0-0"]),
        ('"\x1b[31mRed"', ["4-0-0"]),  # JSON spells its first character in two ways
        ('"a.b"', []),  # no pattern
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_text_is_found_live_and_sealed(
    run: RunDirectory,
    make: Make,
    index: RunIndex,
    needle: str,
    found: list[str],
    sealed: bool,
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1, output="ls: No such file or directory"), step=1)
        writer.write(make(2, text='say "hi"\nback\\slash Ünïcode aXb'), step=1)
        parts = [{"type": "text", "text": "a message of parts"}]
        writer.write(make(3, text="content: it is a tool that", question=parts), step=1)
        # DuckDB refuses the JSON of half a surrogate pair
        writer.write(make(4, text="\ud800 and", output="the rest É \x1b[31mRed"), step=1)
        writer.write(make(5, text="tooled", output='"robot","content":'), step=1)
        if sealed:
            writer.seal(1)
        writer.flush()
        index.refresh()
        assert index.ids(needle, "group") == found


def test_a_search_that_names_the_turns_keys_parses_none_of_them(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
        writer.seal(1)
    shard = run.shard_path(1, "driver", 1)
    table = pq.read_table(shard)
    turns = table["turns"][0].as_py()
    place = table.schema.get_field_index("turns")
    broken = pa.array([turns.replace('"calls":', '"calls":::')], pa.string())
    pq.write_table(table.set_column(place, table.schema.field(place), broken), shard)
    index.refresh()
    assert index.ids("observed") == []
    assert index.ids("assistant") == []
    with pytest.raises(StoreError, match="cannot be searched"):
        index.ids("main")


def test_lists_are_sorted_by_an_index_once_the_first_rows_are_there(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    index.refresh()
    with sqlite3.connect(index.place) as database:
        for name in ("status", "ended_at", "tool_errors", "drop", "step", "reward"):
            sql = (
                f'EXPLAIN QUERY PLAN SELECT key FROM trajectories ORDER BY "{name}" LIMIT 1'
            )
            ((*_, plan),) = database.execute(sql)
            assert f"by_{name}" in plan
        step = parse_query("step:1")  # as the neighbours of a trajectory ask
        sql = f"EXPLAIN QUERY PLAN SELECT id FROM trajectories WHERE {step.sql}"
        ((*_, plan),) = database.execute(sql, step.parameters)
        assert "by_step" in plan


def test_searches_that_find_much_push_out_older_ones(
    run: RunDirectory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_search, "_KEPT_MATCHES", 3)
    with TrajectoryWriter(run) as writer:
        for group in range(2):
            writer.write(make(group), step=1)
    shards = [run.shard_path(1, "driver", 1)]
    searches = text_search.TextSearch()
    for needle in ("done", "nowhere", "much"):
        found = searches.search(needle, shards, [])
        assert len(found) == (0 if needle == "nowhere" else 2)
    assert list(searches._found) == ["nowhere", "much"]


def test_a_search_finds_what_came_since(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for group in range(3):
            writer.write(make(group, text="needle"), step=group)
            writer.seal(group)
            writer.flush()
            index.refresh()
            assert index.page("needle -step:0").total == group


def test_a_damaged_shard_is_named_and_passed_over(
    run: RunDirectory, make: Make, index: RunIndex, caplog: pytest.LogCaptureFixture
) -> None:
    with TrajectoryWriter(run) as writer:
        for group in range(2):
            writer.write(make(group), step=group)
            writer.seal(group)
    shard = run.shard_path(0, "driver", 1)
    shard.write_bytes(shard.read_bytes()[:100])
    index.refresh()
    assert index.ids() == ["1-0-0"]
    assert index.ids("done") == ["1-0-0"]
    (damage,) = index.damage()
    assert str(shard) in damage
    assert [r.event for r in caplog.records if hasattr(r, "event")] == ["damaged_part"]


def test_a_torn_live_line_waits_for_its_end(
    run: RunDirectory, make: Make, index: RunIndex, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
        writer.flush()
        live = run.live_folder / "step=000001" / "driver-0001.jsonl"
        whole = live.read_bytes()
        arrays = live.with_suffix(".zst").read_bytes()
    other = RunDirectory.create(tmp_path / "other")
    path = other.live_folder / "step=000001" / "driver-0001.jsonl"
    path.parent.mkdir(parents=True)
    path.with_suffix(".zst").write_bytes(arrays)
    path.write_bytes(whole[:50])
    with RunIndex(other, tmp_path / "cache") as opened:
        assert opened.refresh() == 0
        path.write_bytes(whole)
        assert opened.refresh() == 1


def test_what_is_no_longer_kept_goes(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        for group in range(3):
            writer.write(make(group, text="needle"), step=group)
            writer.seal(group)
    index.refresh()
    assert len(index.ids("needle")) == 3
    shutil.rmtree(run.shard_path(1, "driver", 1).parent)
    index.refresh()
    assert index.ids("needle", "step") == ["0-0-0", "2-0-0"]
    assert sum(count for _, count in index.facets()["columns"]["status"]) == 2


def test_a_shard_that_store_keep_shrank_is_listed_anew(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    keep = KeepSpec(last_steps=2, reward_above=0.5)
    with TrajectoryWriter(run, keep=keep) as writer:
        for step in range(1, 4):
            for place in range(2):
                rewarded = make(
                    2 * step + place, text=f"needle {step}", reward=float(place)
                )
                writer.write(rewarded, step)
            writer.seal(step)
            writer.flush()
            index.refresh()
            assert len(index.ids("needle")) == [0, 2, 4, 5][step]
    assert index.ids("needle", "group") == [f"{n}-0-0" for n in (3, 4, 5, 6, 7)]
    assert index.ids('text:"needle 1"') == ["3-0-0"]
    assert index.damage() == []
    assert sum(count for _, count in index.facets()["columns"]["status"]) == 5


def test_a_run_that_was_moved_is_told_and_keeps_its_rows(
    run: RunDirectory, make: Make, index: RunIndex, tmp_path: Path
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    index.refresh()
    run.root.rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="moved or removed"):
        index.refresh()
    assert index.page().total == 1


def ledger_lines(run: RunDirectory, count: int, **to: object) -> None:
    with run.ledger_path.open("a") as file:
        for group in range(count):
            for row in ({"to": "running"}, to):
                line = {"attempt": 0, "group_index": group, "rollout_indices": [0], **row}
                file.write(json.dumps(line) + "\n")


def replaced(run: RunDirectory, record: Mapping[str, object]) -> None:
    """Another run in the folder of one that was deleted."""
    shutil.rmtree(run.root)
    RunDirectory.create(run.root, record)


@pytest.mark.parametrize("record", [{"id": "b"}, {"seed": 2}], ids=["id", "without an id"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_a_run_in_the_place_of_a_deleted_one_has_nothing_of_it(
    run: RunDirectory,
    make: Make,
    tmp_path: Path,
    record: Mapping[str, object],
    is_open: bool,
) -> None:
    replaced(run, {**record, "id": "a"} if "id" in record else {})
    first = RunIndex(run, tmp_path / "cache")
    with TrajectoryWriter(run) as writer:
        for group in range(3):
            writer.write(make(group, reward=0.0), step=1)
            writer.annotate(Annotation(f"{group}-0-0", 1, values={"credit": 9.0}))
        writer.flush()
        ledger_lines(run, 3, to="dropped", reason="no_spread")
        assert first.refresh() == 3
        assert first.page("needle").total == 0
    if not is_open:
        first.close()
    replaced(run, record)
    with TrajectoryWriter(run) as writer:
        for group in range(8):
            writer.write(make(group, reward=1.0, text="a needle" * 9), step=1)
            values = {"verdict": 2.0, "much": "x" * 99}
            writer.annotate(Annotation(f"{group}-0-0", 1, values=values))
        writer.flush()
        ledger_lines(run, 8, to="trained", step=1)
        with first if is_open else RunIndex(run, tmp_path / "cache") as index:
            assert index.refresh() == 8
            rows = index.page(sort="group").rows
            assert [row["group"] for row in rows] == list(range(8))
            names = ("reward", "drop", "trained_step", "credit")
            assert {tuple(one[name] for name in names) for one in rows} == {
                (1.0, "", 1, None)
            }
            assert {row["annotation.verdict"] for row in rows} == {2.0}
            assert index.page("needle").total == 8
            assert index.damage() == []
            assert index.refresh() == 0
    assert len(list((tmp_path / "cache").glob("*.sqlite"))) == 1


def test_a_resumed_run_keeps_its_index(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    replaced(run, {"id": "a"})
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)
    assert index.refresh() == 1
    run.record_path.write_text(
        json.dumps({**run.read_record(), "resumed": [{"time": "now"}]})
    )
    assert index.refresh() == 0
    assert index.ids() == ["1-0-0"]


def test_a_ledger_that_was_replaced_by_a_longer_one_is_read_from_its_beginning(
    run: RunDirectory, make: Make, index: RunIndex
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), step=1)
    ledger_lines(run, 1, to="dropped", reason="no_spread")
    assert index.refresh() == 1
    run.ledger_path.unlink()
    ledger_lines(run, 8, to="trained", step=12345)
    index.refresh()
    assert index.ids("trained_step:12345") == ["0-0-0"]
    assert index.damage() == []
