"""Logprob memory: the peak of logprobs in chunks against those of whole logits.

- Real peaks are a child's anonymous memory, forward and backward, beyond head and hidden states.
- On paper the same code runs under FakeTensorMode at the widths of real models, whose whole logits
  this machine need not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy

from agentrl.training.models import policy_model
from agentrl.training.models.policy_model import PolicyModel, Tokens
from benchmarks.figures import ROOT, Figures
from benchmarks.trainer.memory_count import LiveStorages
from benchmarks.trainer.ranks import MemoryPeak
from benchmarks.trainer.shapes import config_of

__all__ = ["Way", "live_bytes", "measure", "measured_bytes"]

Way = Literal["chunks", "whole", "cross_entropy"]
"""Of logprobs: the trainer's, the same in one chunk, and transformers' loss of whole logits."""

MIB = 2**20
MOST = 0.20
NEAR = 0.1
SHAPE_WIDTHS = ("0.6B", "4B", "8B")


class _Head(PolicyModel):
    """A policy's head alone."""

    def __init__(self, width: int, vocab_size: int) -> None:
        nn.Module.__init__(self)
        self.own = nn.Linear(width, vocab_size, bias=False)
        self.vocabulary = None
        self.head_dtype = None
        self.attention = "segments"

    @property
    def head(self) -> nn.Module:
        return self.own

    def _logits_a_row(self) -> int:
        return self.own.out_features


def _pass(model: _Head, hidden: Tensor, targets: Tensor, way: Way) -> None:
    """Forward and backward."""
    number = targets.numel()
    if way == "cross_entropy":
        loss = cross_entropy(model.head(hidden).float(), targets, reduction="sum")
    else:
        places = np.arange(number)
        tokens = Tokens(torch.ones(number), torch.arange(number), targets, places)
        chunk = policy_model._CHUNK_ELEMENTS
        policy_model._CHUNK_ELEMENTS = chunk if way == "chunks" else 2**62
        try:
            logprobs, _ = model._score(hidden, tokens)
        finally:
            policy_model._CHUNK_ELEMENTS = chunk
        loss = -logprobs.sum()
    torch.autograd.backward(loss)


def _given(width: int, vocab_size: int, tokens: int) -> tuple[_Head, Tensor, Tensor]:
    hidden = torch.randn(tokens, width).requires_grad_()
    return _Head(width, vocab_size), hidden, torch.zeros(tokens, dtype=torch.int64)


def live_bytes(way: Way, width: int, vocab_size: int, tokens: int) -> int:
    """The peak of live storages on paper, the weight's gradient included."""
    with FakeTensorMode():
        model, hidden, targets = _given(width, vocab_size, tokens)
        live = LiveStorages([model.own.weight, hidden, targets])
        before = live.now
        with live:
            _pass(model, hidden, targets, way)
        return live.peak - before


def measured_bytes(way: Way, width: int, vocab_size: int, tokens: int) -> int:
    """The growth of a child's anonymous memory at its peak.

    Raises:
        RuntimeError: the child failed.
    """
    command = [
        sys.executable,
        "-m",
        __name__,
        way,
        str(width),
        str(vocab_size),
        str(tokens),
    ]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    if child.returncode:
        raise RuntimeError(f"the child failed, perhaps for memory:\n{child.stderr[-2000:]}")
    return int(json.loads(child.stdout.splitlines()[-1]))


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Real peaks at a small width, and those on paper at real ones."""
    size = arguments.sizes
    vocab, tokens = size.vocab_size, size.logprob_tokens
    ways: tuple[Way, ...] = ("chunks", "whole", "cross_entropy")
    real = {way: measured_bytes(way, size.head_width, vocab, tokens) for way in ways}
    label = f"width {size.head_width}"
    figures.report(f"{label}: peak in chunks", real["chunks"] / MIB, "MiB")
    figures.report(f"{label}: peak of whole logits", real["whole"] / MIB, "MiB")
    figures.report(
        f"{label}: peak of transformers' loss", real["cross_entropy"] / MIB, "MiB"
    )
    figures.at_most(f"{label}: chunks over whole", real["chunks"] / real["whole"], "", MOST)
    figures.report(
        f"{label}: chunks over the loss", real["chunks"] / real["cross_entropy"], ""
    )
    for way in ways:
        off = abs(live_bytes(way, size.head_width, vocab, tokens) / real[way] - 1)
        figures.at_most(f"{label}: the count on paper of {way}, off by", off, "", NEAR)
    for shape in SHAPE_WIDTHS:
        width = int(config_of(shape).hidden_size)
        count = {way: live_bytes(way, width, vocab, tokens) for way in ways}
        gradient = 4 * width * vocab
        figures.report(f"{shape} on paper: peak in chunks", count["chunks"] / MIB, "MiB")
        figures.report(
            f"{shape} on paper: of it the head's gradient", gradient / MIB, "MiB"
        )
        ratio = count["chunks"] / count["whole"]
        if shape == SHAPE_WIDTHS[0]:
            figures.at_most(f"{shape} on paper: chunks over whole", ratio, "", MOST)
        else:
            figures.report(f"{shape} on paper: chunks over whole", ratio, "")
    figures.note(
        f"Logprobs: {tokens} tokens over a vocabulary of {vocab:,} in float32, forward and "
        "backward; peaks beyond head and hidden states, the head's gradient included, which is "
        "held in any case. Whole is the trainer's function in one chunk, with logprobs and "
        "entropies; transformers' loss is cross_entropy of whole logits, without entropies. Real "
        "is anonymous memory of a child, sampled every 10 ms; on paper are live storages under "
        "FakeTensorMode."
    )


def _main(way: Way, width: int, vocab_size: int, tokens: int) -> None:
    torch.set_num_threads(1)
    _pass(*_given(8, 16, 4), way)  # libraries keep what they take at their first use
    given = _given(width, vocab_size, tokens)
    peak = MemoryPeak()
    _pass(*given, way)
    print(json.dumps(peak.close()))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))  # type: ignore[arg-type]
