"""What an episode's environment and rewards left: it comes back from the store, its bytes once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Blob, Trajectory

Make = Callable[..., Trajectory]
STATE = Blob.of(b'{"form":"text","text":"here"}')
FILE = Blob.of(b"\x00\xff bytes")
LARGE = Blob.too_large(2**21)


TOOLS = Blob.of(b'[{"type":"function","function":{"name":"add"}}]')


def lived(make: Make) -> Trajectory:
    one = make(0)
    turn = replace(
        one.turns[0],
        started_at=1_700_000_000.25,
        observed_info={"level": 1},
        state=STATE,
        files={"a/b.bin": FILE, "big": LARGE, "gone": None},
        offered_tools=TOOLS,
    )
    return replace(
        one,
        turns=(turn, replace(one.turns[0], index=1, parent=0, state=STATE)),
        reasons={"judge": {"prompt": "good?", "answer": "7"}},
        last_observed=({"role": "user", "content": "bye"},),
        last_info={"won": True},
        first_state=STATE,
    )


@pytest.mark.parametrize("sealed", [True, False])
def test_states_files_reasons_and_last_words_come_back(
    run: RunDirectory, make: Make, sealed: bool
) -> None:
    written = lived(make)
    with TrajectoryWriter(run) as writer:
        writer.write(written, 0)
        writer.flush()
        if sealed:
            writer.seal(0)
            writer.flush()
        read = TrajectoryReader(run).get("0-0-0").trajectory
    first, second = read.turns
    assert (first.started_at, first.observed_info) == (1_700_000_000.25, {"level": 1})
    assert (first.state, second.state, read.first_state, read.last_state) == (STATE,) * 4
    assert first.files == {"a/b.bin": FILE, "big": LARGE, "gone": None}
    assert first.offered_tools == TOOLS
    assert (second.files, second.observed_info, second.offered_tools) == ({}, {}, None)
    assert read.reasons == written.reasons
    assert (read.last_observed, read.last_info) == (written.last_observed, {"won": True})
    assert first.state is not None
    assert first.state.data is None
    assert sorted(path.name for path in run.blobs_folder.iterdir()) == sorted(
        (STATE.sha256, FILE.sha256, TOOLS.sha256)
    )
    assert run.read_blob(STATE.sha256) == STATE.data
    assert run.read_blob(TOOLS.sha256) == TOOLS.data


def test_an_episode_without_them_takes_no_room(run: RunDirectory, make: Make) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(make(0), 0)
    assert list(run.blobs_folder.iterdir()) == []


def test_secrets_are_masked_in_states_files_and_reasons(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "hunter2-hunter2")
    run = RunDirectory.create(tmp_path / "masked")
    secret = Blob.of(b'{"key":"hunter2-hunter2"}')
    one = replace(
        make(0),
        first_state=secret,
        reasons={"judge": "hunter2-hunter2"},
        last_info={"k": "ok"},
    )
    turn = replace(one.turns[0], files={".env": Blob.of(b"\xffKEY=hunter2-hunter2")})
    with TrajectoryWriter(run) as writer:
        writer.write(replace(one, turns=(turn,)), 0)
    read = TrajectoryReader(run).get("0-0-0").trajectory
    file = read.turns[0].files[".env"]
    assert read.first_state is not None
    assert file is not None
    assert run.read_blob(read.first_state.sha256) == b'{"key":"<masked:JUDGE_API_KEY>"}'
    assert run.read_blob(file.sha256) == b"\xffKEY=<masked:JUDGE_API_KEY>"
    assert file.num_bytes == len(b"\xffKEY=<masked:JUDGE_API_KEY>")
    assert read.reasons == {"judge": "<masked:JUDGE_API_KEY>"}
    kept = [path.read_bytes() for path in run.root.rglob("*") if path.is_file()]
    assert not any(b"hunter2" in data for data in kept)
