"""Samples with images by hand, the run that keeps these, and transformers' own forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence

from agentrl.algorithms import make_algorithm
from agentrl.render import load_image_processor, prepare_pixels
from agentrl.store import RunDirectory
from agentrl.training import Actor, ActorSpec, DistSpec, OptimSpec, join
from agentrl.training.data.packing import Packed
from agentrl.training.fsdp.weights import whole_tensor
from agentrl.types import Batch, BatchShard, Image, MediaSpan, SegmentKind
from agentrl.types.batch import media_array
from tests.tiny_vision import MERGE, picture
from tests.training.harness import make_batch

WIDE, OTHER, SMALL = (
    Image.read(one)
    for one in (picture(84, 56), picture(84, 84, seed=2), picture(28, 28, seed=1))
)
"""Of 2 x 3 tokens, of 3 x 3, and of one."""
SAMPLES = ((WIDE, SMALL), (WIDE, SMALL), (OTHER, WIDE), (OTHER,), (), ())
"""By twos in a group: with a common beginning that shows two images, with another image of its own
behind the first, and of text alone."""
FROZEN = OptimSpec(lr=0.0, clip_grad_norm=None)


@dataclass(frozen=True, eq=False)
class Case:
    """Samples, and what each trained token weighs.

    Args:
        batch: of them.
        weights: ``[T]``.
        images: of each sample.
        processor: of the model.
    """

    batch: Batch
    weights: np.ndarray
    images: Sequence[Sequence[Image]]
    processor: Any

    def shard(self, rows: Sequence[int], *micro_batches: Sequence[int]) -> BatchShard:
        """Of these samples, and of micro-batches of their places."""
        own = np.array(rows, np.int64)
        parts = tuple(map(tuple, micro_batches))
        return BatchShard(self.batch.select(own), own, parts, np.ones(own.size))


def make_case(model: Path, run: Path, samples: Sequence[Sequence[Image]] = SAMPLES) -> Case:
    """Samples whose images are blobs of a run: a question of 16 tokens, its images, two further
    tokens, and an answer of three to six that is trained."""
    processor = load_image_processor(model)
    marks = Marks.of(model)
    blobs = RunDirectory(run)
    rng = np.random.default_rng(3)
    rows: list[np.ndarray] = []
    spans: list[MediaSpan] = []
    answers = []
    at = 0
    for number, images in enumerate(samples):
        ids = [7 + number // 2, *range(100, 115)]
        for image in images:
            assert image.data is not None
            blobs.write_blob(image.data)
            grid = prepare_pixels(processor, image).grid
            count = grid[1] * grid[2] // MERGE**2
            ids.append(marks.start)
            spans.append(MediaSpan(at + len(ids), count, image.sha256, "image"))
            ids += [marks.image] * count + [marks.end]
        ids += [11, 12]
        answers.append(3 + number % 4)
        ids += rng.integers(20, 90, answers[-1]).tolist()
        rows.append(np.array(ids))
        at += len(ids)
    batch = make_batch([row.size for row in rows], rollouts=2, temperature=0.8)
    mask = np.concatenate(
        [np.arange(row.size) >= row.size - n for row, n in zip(rows, answers, strict=True)]
    )
    batch = replace(
        batch,
        token_ids=np.concatenate(rows).astype(np.int32),
        kind=np.where(mask, SegmentKind.POLICY, SegmentKind.PROMPT).astype(np.int8),
        loss_mask=mask.astype(np.float32),
        media=media_array(spans),
    )
    return Case(batch, rng.normal(size=mask.size) * mask, samples, processor)


@dataclass(frozen=True)
class Marks:
    """The tokens around and for an image."""

    start: int
    image: int
    end: int

    @classmethod
    def of(cls, model: Path) -> Marks:
        from transformers import AutoTokenizer

        ids = AutoTokenizer.from_pretrained(model).get_added_vocab()
        return cls(
            *(ids[f"<|{name}|>"] for name in ("vision_start", "image_pad", "vision_end"))
        )


def make_actor(
    model: Path,
    run: Path,
    place: DistSpec | None = None,
    optim: OptimSpec = FROZEN,
    **spec: Any,
) -> Actor:
    place = place or DistSpec()
    join(place)
    algorithm = make_algorithm("grpo")
    return Actor(
        ActorSpec(str(model), algorithm, optim, run_folder=str(run), **spec), place
    )


def own_gradients(actor: Actor, case: Case, shard: BatchShard) -> dict[str, Tensor]:
    """The whole gradient of the weighted sum of logprobs, by the parameters' names; those that have
    none are left out."""
    own = np.concatenate([_columns(case, row) for row in shard.samples])

    def loss(packed: Packed, answer: tuple[Tensor, Tensor], _: object) -> Tensor:
        if not packed.source.size:
            return answer[0].sum() * 0
        return (answer[0] * torch.from_numpy(own[packed.source])).sum()

    actor.backend.run(actor.packed(shard), loss)
    return {
        name.removeprefix("hf."): whole_tensor(parameter.grad).clone()
        for name, parameter in actor.backend.state().items()
        if parameter.grad is not None
    }


def _columns(case: Case, row: int) -> np.ndarray:
    low, high = case.batch.cu_seqlens[row : row + 2]
    return case.weights[low:high]


def reference(model: Path, case: Case) -> tuple[np.ndarray, dict[str, Tensor]]:
    """``[T]`` logprobs of trained tokens, and the gradient of their weighted sum, by transformers'
    own forward over padded rows."""
    family, logits = _forward(model, case)
    batch = case.batch
    starts = batch.cu_seqlens[:-1]
    rows = np.split(batch.token_ids.astype(np.int64), starts[1:])
    ids = _padded(case)
    logprobs = log_softmax(logits.float() / 0.8, -1)
    found = torch.cat(
        [
            logprobs[n, :-1].gather(1, ids[n, 1:, None])[: row.size - 1, 0]
            for n, row in enumerate(rows)
        ]
    )
    places = np.delete(np.arange(batch.num_tokens), starts)
    column = np.zeros(batch.num_tokens, np.float32)
    column[places] = found.detach().numpy()
    (found * torch.from_numpy(case.weights[places])).sum().backward()
    gradients = {
        name: one.grad for name, one in family.named_parameters() if one.grad is not None
    }
    return column * (batch.loss_mask > 0), gradients


def whole_logits(model: Path, case: Case) -> np.ndarray:
    """``[S, T, V]`` by transformers' own forward."""
    found: np.ndarray = _forward(model, case)[1].detach().numpy()
    return found


