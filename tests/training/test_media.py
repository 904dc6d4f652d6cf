"""Images of a batch: through partition, packing and slices, on rollouts that were shown some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from agentrl.controller.recording.skipped_steps import read_shard, write_shard
from agentrl.render import RendererSpec
from agentrl.rollouts import make_batch
from agentrl.training import Layout, partition, sample_weights, shards
from agentrl.training.data.packing import Cut, Packed, PackedMicroBatches
from agentrl.training.data.partition import auxiliary_weights
from agentrl.training.data.prefix_tree import ROOT, PrefixOrder
from agentrl.types import (
    Batch,
    BatchShard,
    Image,
    Message,
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.types.arrays import common_prefix
from agentrl.types.batch import Media
from tests.tiny_vision import picture, write_vision_tokenizer

CPU = torch.device("cpu")
WIDE, OTHER, SMALL = (
    Image.read(one)
    for one in (picture(84, 56), picture(84, 56, seed=2), picture(28, 28, seed=1))
)
"""Of 2 x 3 tokens, of as many, and of one."""
GRIDS = {6: (2, 3), 1: (1, 1)}
QUESTION = "Look at both of them closely, and then tell what is the same in them:"


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """A group of three: two rollouts of one picture, and one of another of the same size."""
    folder = tmp_path_factory.mktemp("vision")
    write_vision_tokenizer(folder)
    renderer = RendererSpec(str(folder), chat_template="chatml").build()
    trajectories = []
    for rollout, shown in enumerate((WIDE, WIDE, OTHER)):
        parts: list[Any] = [{"type": "text", "text": QUESTION}]
        parts += [{"type": "image", "image": one} for one in (shown, SMALL)]
        asked: Message = {"role": "user", "content": parts}
        said = renderer.tokenize(f"answer {rollout}")
        own = Segment(SegmentKind.POLICY, said, np.full(said.size, -1, np.float32), 0)
        turn = Turn(
            index=0,
            parent=None,
            context=renderer.prompt([asked]),
            completion=(own,),
            text="",
            message={"role": "assistant", "content": ""},
            images=(shown, SMALL),
            sampling=SamplingParams(10),
        )
        task = Task("t", (asked,))
        trajectories.append(
            Trajectory(
                task, 0, rollout, 0, "train", (turn,), Status("terminated"), reward=0.0
            )
        )
    group = TrajectoryGroup(0, trajectories[0].task, tuple(trajectories))
    return make_batch([group], credit=np.zeros(3, np.float32))


def shard_of(batch: Batch, *rows: int) -> BatchShard:
    own = np.array(rows)
    micro_batch = tuple(range(own.size))
    return BatchShard(batch.select(own), own, (micro_batch,), np.ones(own.size))


def planes(size: int, media: Media) -> npt.NDArray[np.int64]:
    """Qwen2-VL's positions in time, height and width (arXiv:2409.12191, sec. 2.1)."""
    columns: list[list[int]] = []
    at = 0
    for image in media:
        while len(columns) < image["start"]:
            columns.append([at] * 3)
            at += 1
        height, width = GRIDS[int(image["num_tokens"])]
        columns += [
            [at, at + row, at + place] for row in range(height) for place in range(width)
        ]
        at += max(height, width)
    columns += [[at + more] * 3 for more in range(size - len(columns))]
    return np.array(columns, np.int64).reshape(-1, 3).T


def packed(
    shard: BatchShard, cut: Cut | None = None, *, share_prefixes: bool = True
) -> Packed:
    rows = PackedMicroBatches(
        shard, CPU, share_prefixes=share_prefixes, cut=cut or Cut(), positions_of=planes
    )
    (row,) = rows
    return row


def placeholder(batch: Batch) -> int:
    return int(batch.token_ids[batch.media["start"][0]])


def test_a_batch_names_each_image_and_where_it_is(batch: Batch) -> None:
    names = [[one.sha256, SMALL.sha256] for one in (WIDE, WIDE, OTHER)]
    assert batch.media["sha256"].reshape(3, 2).tolist() == names
    assert batch.media["num_tokens"].tolist() == [6, 1] * 3
    spans = [range(one["start"], one["start"] + one["num_tokens"]) for one in batch.media]
    places = np.flatnonzero(batch.token_ids == placeholder(batch))
    assert places.tolist() == [place for span in spans for place in span]


def test_images_go_with_their_samples(batch: Batch) -> None:
    own = batch.select([2, 0])
    assert own.media["sha256"].tolist() == [
        one.sha256 for one in (OTHER, SMALL, WIDE, SMALL)
    ]
    for one in own.media:
        assert (
            own.token_ids[one["start"] :][: one["num_tokens"]] == placeholder(batch)
        ).all()
    assert own.select([1, 0]).media.tolist() == batch.select([0, 2]).media.tolist()


