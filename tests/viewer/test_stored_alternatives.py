"""Alternatives lie with their tokens from the engine's segments to the viewer's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.store import (
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    encode_trajectory,
)
from agentrl.types import Segment, SegmentKind, Task, Trajectory, alternatives_side
from agentrl.viewer.runs.stored_row import StoredRow
from tests.kit.episodes import sampled as made_segment
from tests.kit.episodes import trajectory, turn

ASKED = {"role": "user", "content": "How much?"}
EXPERTS = "experts"


def sampled(
    tokens: Sequence[int], width: int, *, experts: bool = False, version: int = 1
) -> Segment:
    """A completion in which the alternatives of token t are t, t + 1, ...; none for width 0."""
    ids = np.array(tokens, np.int32)
    offsets = np.arange(width, dtype=np.int32)
    likely = ids[:, None] + offsets
    logprobs = np.broadcast_to(-(offsets + 1.0).astype(np.float32), likely.shape)
    side = {EXPERTS: np.repeat(ids.astype(np.int16)[:, None], 3, 1)} if experts else {}
    side |= alternatives_side(likely, logprobs)
    return made_segment(ids, -1.0, version, side=side)


def episode(turns: Sequence[tuple[int | None, Sequence[Segment]]]) -> Trajectory:
    """Turns by their parent, each after three tokens of the template."""
    context = [Segment(SegmentKind.TEMPLATE, np.array([900, 901, 902]))]
    made = (
        turn(index, context, completion, "x", parent, observed=(ASKED,))
        for index, (parent, completion) in enumerate(turns)
    )
    return trajectory(*made, task=Task("t", (ASKED,)), rewards={"r": 1.0}, reward=1.0)


def assert_alternatives_are_their_tokens(row: StoredRow, widths: Sequence[int]) -> None:
    """``widths`` has an entry for each sampled token."""
    found = row.alternatives
    wanted = np.array(widths, np.int64)
    if not wanted.any():
        assert found is None
        return
    assert found is not None
    positions = row.policy_positions[wanted > 0]
    assert found.positions.tolist() == positions.tolist()
    for place, width in enumerate(wanted[wanted > 0].tolist()):
        own = int(row.arrays.token_ids[found.positions[place]])
        padding = [-1] * (int(wanted.max()) - width)
        assert found.ids[place].tolist() == [*range(own, own + width), *padding]
        assert found.logprobs[place, :width].tolist() == [-1.0 - n for n in range(width)]


segments = st.tuples(
    st.lists(st.integers(0, 800), max_size=4), st.sampled_from([0, 0, 1, 5]), st.booleans()
)
completions = st.lists(segments, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 9), completions), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_alternative_stands_at_its_token(turns: list) -> None:
    """Branches, several versions, aborted turns without a token, other side arrays, gaps."""
    made = []
    widths: list[int] = []
    for index, (parent, parts) in enumerate(turns):
        made.append(
            (
                parent % index if index else None,
                [
                    sampled(tokens, width, experts=experts)
                    for tokens, width, experts in parts
                ],
            )
        )
        widths += [width for tokens, width, _ in parts for _ in tokens]
    row, arrays = encode_trajectory(episode(made), step=1, recorded_at=0.0)
    assert_alternatives_are_their_tokens(StoredRow(row, arrays, ()), widths)
    bare = StoredRow(row, arrays, ()).without_side()
    assert bare.alternatives is None
    assert bare.arrays.side == b""


def test_they_outlive_sealing(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    widths = [5, 5, 5, 5, 3, 0]
    trajectory = episode(
        [
            (None, [sampled([11, 12], 5), sampled([13], 5, experts=True, version=2)]),
            (0, [sampled([21], 5), sampled([22], 3)]),
            (0, [sampled([31], 0)]),
        ]
    )
    with TrajectoryWriter(run) as writer:
        writer.write(trajectory, 1)
        writer.flush()
        for sealed in (False, True):
            if sealed:
                writer.seal(1)
                writer.flush()
            assert any(run.sealed_folder.rglob("*.parquet")) == sealed
            reader = TrajectoryReader(run)
            row, arrays = reader.row("0-0-0")
            assert_alternatives_are_their_tokens(StoredRow(row, arrays, ()), widths)
            for turn, read in zip(
                trajectory.turns, reader.get("0-0-0").trajectory.turns, strict=True
            ):
                for own, other in zip(turn.completion, read.completion, strict=True):
                    assert own.side.keys() == other.side.keys()
                    assert all(
                        (own.side[name] == other.side[name]).all() for name in own.side
                    )
