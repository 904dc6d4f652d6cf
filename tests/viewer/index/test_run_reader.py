"""A trajectory is read from the file in which the index has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store import NoTrajectoryError, RunDirectory, TrajectoryWriter
from agentrl.viewer.runs.open_run import OpenRun

from .conftest import Make


@pytest.fixture
def opened(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenRun]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = OpenRun(run, "key", "name")
    yield made
    made.close()


def test_to_read_one_opens_no_other_shard(
    run: RunDirectory, make: Make, opened: OpenRun
) -> None:
    with TrajectoryWriter(run) as writer:
        for group in (1, 2):
            writer.write(make(group), step=group)
            writer.seal(group)
    assert opened.index().page().total == 2
    run.shard_path(2, "driver", 1).write_bytes(b"no shard any more")

    assert opened.row("1-0-0").columns["group_index"] == 1
    assert opened.reader.damage == []


def test_what_is_sealed_meanwhile_is_read_where_it_is_now(
    run: RunDirectory, make: Make, opened: OpenRun
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1, text="one"), step=1)
        writer.flush()
        assert opened.row("1-0-0").columns["final_text"] == "one"
        writer.write(make(2, text="two"), step=1)
        writer.flush()
        assert opened.row("2-0-0").columns["final_text"] == "two"  # the file of lines grew
        writer.seal(1)
        writer.flush()
        assert opened.row("1-0-0").columns["final_text"] == "one"


def test_of_two_records_the_newest_is_read(
    run: RunDirectory, make: Make, opened: OpenRun
) -> None:
    for name, text in (("first", "old"), ("second", "new")):
        with TrajectoryWriter(run, name) as writer:
            writer.write(make(1, text=text), step=1)

    assert opened.row("1-0-0").columns["final_text"] == "new"


def test_an_id_that_the_run_lacks_is_not_found(
    run: RunDirectory, make: Make, opened: OpenRun
) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(1), step=1)

    with pytest.raises(NoTrajectoryError, match="has no trajectory '9-0-0'"):
        opened.row("9-0-0")