def test_an_auxiliary_loss_never_reads_placeholders(batch: Batch) -> None:
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=Layout(1, 999, 1e9)
    )
    shown = batch.token_ids == placeholder(batch)
    weights = auxiliary_weights(batch, plan, np.ones(batch.num_tokens, np.bool_))
    assert not weights[shown].any()
    # all others are read but the one that opens each sample
    assert np.count_nonzero(weights) == batch.num_tokens - np.count_nonzero(shown) - 3


def test_samples_begin_alike_up_to_another_image(batch: Batch) -> None:
    first = int(batch.media["start"][0])
    one, same, other = np.split(batch.identities(), batch.cu_seqlens[1:-1])
    assert common_prefix(one, other) == first
    assert common_prefix(one, same) > first + 6 + 1
    # the ids alone would share the other image too
    one, _, other = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
    assert common_prefix(one, other) > first + 6 + 1
    known = PrefixOrder.of(batch.identities(), batch.cu_seqlens, np.zeros(3))
    assert sorted(known.shared[1:])[0] == first - 15


def test_each_coordinate_gets_the_images_of_its_samples(batch: Batch) -> None:
    groups = batch.group[batch.trajectory]
    prefixes = PrefixOrder.of(batch.identities(), batch.cu_seqlens, groups)
    (plan,) = partition(
        batch.lengths, groups, seed=0, layout=Layout(2, 200, 1000.0), prefixes=prefixes
    )
    shown = [WIDE, WIDE, OTHER]
    for shard in shards(
        batch, plan, sample_weights(batch, plan, lambda counts: counts.weight)
    ):
        names = [
            name for row in shard.samples for name in (shown[row].sha256, SMALL.sha256)
        ]
        assert shard.batch.media["sha256"].tolist() == names


def test_a_row_holds_a_shared_image_once_and_another_apart(batch: Batch) -> None:
    row = packed(shard_of(batch, 0, 1, 2))
    assert sorted(row.media["sha256"]) == sorted(
        [WIDE.sha256, OTHER.sha256, SMALL.sha256, SMALL.sha256]
    )
    places = [
        place
        for one in row.media
        for place in range(one["start"], one["start"] + one["num_tokens"])
    ]
    found = np.flatnonzero(row.token_ids.numpy() == placeholder(batch))
    assert places == found.tolist()
    assert sum(span.parent == ROOT for span in row.spans) == 1


def test_positions_have_the_planes_that_the_family_counts(batch: Batch) -> None:
    alone = packed(shard_of(batch, 0))
    first = int(batch.media["start"][0])
    image = alone.positions[:, first : first + 6] - first
    assert image.tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    assert alone.positions[:, first + 6].tolist() == [first + 3] * 3
    for share_prefixes in (True, False):
        row = packed(shard_of(batch, 0, 1, 2), share_prefixes=share_prefixes)
        before = row.positions[:, row.logit_rows][:, row.logit_of].numpy()
        for sample in range(3):
            own = batch.select([sample])
            mine = row.sample.numpy() == sample
            places = row.source[mine] - batch.cu_seqlens[sample] - 1
            expected = planes(own.num_tokens, own.media)[:, places]
            assert before[:, mine].tolist() == expected.tolist()


def test_slices_put_together_are_the_row(batch: Batch) -> None:
    shard = shard_of(batch, 0, 1, 2)
    row = packed(shard)
    parts = [packed(shard, Cut(3, part)) for part in range(3)]
    length = parts[0].token_ids.numel()
    size = row.token_ids.numel()
    assert length == -(-size // 3)
    positions = torch.cat([part.positions for part in parts], 1)
    assert positions[:, :size].tolist() == row.positions.tolist()
    found = set()
    for number, part in enumerate(parts):
        found |= {(one["start"] + number * length, one["sha256"]) for one in part.media}
        for place in np.flatnonzero(part.token_ids.numpy() == placeholder(batch)):
            own = [
                one for one in part.media if 0 <= place - one["start"] < one["num_tokens"]
            ]
            assert len(own) == 1
    assert found == {(one["start"], one["sha256"]) for one in row.media}
    assert sum(parts[0].counts) == row.source.size == parts[1].source.size


def test_a_row_of_text_has_one_plane(batch: Batch) -> None:
    (row,) = PackedMicroBatches(shard_of(batch, 0), CPU, share_prefixes=True)
    assert row.positions.tolist() == [list(range(batch.select([0]).num_tokens))]


def test_images_are_kept_with_a_skipped_step(batch: Batch, tmp_path: Path) -> None:
    shard = shard_of(batch, 2, 0)
    write_shard(tmp_path / "batch.npz", shard)
    assert (
        read_shard(tmp_path / "batch.npz").batch.media.tolist()
        == shard.batch.media.tolist()
    )
