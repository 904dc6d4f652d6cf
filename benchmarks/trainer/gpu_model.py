"""GPU model: a policy of random weights that are made on its device, and what it computes.

Shapes: T tokens, L layers, H query heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen3ForCausalLM

from agentrl.training.models.computed_buffers import check_buffers, compute_buffers
from agentrl.training.models.policy_model import PolicyModel
from agentrl.training.models.trunk import Recompute, wrap_blocks
from benchmarks.trainer.shapes import config_of

__all__ = ["device_policy", "model_flops"]


@torch.no_grad()
def device_policy(
    shape: str,
    attention: str,
    device: torch.device,
    *,
    layers: int | None = None,
    recompute: Recompute = False,
    compiles: bool = False,
    seed: int = 0,
) -> PolicyModel:
    """A policy in float32, built on ``meta`` and filled on the device.

    Args:
        shape: of ``SHAPES``.
        attention: the name of its attention function.
        device: where it runs.
        layers: fewer than the shape's.
        recompute: of layers.
        compiles: layers.
        seed: of the weights, which are equal on devices of one kind.
    """
    config = config_of(shape)
    if layers is not None:
        config.num_hidden_layers = layers
        config.layer_types = config.layer_types[:layers]
    config._attn_implementation = attention
    with torch.device("meta"):
        hf: Any = Qwen3ForCausalLM(config)
    compute_buffers(hf)
    _fill(hf, device, torch.Generator(device).manual_seed(seed), config.initializer_range)
    check_buffers(hf, shape)
    model = PolicyModel(hf.train(), attention, device)
    if recompute or compiles:
        wrap_blocks(model.blocks(), recompute=recompute, compiles=compiles)
    if compiles:
        model.compile_scores()
    return model


def _fill(
    hf: nn.Module, device: torch.device, generator: torch.Generator, std: float
) -> None:
    """Makes weights of a model on ``meta``: matrices at random, all else ones."""
    made: dict[int, nn.Parameter] = {}
    for module in hf.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:  # a tied one is made once
                whole = torch.ones(parameter.shape, device=device)
                if parameter.ndim > 1:
                    whole.normal_(0.0, std, generator=generator)
                made[id(parameter)] = nn.Parameter(whole)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def model_flops(model: PolicyModel, lengths: Sequence[int], logits: int) -> float:
    """Floating-point operations that forward and backward of a row need, without recomputation.

    A product with a weight takes 2 operations an element forward and 4 backward. Scores and their
    products with values take 2 · 2 · n² / 2 · H · D forward in each layer for a sample of n tokens,
    as half of the scores are hidden, and twice that backward.

    Args:
        model: not divided.
        lengths: of the row's samples.
        logits: tokens whose logits are computed.
    """
    config = model.config
    blocks = sum(one.numel() for block in model.blocks() for one in block.parameters())
    head = int(config.vocab_size) * int(config.hidden_size)
    width = int(config.num_attention_heads) * int(config.head_dim)
    scores = sum(length**2 for length in lengths) * width * int(config.num_hidden_layers)
    return 6.0 * (blocks * sum(lengths) + head * logits + scores)
