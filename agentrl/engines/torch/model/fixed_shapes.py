"""Fixed shapes: a decoder's operations such that a token's bits depend on its sequence alone.

Sampler and trainer compute a model by this one definition where a run is deterministic, so that
their logprobs are equal to the last bit, whatever else is in a batch.

- A matrix product takes ``TILE`` rows at a time, the last ones padded: the order of its sums
  follows from its shape.
- Attention multiplies ``QUERY_ROWS`` rows of queries by ``KEYS`` keys at a time, and adds up the
  blocks of keys in order. A hidden key has the weight 0, so that blocks behind a token's last key
  change nothing.
- A function that is approximated (exponential, cosine) is called on whole vectors of the processor
  within one thread, since its remainder loops and its vectors round otherwise.
- Norms and softmax sum over each row alone, and other operations are rounded exactly.
- Backward passes are the ordinary ones.

Legend: R rows, D and N widths, S sequences, H query heads, K key heads, G = H/K queries a key head,
T tokens, L keys, E head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

TILE = 16
"""Rows of a matrix product."""

KEYS = 64
"""Keys of a product of attention; sequences of keys are padded to a multiple."""

QUERY_ROWS = 4
"""The least rows of queries in a product of attention: those of one token where G is more."""

_LEAST_WIDTH = 32
"""Of heads: torch multiplies smaller matrices by another kernel where there are few of them."""

_ACTIVATIONS = (nn.SiLU.__module__, "transformers.activations")
"""Where the classes of elementwise functions are."""

_VECTOR = 64
"""Elements that any processor's vector loop divides."""

_ONE_THREAD = 32768
"""Elements up to which torch computes in one thread (``at::internal::GRAIN_SIZE``)."""

_ALIGNED = 64
"""Bytes: of torch's own memory on a CPU, and not of every view."""


