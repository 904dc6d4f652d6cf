"""Padding: packed rows against batches that are padded, by tokens a second.

- Padded batches run through transformers' own model with an attention mask and ``sdpa``. They get
  what packing does not give: logits of trained tokens alone, in the trainer's chunks.
- The packed model has no patches of a CPU; a side of its own has them.
- Losses and gradients of all sides are compared before any is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.training.data.packing import PackedMicroBatches
from agentrl.training.models.policy_model import PolicyModel, Tokens
from agentrl.training.models.trunk import patch_rmsnorm
from agentrl.types import Batch
from benchmarks.figures import Figures
from benchmarks.trainer.interleaved import in_turn, median_ratio
from benchmarks.trainer.shapes import SHAPES, batch_of, random_model, rows_of, shard_of

__all__ = ["lengths_at", "measure", "sides_of"]

EFFICIENCY = 0.43
OVER_PADDED = 1.8
OVER_SORTED = 1.1
CPU = torch.device("cpu")
UNPATCHED = torch.device("cuda")
"""What a model is told, that it shall have no patches of a CPU; it runs on one all the same."""


def lengths_at(number: int, median: int, efficiency: float, seed: int) -> list[int]:
    """Lognormal lengths in a random order, of which the longest makes the padding efficiency:
    tokens over those of all samples padded to the longest.

    Args:
        number: of samples, so many that ``number * efficiency`` is above 1.
        median: of the lengths but one, tokens.
        efficiency: as said, met as nearly as whole tokens allow.
        seed: of lengths and order.

    Raises:
        ValueError: a drawn length is above the longest.
    """
    rng = np.random.default_rng(seed)
    drawn = np.exp(rng.normal(np.log(median), 0.5, number - 1)).clip(
        median / 4, 2.2 * median
    )
    lengths = [int(length) for length in drawn]
    longest = round(sum(lengths) / (number * efficiency - 1))
    if longest < max(lengths):
        raise ValueError(f"a length of {max(lengths)} is above the longest, {longest}")
    lengths.insert(int(rng.integers(0, number)), longest)
    return lengths


class Sides:
    """The same weights, samples and loss, computed in different forms.

    Args:
        shape: of the model.
        lengths: of the samples.
        row_tokens: most of a packed row.
        batch_samples: of a padded batch.
        seed: of the tokens.
    """

    def __init__(
        self,
        shape: str,
        lengths: Sequence[int],
        row_tokens: int,
        batch_samples: int,
        seed: int,
    ) -> None:
        self.batch: Batch = batch_of(lengths, int(SHAPES[shape]["vocab_size"]), seed)
        self._rows = rows_of(lengths, row_tokens)
        self._lengths = np.asarray(lengths)
        self._samples = batch_samples
        own = random_model(shape, "sdpa")
        self._own = PolicyModel(own, "sdpa", UNPATCHED)
        weights = own.state_dict()
        plain, patched = (random_model(shape, "segments") for _ in range(2))
        for one in (plain, patched):
            one.load_state_dict(weights)
        patch_rmsnorm(patched)
        self._packed = PolicyModel(plain, "segments", UNPATCHED)
        self._patched = PolicyModel(patched, "segments", CPU)

    def by_name(self) -> Mapping[str, Callable[[], float]]:
        """Each runs forward and backward over all samples and returns the loss."""
        order = np.argsort(self._lengths, kind="stable")
        longest = int(self._lengths.max())
        return {
            "packed": lambda: self._by_rows(self._packed),
            "packed, with the patches of a CPU": lambda: self._by_rows(self._patched),
            "padded to the longest": lambda: self._padded(range(order.size), longest),
            "sorted by length and padded": lambda: self._padded(order.tolist(), None),
        }

    def gradient(self, name: str) -> list[Tensor]:
        """What the last pass of a side left, a tensor for each parameter."""
        model = self._own
        if name.startswith("packed"):
            model = self._patched if "patches" in name else self._packed
        return [one.grad for one in model.parameters() if one.grad is not None]

    def _by_rows(self, model: PolicyModel) -> float:
        model.zero_grad()
        total = 0.0
        shard = shard_of(self.batch, self._rows)
        for packed in PackedMicroBatches(shard, CPU, share_prefixes=False):
            logprobs, _ = model(packed)
            total += _backward((logprobs * packed.columns["weight"]).sum())
        return total

    def _padded(self, order: Sequence[int], width: int | None) -> float:
        self._own.zero_grad()
        total = 0.0
        for first in range(0, len(order), self._samples):
            samples = list(order[first : first + self._samples])
            total += _backward(
                self._padded_sum(samples, width or int(self._lengths[samples].max()))
            )
        return total

    def _padded_sum(self, samples: Sequence[int], width: int) -> Tensor:
        ids = torch.zeros(len(samples), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        trained = torch.zeros_like(ids, dtype=torch.bool)
        for row, sample in enumerate(samples):
            low, high = self.batch.cu_seqlens[sample : sample + 2].tolist()
            ids[row, : high - low] = torch.from_numpy(self.batch.token_ids[low:high])
            mask[row, : high - low] = 1
            trained[row, : high - low] = torch.from_numpy(
                self.batch.loss_mask[low:high] > 0
            )
        trunk: Any = self._own.hf.base_model
        hidden = trunk(
            input_ids=ids, attention_mask=mask, use_cache=False
        ).last_hidden_state
        before, targets = hidden[:, :-1][trained[:, 1:]], ids[:, 1:][trained[:, 1:]]
        places = np.arange(targets.numel())
        tokens = Tokens(
            torch.ones(targets.numel()), torch.from_numpy(places), targets, places
        )
        logprobs, _ = self._own.scorer(before, tokens)
        found: Tensor = (logprobs.double() / self.batch.num_tokens).sum()
        return found


def _backward(logprobs: Tensor) -> float:
    """Of the loss -``logprobs``, which it returns."""
    torch.autograd.backward(-logprobs)
    return -float(logprobs.detach())


def sides_of(
    shape: str, lengths: Sequence[int], row_tokens: int, batch_samples: int, seed: int
) -> Sides:
    """The sides, which agree on the loss and on the norm of each gradient.

    Raises:
        RuntimeError: two sides do not.
    """
    sides = Sides(shape, lengths, row_tokens, batch_samples, seed)
    found = {}
    for name, run in sides.by_name().items():
        loss = run()
        found[name] = np.array([loss, *(float(one.norm()) for one in sides.gradient(name))])
    expected = found["padded to the longest"]
    for name, one in found.items():
        if not np.allclose(one, expected, rtol=1e-4, atol=1e-7):
            off = float(np.abs(one / expected - 1).max())
            raise RuntimeError(f"loss or gradients of {name!r} are off by {off:.2g}")
    return sides


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Tokens a second of each side, and the ratios."""
    size = arguments.sizes
    lengths = lengths_at(size.samples, size.median, EFFICIENCY, arguments.seed)
    sides = sides_of(
        size.shape, lengths, size.row_tokens, size.batch_samples, arguments.seed
    )
    seconds = in_turn(sides.by_name(), arguments.rounds)
    tokens = sum(lengths)
    efficiency = tokens / (max(lengths) * len(lengths))
    figures.report("padding efficiency of the samples", efficiency, "")
    for name, spent in seconds.items():
        figures.report(name, tokens / float(np.median(spent)), "tokens/s")
    packed = seconds["packed"]
    for name, target in (
        ("padded to the longest", OVER_PADDED),
        ("sorted by length and padded", OVER_SORTED),
    ):
        ratio = median_ratio(seconds[name], packed)
        figures.at_least(f"packed over {name}", ratio, "x", target)
    figures.note(
        f"Padding: {len(lengths)} samples of {min(lengths)} to {max(lengths)} tokens, lognormal, "
        f"{tokens} in all; Qwen3 of the shape {size.shape} in float32, forward and backward; rows "
        f"of at most {size.row_tokens} tokens, padded batches of {size.batch_samples} samples in "
        "random order or sorted. Padded batches are transformers' own model with an attention mask "
        "and sdpa; like packed rows they compute logits of trained tokens alone. All sides have "
        f"the same loss and gradients. Processor seconds of one thread, {arguments.rounds} rounds, "
        "all sides in turn; ratios are medians over rounds."
    )
