"""Images in a run directory: each once, by its hash, and never inside a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import StoreError
from agentrl.store import (
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    encode_trajectory,
)
from agentrl.types import (
    CallRecord,
    Image,
    MediaSpan,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from tests.tiny_vision import picture

ASKED, GIVEN = Image.read(picture()), Image.read(picture(seed=1))


def with_pictures(group_index: int = 0) -> Trajectory:
    """One turn that was asked with an image, and whose tool gave another."""
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "image": ASKED}]
    user: Any = {"role": "user", "content": content}
    prompt = Segment(
        SegmentKind.PROMPT, np.arange(8), media=(MediaSpan(1, 6, ASKED.sha256, "image"),)
    )
    policy = Segment(SegmentKind.POLICY, np.arange(2), np.zeros(2, np.float32) - 1, 0)
    called = ToolCall("call_0", "look", {})
    turn = Turn(
        index=0,
        parent=None,
        context=(prompt,),
        completion=(policy,),
        text="",
        message={"role": "assistant", "content": "", "tool_calls": [called.openai()]},
        observed=(user,),
        images=(ASKED,),
        calls=(
            CallRecord(called, None, ToolResult("call_0", "look", "seen", images=(GIVEN,))),
        ),
    )
    return Trajectory(
        Task("t", (user,)),
        group_index,
        0,
        0,
        "train",
        (turn,),
        Status("terminated"),
        {},
        1.0,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def test_each_image_is_kept_once(run: RunDirectory) -> None:
    with TrajectoryWriter(run) as writer:
        for group_index in range(3):
            writer.write(with_pictures(group_index), step=0)
    assert sorted(path.name for path in run.blobs_folder.iterdir()) == sorted(
        [ASKED.sha256, GIVEN.sha256]
    )
    assert run.read_blob(ASKED.sha256) == ASKED.data


def test_a_trajectory_comes_back_with_its_images_by_name(run: RunDirectory) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(with_pictures(), step=0)
    found = TrajectoryReader(run).get("0-0-0").trajectory
    given = with_pictures()
    assert found.images() == given.images()
    assert found.turns[0].observed == given.turns[0].observed
    assert found.turns[0].context[0].media == given.turns[0].context[0].media
    assert found.turns[0].calls == given.turns[0].calls
    assert found.task == given.task
    assert all(image.data is None for image in found.images().values())


def test_no_row_holds_an_image() -> None:
    row, _ = encode_trajectory(with_pictures(), step=0, recorded_at=0.0)
    assert max(len(column) for column in row.values() if isinstance(column, str)) < 3000
    assert row["prompt"] == f"What is it?[{ASKED}]"


def test_a_damaged_image_is_named(run: RunDirectory) -> None:
    with TrajectoryWriter(run) as writer:
        writer.write(with_pictures(), step=0)
    (run.blobs_folder / ASKED.sha256).write_bytes(b"other")
    with pytest.raises(StoreError, match="is damaged"):
        run.read_blob(ASKED.sha256)