def fix_shapes(module: nn.Module) -> None:
    """Makes linear layers, activations and rotary embeddings of a transformers model compute so.

    Attention is its configuration's: see ``attend``.

    Args:
        module: of a family whose layers are Llama's (``families.computed``); it may be on ``meta``.
    """
    for layer in module.modules():
        own: Callable[..., Any] | None = None
        if type(layer) is nn.Linear:
            own = partial(_linear_layer, layer)
        elif isinstance(getattr(layer, "inv_freq", None), Tensor):
            own = partial(_by_position, layer.forward)
        elif type(layer).__module__ in _ACTIVATIONS:
            own = partial(_in_vectors, layer.forward)
        if own is not None:
            layer.forward = own


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``[..., N]`` of ``[..., D]`` rows, ``[N, D]`` weight and ``[N]`` bias."""
    made: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return made


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """``[S, T, H, E]`` attention.

    Args:
        query: ``[S, H, T, E]``.
        key, value: ``[S, K, L, E]``, L a multiple of ``KEYS``; finite where they are hidden.
        mask: ``[S, 1, T, L]`` or ``[1, 1, T, L]``, -inf for a hidden key and 0 elsewhere.
        scale: of the scores.
    """
    S, H, T, E = query.shape
    if E < _LEAST_WIDTH:
        query, key, value = (
            functional.pad(one, (0, _LEAST_WIDTH - E)) for one in (query, key, value)
        )
        return attend(query, key, value, mask, scale)[..., :E]
    K, L = key.shape[1:3]
    G = H // K
    tokens = math.ceil(QUERY_ROWS / G)
    tiles = -(-T // tokens)
    grouped = query.reshape(S, K, G, T, E).transpose(2, 3)
    padded = query.new_zeros((S, K, tiles * tokens, G, E))
    padded[:, :, :T] = grouped
    tiled = padded.view(S * K, tiles, tokens * G, E)
    keys, values = (one.flatten(0, 1) for one in (key, value))
    blocks = [slice(first, first + KEYS) for first in range(0, L, KEYS)]
    scores = torch.cat([_tiles(tiled, keys[:, at].transpose(1, 2)) for at in blocks], -1)
    scores = scores.mul_(scale).view(S, K, -1, G, L)
    scores[:, :, :T].add_(mask[:, :, :, None])
    weights = (
        scores.softmax(-1, dtype=torch.float32).to(value.dtype).view(S * K, tiles, -1, L)
    )
    total = _tiles(weights[..., blocks[0]].contiguous(), values[:, blocks[0]])
    for at in blocks[1:]:
        total.add_(_tiles(weights[..., at].contiguous(), values[:, at]))
    return total.view(S, K, -1, G, E)[:, :, :T].transpose(1, 2).reshape(S, T, H, E)


def whole_blocks(keys: Tensor) -> Tensor:
    """A copy of ``[S, K, L, E]``, padded with zeros to a multiple of ``KEYS``."""
    sequences, heads, count, width = keys.shape
    padded = keys.new_zeros((sequences, heads, -(-count // KEYS) * KEYS, width))
    padded[:, :, :count] = keys
    return padded


def _tiles(left: Tensor, right: Tensor) -> Tensor:
    """``[B, n, Q, Y]`` products of ``[B, n, Q, X]`` tiles and ``[B, X, Y]``, each of one shape.

    A tile of its sequence cannot be told by one stride, so that one of both axes is a loop.
    """
    sequences, tiles = left.shape[:2]
    if tiles <= sequences:
        return torch.stack([torch.bmm(left[:, place], right) for place in range(tiles)], 1)
    each = (one.expand(tiles, -1, -1) for one in right)
    return torch.stack(
        [torch.bmm(one, other) for one, other in zip(left, each, strict=True)]
    )


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """``[R, N]``."""
    count, width = rows.shape
    tiles = -(-count // TILE)
    if count % TILE or rows.data_ptr() % _ALIGNED or not rows.is_contiguous():
        padded = rows.new_zeros((tiles * TILE, width))
        padded[:count] = rows
        rows = padded
    if weight.data_ptr() % _ALIGNED or not weight.is_contiguous():
        weight = weight.clone(memory_format=torch.contiguous_format)
    made = rows.new_empty((tiles * TILE, weight.shape[0]))
    columns = weight.t()
    for tile, target in zip(torch.split(rows, TILE), torch.split(made, TILE), strict=True):
        torch.mm(tile, columns, out=target)
    return made[:count]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        made = _product(rows.reshape(-1, rows.shape[-1]), weight)
        if bias is not None:
            made = made.add_(bias)
        return made.view(*rows.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        to_rows, to_weight, to_bias = ctx.needs_input_grad
        return (
            (flat @ weight).view(rows.shape) if to_rows else None,
            flat.t() @ rows.reshape(-1, rows.shape[-1]) if to_weight else None,
            flat.sum(0) if to_bias else None,
        )


class OrdinaryBackward(torch.autograd.Function):
    """A function whose backward pass is that of another one that computes the same up to rounding.

    The other one is computed again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., Tensor],
        ordinary: Callable[..., Tensor],
        *tensors: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.ordinary = ordinary
        return function(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            inputs = [one.detach().requires_grad_() for one in ctx.saved_tensors]
            made = ctx.ordinary(*inputs)
        return (None, None, *torch.autograd.grad(made, inputs, grad))


def _linear_layer(layer: nn.Linear, rows: Tensor) -> Tensor:
    return linear(rows, layer.weight, layer.bias)


def _in_vectors(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """An elementwise function in whole vectors, by calls that one thread computes."""
    width = rows.shape[-1]
    flat = rows.reshape(-1, width)
    if width % _VECTOR:
        flat = functional.pad(flat, (0, -width % _VECTOR))
    pieces = torch.split(flat, max(1, _ONE_THREAD // flat.shape[1]))
    made = [function(piece) for piece in pieces]
    return (made[0] if len(made) == 1 else torch.cat(made))[:, :width].reshape(rows.shape)


def _by_position(
    function: Callable[..., tuple[Tensor, Tensor]], like: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a fixed number of positions at a time."""
    flat = position_ids.reshape(-1)
    padded = functional.pad(flat, (0, -flat.numel() % _VECTOR))
    found = [function(like, piece[None]) for piece in torch.split(padded, _VECTOR)]
    cosines, sines = (
        torch.cat(kind, 1)[0, : flat.numel()] for kind in zip(*found, strict=True)
    )
    shape = (*position_ids.shape, cosines.shape[-1])
    return cosines.view(shape), sines.view(shape)
