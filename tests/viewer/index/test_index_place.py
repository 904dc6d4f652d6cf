"""Where an index lies, and what becomes of it when its file or its folder fails."""

from __future__ import annotations

import fcntl
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.viewer.index import RunIndex, database
from agentrl.viewer.index.database import MEMORY, file_system_type, index_places
from tests.kit.waiting import DEADLINE_S

from .conftest import Make

MOUNTS = """\
22 1 252:1 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
24 23 0:41 / /home/ada/local\\040disk rw - xfs /dev/sdb rw
25 22 0:42 / /scratch rw - lustre server@tcp:/scratch rw
"""


@pytest.fixture
def written(run: RunDirectory, make: Make) -> RunDirectory:
    with TrajectoryWriter(run) as writer:
        for group in range(3):
            writer.write(make(group), step=group)
    return run


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/x", "ext4"),
        ("/home/ada/.cache", "nfs4"),
        ("/home/ada/local disk/cache", "xfs"),
        ("/scratch/ada", "lustre"),
        ("/homes", "ext4"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system_type(Path(path), MOUNTS) == kind


def test_no_index_lies_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "local"))
    (tmp_path / "local").mkdir()
    monkeypatch.setattr(database.tempfile, "tempdir", None)
    monkeypatch.setattr(
        database,
        "file_system_type",
        lambda path: "ext4" if "local" in str(path) else "nfs4",
    )
    places = list(index_places(tmp_path / "run", tmp_path / "cache"))
    assert [Path(one).parent.parent for one in places[:-1]] == [tmp_path / "local"]
    assert places[-1] == MEMORY
    assert events(caplog) == ["index_moved"]
    assert "nfs4" in caplog.text


def test_without_any_folder_the_index_lies_in_memory(
    written: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(database, "_temporary", lambda: tmp_path / "file" / "nothing")
    with RunIndex(written, tmp_path / "file" / "cache") as index:
        assert index.place == MEMORY
        assert index.refresh() == 3
        assert index.ids("done", "step") == ["0-0-0", "1-0-0", "2-0-0"]
        assert index.facets()["columns"]["status"] == [["terminated", 3]]


def test_a_full_disk_moves_the_index(
    written: RunDirectory, tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with TrajectoryWriter(written) as writer:
        for group in range(20):
            writer.write(make(group, label="long" * 1000), step=3)
    with RunIndex(written, tmp_path / "cache") as index:
        before = index.place
        # SQLite says of its own bound what it says of the disk's
        index._database.writer.execute("PRAGMA max_page_count = 1")
        assert index.refresh() == 23
        assert index.page().total == 23
        assert index.place != before
        Path(index.place).unlink()
    assert "index_moved" in events(caplog)


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b""])
def test_a_damaged_index_is_made_anew(
    written: RunDirectory, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with RunIndex(written, tmp_path / "cache") as index:
        index.refresh()
        path = Path(index.place)
    path.write_bytes(content)
    with RunIndex(written, tmp_path / "cache") as index:
        assert index.refresh() == 3
        assert index.page().total == 3
    assert events(caplog) == (["index_rebuilt"] if content else [])


def test_an_index_that_is_damaged_while_it_is_read_is_made_anew(
    written: RunDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunIndex(written, tmp_path / "cache") as index:
        index.refresh()
        path = Path(index.place)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with RunIndex(written, tmp_path / "cache") as index:
        assert index.page().total == 3
    assert "index_rebuilt" in events(caplog)


def test_an_index_of_another_version_is_made_anew(
    written: RunDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunIndex(written, tmp_path / "cache") as index:
        path = Path(index.place)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE trajectories")
        database.execute("PRAGMA user_version = 999")
    database.close()
    with RunIndex(written, tmp_path / "cache") as index:
        assert index.refresh() == 3
    assert "version 999" in caplog.text


def test_one_process_writes_and_others_read_meanwhile(
    written: RunDirectory, tmp_path: Path, make: Make
) -> None:
    with RunIndex(written, tmp_path / "cache") as index:
        index.refresh()
        with TrajectoryWriter(written) as writer:
            writer.write(make(9), step=9)
        with open(index.place + ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert index.refresh() == 0
            assert index.page().total == 3
        assert index.refresh() == 1


@pytest.mark.slow
def test_processes_that_open_a_new_index_at_one_time_agree(
    written: RunDirectory, tmp_path: Path
) -> None:
    source = (
        "import sys; from pathlib import Path\n"
        "from agentrl.store import RunDirectory\n"
        "from agentrl.viewer.index import RunIndex\n"
        "index = RunIndex(RunDirectory.open(sys.argv[1]), Path(sys.argv[2]))\n"
        "index.refresh(timeout_s=60)\n"
        "print(index.page().total)\n"
    )
    command = [sys.executable, "-c", source, str(written.root), str(tmp_path / "cache")]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate(timeout=DEADLINE_S)[0] for process in started] == [
        "3\n"
    ] * 3


def test_threads_share_an_index(written: RunDirectory, tmp_path: Path, make: Make) -> None:
    totals: list[int] = []
    with (
        RunIndex(written, tmp_path / "cache") as index,
        TrajectoryWriter(written) as writer,
    ):

        def look() -> None:
            for _ in range(20):
                totals.append(index.page("done").total + index.page("status:failed").total)
                index.facets("done")

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for group in range(10, 30):
            writer.write(make(group), step=3)
            writer.flush()
            index.refresh()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert index.page("done").total == 23
    assert len(totals) == 80
    assert set(totals) <= set(range(24))