def _forward(model: Path, case: Case) -> tuple[Any, Tensor]:
    from transformers import AutoModelForImageTextToText

    family = AutoModelForImageTextToText.from_pretrained(model, attn_implementation="eager")
    family.train()
    ids, sizes = _padded(case), torch.from_numpy(case.batch.lengths.astype(np.int64))
    mask = (torch.arange(ids.shape[1]) < sizes[:, None]).long()
    return family, family(
        input_ids=ids, attention_mask=mask, **_shown(family, case, ids)
    ).logits


def _padded(case: Case) -> Tensor:
    rows = np.split(case.batch.token_ids.astype(np.int64), case.batch.cu_seqlens[1:-1])
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)


def _shown(family: Any, case: Case, ids: Tensor) -> Mapping[str, Tensor]:
    """What transformers is given of the images of all samples."""
    made = [prepare_pixels(case.processor, one) for images in case.images for one in images]
    return {
        "pixel_values": torch.from_numpy(np.concatenate([one.patches for one in made])),
        "image_grid_thw": torch.tensor([one.grid for one in made]),
        "mm_token_type_ids": (ids == family.config.image_token_id).int(),
    }


def compare(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], limit: float = 1e-5
) -> None:
    """Every gradient is there and equal."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 1e-6, name
        torch.testing.assert_close(found[name], gradient, rtol=limit, atol=limit, msg=name)
