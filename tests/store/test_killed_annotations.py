"""A writer that is killed at any moment loses nothing that was flushed, annotations included, and
the run opens, in the viewer too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryWriter
from benchmarks.viewers.kills import Findings, kill_often, look
from tests.store.killed_writer import A_STEP, episode, learned


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 200 kills are ``python -m benchmarks.viewer --only kills``
    # one index sees all of it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = kill_often(run, kills=20, seed=0)
    assert found.faults == {}
    assert found.flushed > 20


def test_what_a_kill_would_lose_is_counted(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with TrajectoryWriter(run) as writer:
        for group in range(2 * A_STEP):
            writer.write(episode(group), group // A_STEP)
            if group % A_STEP < A_STEP - 1:
                writer.annotate(learned(group, group // A_STEP))
        writer.seal(0)
        writer.seal(1)
    found = Findings()
    look(run, {0, 1}, found)
    assert found.faults == {}
    shard = run.shard_path(0, "driver", 1)
    shard.write_bytes(shard.read_bytes()[:-100])
    look(run, {0, 1}, found)
    assert found.faults == {"lost": A_STEP, "damaged": 1, "not_viewed": 1}
