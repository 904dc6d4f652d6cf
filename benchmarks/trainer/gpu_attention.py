"""GPU attention: the attentions that are at hand against ``segments``, in bfloat16.

- One model, one row, logprobs and the gradients of all parameters.
- An attention that the device or the installation lacks is left out by the message that a run
  would get.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.training import DistSpec
from agentrl.training.backends.backend import StatSum
from agentrl.training.backends.plain import PlainBackend
from agentrl.training.data.attention import SEGMENTS
from agentrl.training.data.kernel_attention import SHARING, AttentionName, choose_attention
from agentrl.training.data.packing import Packed, PackedMicroBatches
from agentrl.training.models.packed_model import attention_of
from agentrl.types import BatchShard
from benchmarks.figures import Figures
from benchmarks.trainer.gpu_device import Bench
from benchmarks.trainer.gpu_model import device_policy
from benchmarks.trainer.prefix_cost import group_of
from benchmarks.trainer.shapes import SHAPES, batch_of, shard_of

__all__ = ["Pass", "at_hand", "measure", "off_by", "one_pass"]

NEAR = 2e-2
NAMES: tuple[AttentionName, ...] = (
    "segments",
    "auto",
    "varlen",
    "flex",
    "flash_attention_2",
    "flash_attention_3",
)


@dataclass(frozen=True, slots=True)
class Pass:
    """What forward and backward of a row gave.

    Args:
        logprobs: ``[N]`` float32.
        gradients: by the parameters' names, float32.
    """

    logprobs: Tensor
    gradients: Mapping[str, Tensor]


def at_hand(figures: Figures, bench: Bench) -> list[str]:
    """The attention functions that run in bfloat16; ``segments`` comes first. A note names each
    that does not."""
    found: dict[str, None] = {}
    for name in NAMES:
        try:
            found[choose_attention(name, bench.device, torch.bfloat16)] = None
        except ConfigError as error:
            figures.note(f"Left out: {error}")
    return list(found)


def one_pass(
    shape: str,
    layers: int,
    attention: str,
    dtype: torch.dtype,
    packed: Packed,
    bench: Bench,
) -> Pass:
    """Forward and backward of a new model of the same weights, the forward in ``dtype``."""
    model = device_policy(shape, attention, bench.device, layers=layers)
    assert attention_of(model.hf) == attention
    backend = PlainBackend(model, DistSpec(device=str(bench.device)), dtype)
    kept: list[Tensor] = []

    def loss(_: Packed, answer: tuple[Tensor, Tensor], __: StatSum) -> Tensor:
        kept.append(answer[0].detach())
        return -answer[0].sum()

    backend.run([packed], loss)
    gradients = {
        name: one.grad for name, one in backend.state().items() if one.grad is not None
    }
    return Pass(kept[0].float(), gradients)


def off_by(found: Pass, expected: Pass) -> tuple[float, float]:
    """The largest difference of a logprob in nats, and that of the whole gradient relative to its
    norm."""
    logprobs = float((found.logprobs - expected.logprobs).abs().max())
    squares = torch.zeros((), dtype=torch.float64)
    whole = torch.zeros((), dtype=torch.float64)
    for name, one in expected.gradients.items():
        squares += (found.gradients[name] - one).double().square().sum().cpu()
        whole += one.double().square().sum().cpu()
    return logprobs, float((squares / whole).sqrt())


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Each attention that is at hand, on a row of samples and on one with a shared prefix."""
    size, bench = arguments.sizes, Bench(torch.device(arguments.device))
    vocab_size = int(SHAPES[size.attention_shape]["vocab_size"])
    names = at_hand(figures, bench)
    samples, prompt, own = size.group
    apart = batch_of(size.attention_lengths, vocab_size, arguments.seed)
    group = group_of(samples, prompt, own, vocab_size, arguments.seed)
    for label, batch, shares in (("apart", apart, False), ("shared", group, True)):
        shard = shard_of(batch, [range(batch.num_samples)])
        usable = [name for name in names if not shares or name in SHARING]
        _compare(figures, label, shard, shares, usable, arguments, bench)
    figures.note(
        f"Attentions: a random Qwen3 of the shape {size.attention_shape} with "
        f"{size.attention_layers} layers on {bench.name}; a row of samples of "
        f"{', '.join(map(str, size.attention_lengths))} tokens, and one group of {samples} with a "
        f"common prompt of {prompt} and {own} of their own each. Logprobs: the largest difference, "
        "nats; gradients: the norm of the difference over that of the whole. Beside it stands what "
        "bfloat16 alone makes of segments."
    )


def _compare(
    figures: Figures,
    label: str,
    shard: BatchShard,
    shares: bool,
    names: list[str],
    arguments: argparse.Namespace,
    bench: Bench,
) -> None:
    size = arguments.sizes
    (packed,) = PackedMicroBatches(shard, bench.device, share_prefixes=shares)

    def run(attention: str, dtype: torch.dtype) -> Pass:
        found = one_pass(
            size.attention_shape, size.attention_layers, attention, dtype, packed, bench
        )
        bench.free()
        return found

    expected = run(SEGMENTS, torch.bfloat16)
    logprobs, gradients = off_by(expected, run(SEGMENTS, torch.float32))
    figures.report(f"{label}: segments, logprobs off float32's", logprobs, "nats")
    figures.report(f"{label}: segments, gradients off float32's", gradients, "")
    for name in names:
        if name != SEGMENTS:
            logprobs, gradients = off_by(run(name, torch.bfloat16), expected)
            figures.at_most(
                f"{label}: {name}, logprobs off segments'", logprobs, "nats", NEAR
            )
            figures.at_most(
                f"{label}: {name}, gradients off segments'", gradients, "", NEAR
            )
