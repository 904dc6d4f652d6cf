"""A viewer of a run that lies on a read-only disk, whose cache is on a full one."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store import RunDirectory
from tests.store.test_killed_writer import in_namespace

LOOK = """
    import logging, sys
    from pathlib import Path
    from tests.viewer.server.viewers import Client, viewing
    class Told(logging.Handler):
        def emit(self, record):
            print(record.event, record.why)
    logging.getLogger("agentrl.viewer.index").addHandler(Told())
    with viewing(Path(sys.argv[1])) as address, Client(address) as client:
        key = client.get("/api/runs").json()["runs"][0]["key"]
        print(client.of_run("/trajectories", query="reward>0").json()["total"])
        print(client.of_run("/tokens", id="2-0-0").status_code)
        note = client.post(f"/api/runs/{key}/notes", json={"trajectory": "2-0-0", "text": "a"})
        print(note.status_code, note.json()["error"])
"""


def test_a_read_only_run_is_shown_though_the_disk_of_the_cache_is_full(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the test runs as root too, whom no mode of a folder stops
    there, cache = str(run.root), tmp_path / "cache"
    cache.mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    full = ["--size", "16384", "--tmpfs", str(cache)]
    moved, total, tokens, refused = in_namespace(
        ["--ro-bind", there, there, *full], LOOK, there
    )
    assert moved.startswith("index_moved ")
    assert (total, tokens) == ("6", "200")
    assert refused.startswith("403 ")
    assert "make it writable" in refused
    assert list(tmp_path.glob("temporary/agentrl-index-*/*.sqlite"))
