"""Prefix cost: rows that hold the prompt of a group once, against rows that repeat it."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from agentrl.training.data.packing import PackedMicroBatches
from agentrl.training.models.policy_model import PolicyModel
from agentrl.types import Batch
from benchmarks.figures import Figures
from benchmarks.trainer.interleaved import in_turn, median_ratio
from benchmarks.trainer.shapes import SHAPES, batch_of, random_model, shard_of

__all__ = ["group_of", "measure"]

CPU = torch.device("cpu")


def group_of(samples: int, prompt: int, own: int, vocab_size: int, seed: int) -> Batch:
    """One group: a prompt, and as many trained tokens of each sample's own."""
    batch = batch_of([prompt + own] * samples, vocab_size, seed)
    ids = batch.token_ids.reshape(samples, -1).copy()
    trained = np.zeros_like(ids, dtype=np.float32)
    ids[:, :prompt] = ids[0, :prompt]
    trained[:, prompt:] = 1
    return replace(
        batch,
        token_ids=ids.reshape(-1),
        loss_mask=trained.reshape(-1),
        group=np.zeros_like(batch.group),
    )


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Seconds of both, and their ratio.

    Raises:
        RuntimeError: losses differ.
    """
    size = arguments.sizes
    vocab_size = int(SHAPES[size.shape]["vocab_size"])
    samples, prompt, own = size.group
    batch = group_of(samples, prompt, own, vocab_size, arguments.seed)
    shard = shard_of(batch, [range(batch.num_samples)])
    model = PolicyModel(
        random_model(size.shape, "segments"), "segments", torch.device("cuda")
    )
    tokens = {}

    def run(shares: bool) -> float:
        model.zero_grad()
        (packed,) = PackedMicroBatches(shard, CPU, share_prefixes=shares)
        tokens[shares] = packed.token_ids.numel()
        logprobs, _ = model(packed)
        loss = -(logprobs * packed.columns["weight"]).sum()
        torch.autograd.backward(loss)
        return float(loss.detach())

    sides: dict[str, Callable[[], float]] = {
        "shared": partial(run, True),
        "repeated": partial(run, False),
    }
    losses = [side() for side in sides.values()]
    if abs(losses[0] / losses[1] - 1) > 1e-5:
        raise RuntimeError(f"losses differ: shared and repeated are {losses}")
    seconds = in_turn(sides, arguments.rounds)
    figures.report(
        "tokens of a row, shared over repeated", tokens[True] / tokens[False], ""
    )
    for name, spent in seconds.items():
        rate = batch.num_tokens / statistics.median(spent)
        figures.report(f"prompt {name}", rate, "tokens/s")
    ratio = median_ratio(seconds["repeated"], seconds["shared"])
    figures.report("shared over repeated", ratio, "x")
    figures.note(
        f"Prefixes: a group of {samples} samples, each of a common prompt of {prompt} tokens and "
        f"{own} of its own, as one row with attention segments; tokens are those of the samples, "
        "whether computed once or in each. Same loss on both sides."
    )
