"""The static KV cache: one row for each running request or waiting session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from agentrl.types import Experts, RoutingShape

Parked: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""A row's KV ``[2, layers, K, length, E]``, experts ``[length, L, k]`` and shifts ``[length + 1]``,
outside the cache.
"""

_ALIGN = 16


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one position takes: ``heads`` K keys and values of ``head_dim`` E numbers in each of
    ``num_layers``; and of a mixture the experts that it went through.
    """

    num_layers: int
    heads: int
    head_dim: int
    routing: RoutingShape | None = None


class KVCache:
    """Keys and values ``[layers, rows, K, capacity, E]`` and the decode mask ``bias``
    ``[rows, K, capacity]``; of a mixture also what made them, the experts ``[rows, capacity, L,
    k]``; and by how much the position of each place was shifted by the images before it.

    ``capacity`` exceeds ``max_keys`` (the context, in whole blocks of ``block`` keys): the last
    position, ``trash``, takes the writes of padding and of rows that are not running, and is never
    read. ``flat`` has each layer's keys and values by ``flat_index``. Everything starts at zero and
    stays finite, because a masked NaN would still poison the product with the values.
    """

    def __init__(
        self,
        shape: KVShape,
        rows: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        block: int = _ALIGN,
    ) -> None:
        self._block = block
        self.max_keys = self.in_blocks(context_tokens)
        self.capacity = self.max_keys + _ALIGN
        self.trash = self.capacity - 1
        K = shape.heads
        E = shape.head_dim
        self._both = torch.zeros(
            (2, shape.num_layers, rows, K, self.capacity, E), dtype=dtype, device=device
        )
        self.keys, self.values = self._both
        self.bias = torch.full(
            (rows, K, self.capacity), float("-inf"), dtype=dtype, device=device
        )
        # a row without any visible key would be NaN
        self.bias[:, :, 0] = 0.0
        self._row_base = (torch.arange(rows * K, device=device) * self.capacity).view(
            rows, K
        )
        self.flat = list(zip(*self._both.view(2, shape.num_layers, -1, E), strict=True))
        self._flat_bias = self.bias.view(-1)
        self.routing = shape.routing
        chosen = (self.routing.layers, self.routing.top_k) if self.routing else (0, 0)
        # torch computes little with uint16
        self._experts = torch.zeros(
            (rows, self.capacity, *chosen), dtype=torch.int16, device=device
        )

        # one more: what follows the last position
        self._shifts = torch.zeros(
            (rows, self.capacity + 1), dtype=torch.int64, device=device
        )

    def in_blocks(self, keys: int) -> int:
        """So many keys, rounded up to whole blocks."""
        return -(-keys // self._block) * self._block

    def show(self, positions_N: Tensor) -> Tensor:
        """Flat index ``[N·K]`` of one position a row for rows 0..N-1, made visible to
        ``decode``.
        """
        index = (self._row_base[: positions_N.shape[0]] + positions_N[:, None]).view(-1)
        self._flat_bias.index_fill_(0, index, 0.0)
        return index

    def flat_index(self, rows_M: Tensor, positions_MT: Tensor) -> Tensor:
        """Flat index ``[M·T·K]`` of a chunk's positions."""
        return (
            self._row_base.index_select(0, rows_M)[:, None, :] + positions_MT[:, :, None]
        ).view(-1)

    def read(self, layer: int, rows: Tensor | int, num_keys: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[n, K, num_keys, E]``: views of the first ``rows``, or copies of those
        named.
        """
        # not index_select: it first makes the slice contiguous, which copies the whole cache of the
        # layer
        both = self._both[:, layer, :, :, :num_keys]
        both = both[:, :rows] if isinstance(rows, int) else both[:, rows]
        return both[0], both[1]

    def note_experts(self, rows_n: Tensor, positions_nT: Tensor, chosen: Tensor) -> None:
        """Keeps the experts ``[n·T, L, k]`` that a forward chose for its positions."""
        found = chosen.view(*positions_nT.shape, *chosen.shape[1:])
        self._experts[rows_n[:, None], positions_nT] = found.to(self._experts.dtype)

    def shifts(self, rows_n: Tensor, positions_nT: Tensor) -> Tensor:
        """``[n, T]`` what is added to the number of a place to give its position in the text."""
        return self._shifts[rows_n[:, None], positions_nT]

    def note_shifts(self, rows_n: Tensor, positions_nT: Tensor, behind_nT: Tensor) -> None:
        """Keeps the shifts of the places behind those that a forward has read."""
        self._shifts[rows_n[:, None], positions_nT + 1] = behind_nT.expand_as(positions_nT)

    def read_experts(self, row: int, first: int, end: int) -> Experts | None:
        """``[end - first, L, k]`` a copy of a row's experts; None of a dense model."""
        if self.routing is None:
            return None
        found: Experts = (
            self._experts[row, first:end].cpu().numpy().astype(self.routing.dtype)
        )
        return found

    def set_visible(self, row: int, length: int) -> None:
        """Makes exactly positions 0..length-1 visible to ``decode``."""
        self.bias[row, :, :length] = 0.0
        self.bias[row, :, max(length, 1) :] = float("-inf")

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first ``length`` positions of a row into another."""
        self._both[:, :, target, :, :length] = self._both[:, :, source, :, :length]
        self._experts[target, :length] = self._experts[source, :length]
        self._shifts[target, : length + 1] = self._shifts[source, : length + 1]

    def take(self, row: int, length: int) -> Parked:
        """A copy of a row, to be parked."""
        parts = (
            self._both[:, :, row, :, :length],
            self._experts[row, :length],
            self._shifts[row, : length + 1],
        )
        both, experts, shifts = (part.clone() for part in parts)
        return both, experts, shifts

    def give(self, row: int, parked: Parked) -> None:
        """Puts a parked copy into a row."""
        both, experts, shifts = parked
        self._both[:, :, row, :, : both.shape[3]] = both
        self._experts[row, : len(experts)] = experts
        self._shifts[row, : len(shifts)] = shifts

    def clear_row(self, row: int) -> None:
        """Zeroes a row, so that no NaN remains in it."""
        self._both[:, :, row] = 0.0


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: minus infinity where a key is ``hidden``, else nothing."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, float("-inf"))
