"""The maker of the demo: what it plants stays aligned with what was learned of each token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentrl.store import Annotation, AnnotationColumn, RunDirectory, TrajectoryReader
from agentrl.types import Segment, SegmentKind, Turn, alternatives_side
from benchmarks.demo.recorded_run import RecordedRun
from tests.kit.episodes import sampled, trajectory, turn

pytestmark = pytest.mark.tooling


def told(index: int, *ids: int) -> Turn:
    context = Segment(
        SegmentKind.TEMPLATE if index else SegmentKind.PROMPT, np.array([9, 9])
    )
    likely = np.array([[own, own + 1] for own in ids], np.int32)
    side = alternatives_side(likely, np.full(likely.shape, -0.5, np.float32))
    return turn(index, [context], [sampled(ids, version=1, side=side)], "t")


@pytest.fixture
def recorded() -> RecordedRun:
    arrays = {
        "token_loss": np.array([1.0, 2.0, 3.0, 4.0], np.float32),
        "loss_weight": np.full(4, 0.25, np.float32),
        "loss_reason": np.zeros(4, np.int8),
        "old_logprobs": np.full(4, -0.5, np.float32),
    }
    played = trajectory(told(0, 1, 2), told(1, 3, 4), reward=1.0)
    return RecordedRun(
        record={"seed": 0},
        texts={"ledger.jsonl": ""},
        metrics=[{"stage": "rl", "step": 1}],
        events=[],
        columns=[AnnotationColumn(name, "token") for name in arrays],
        steps={"0-0-0": 1},
        trajectories={"0-0-0": played},
        annotations={"0-0-0": [Annotation("0-0-0", 1, arrays=arrays)]},
        blobs={},
    )


def test_inserted_tokens_were_not_trained(recorded: RecordedRun) -> None:
    recorded.splice("0-0-0", 1, 1, 0, [7, 8])

    (segment,) = recorded.trajectories["0-0-0"].turns[1].completion
    arrays = recorded.annotations["0-0-0"][0].arrays
    assert segment.token_ids.tolist() == [3, 7, 8, 4]
    assert arrays["loss_weight"].tolist() == [0.25, 0.25, 0.25, 0.0, 0.0, 0.25]
    assert arrays["token_loss"].tolist() == [1.0, 2.0, 3.0, 0.0, 0.0, 4.0]
    assert arrays["loss_reason"].tolist() == [0, 0, 0, 1, 1, 0]
    assert np.isnan(arrays["old_logprobs"]).tolist() == [False] * 3 + [True] * 2 + [False]


def test_replaced_tokens_go(recorded: RecordedRun) -> None:
    recorded.splice("0-0-0", 0, 0, 1, [7, 8, 6])

    (segment,) = recorded.trajectories["0-0-0"].turns[0].completion
    assert segment.token_ids.tolist() == [7, 8, 6, 2]
    assert segment.alternatives is not None
    assert segment.alternatives[0].tolist() == [*[[-1, -1]] * 3, [2, 3]]
    assert np.isneginf(segment.alternatives[1][:3]).all()
    assert recorded.annotations["0-0-0"][0].arrays["token_loss"].tolist() == [
        0,
        0,
        0,
        2,
        3,
        4,
    ]


def test_what_is_written_is_read_again(recorded: RecordedRun, tmp_path: Path) -> None:
    recorded.splice("0-0-0", 1, 0, 0, [5])

    recorded.write(tmp_path / "run")

    run = RunDirectory.open(tmp_path / "run")
    stored = TrajectoryReader(run).get("0-0-0")
    assert stored.trajectory.sequence(1).tolist() == [9, 9, 1, 2, 9, 9, 5, 3, 4]
    assert stored.annotations[0].arrays["token_loss"].tolist() == [1, 2, 0, 3, 4]
