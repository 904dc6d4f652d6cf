"""Transformers' own forward over the engine's rows: slower than ``decoder.py``, for any decoder
with keys and values.

Legend: N decode rows, M rows being prefilled, T tokens of a chunk, L keys attended to, K key-value
heads, E head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache

from agentrl.engines.torch.kv_cache import KVCache, additive_mask
from agentrl.engines.torch.model.expert_recorder import ExpertRecorder
from agentrl.engines.torch.model.fixed_shapes import attend
from agentrl.engines.torch.row_layout import Blocks

MaskKind = Literal["full", "sliding", "by_layer"]


class RowCache(Cache):  # type: ignore[misc]  # transformers' classes are untyped here
    """A transformers cache that writes into chosen rows of a ``KVCache`` and reads them back.

    Positions and masks are always given to the model, so it is never asked how long it is. Layers
    may differ in heads and head size, and keys from values: all lie in the front part of the
    widest.

    Args:
        kv: the engine's.
        rows: int64 rows ``[n]``, or a number n for the first n, which are then read without a copy.
        index: ``[n, T, K]`` int64 flat index of what one forward writes.
        num_keys: L.
    """

    def __init__(
        self, kv: KVCache, rows: Tensor | int, index: Tensor, num_keys: int
    ) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._rows = rows
        self._index = index
        self._num_keys = num_keys

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Stores ``[n, K, T, E]`` of a layer; all keys and values ``[n, K, L, E]`` of the rows."""
        heads = key_states.shape[1]
        index = self._index[:, :, :heads].reshape(-1)
        both = (key_states, value_states)
        for flat, states in zip(self._kv.flat[layer_idx], both, strict=True):
            front = flat[:, : states.shape[3]]
            front.index_copy_(0, index, states.transpose(1, 2).flatten(0, 2))
        keys, values = self._kv.read(layer_idx, self._rows, self._num_keys)
        return (
            keys[:, :heads, :, : key_states.shape[3]],
            values[:, :heads, :, : value_states.shape[3]],
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def fixed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """``fixed_shapes.attend`` over rows of the cache, for transformers' attention interface.

    Args:
        module: the attention layer; unused.
        query: ``[n, H, T, E]``.
        key, value: ``[n, K, L, E]``, whole blocks of keys.
        attention_mask: ``[n, 1, T, L]``, additive.
        scaling: of the scores.
    """
    return attend(query, key, value, attention_mask, scaling), None


FIXED_ROWS = "fixed_rows"
"""The name of ``fixed_attention``."""

AttentionInterface.register(FIXED_ROWS, fixed_attention)


@dataclass(frozen=True, slots=True)
class CacheMasks:
    """Which keys a query sees: ``kind`` as the model's family wants it, ``window`` keys in a
    sliding layer.
    """

    kind: MaskKind
    window: int

    def build(
        self, positions_nT: Tensor, num_keys: int, dtype: torch.dtype
    ) -> Tensor | Mapping[str, Tensor]:
        """Additive masks ``[n, 1, T, L]`` in the form that the model's forward takes."""
        keys = torch.arange(num_keys, device=positions_nT.device)
        queries = positions_nT[:, None, :, None]
        full = additive_mask(keys > queries, dtype)
        if self.kind == "full":
            return full
        # padding stands at the trash, behind all keys: key 0 stays visible, for a softmax over none
        # would be NaN
        gone = (keys <= queries - self.window) & ((queries < num_keys) | (keys > 0))
        sliding = additive_mask((keys > queries) | gone, dtype)
        return (
            sliding
            if self.kind == "sliding"
            else {"full_attention": full, "sliding_attention": sliding}
        )


@dataclass(frozen=True, slots=True)
class TransformersDecoder:
    """``Forward`` by a transformers model.

    Args:
        module: takes ``position_ids``, masks of four dimensions, a ``Cache`` and
            ``logits_to_keep``.
        masks: the form of its masks.
        recorder: takes the experts of a mixture's passes; None leaves them unrecorded.
    """

    module: torch.nn.Module
    kv: KVCache
    masks: CacheMasks
    recorder: ExpertRecorder | None = None

    def decode(self, tokens_N: Tensor, positions_N: Tensor, blocks: Blocks) -> Tensor:
        """See ``Forward.decode``; all rows attend to as many keys as the longest."""
        N = tokens_N.shape[0]
        num_keys = self.kv.in_blocks(max(keys for _, keys in blocks))
        rows = torch.arange(N, device=tokens_N.device)
        index = self.kv.flat_index(rows, positions_N[:, None])
        cache = RowCache(self.kv, N, index.view(N, 1, -1), num_keys)
        return self._logits(
            tokens_N[:, None], positions_N[:, None], rows, cache, num_keys, 1
        )[:, 0]

    def prefill(
        self,
        tokens_MT: Tensor,
        positions_MT: Tensor,
        rows_M: Tensor,
        last_M: Tensor,
        num_keys: int,
    ) -> Tensor:
        """See ``Forward.prefill``."""
        M, T = tokens_MT.shape
        num_keys = self.kv.in_blocks(num_keys)
        index = self.kv.flat_index(rows_M, positions_MT)
        cache = RowCache(self.kv, rows_M, index.view(M, T, -1), num_keys)
        kept, place_M = torch.unique(last_M, return_inverse=True)
        logits = self._logits(tokens_MT, positions_MT, rows_M, cache, num_keys, kept)
        return logits[torch.arange(M, device=logits.device), place_M]

    def _logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: Tensor,
        cache: RowCache,
        num_keys: int,
        kept: Tensor | int,
    ) -> Tensor:
        if self.recorder is not None:
            self.recorder.begin()
        answer = self.module(
            input_ids=tokens,
            # padding's own place may be behind the last position of a learned embedding
            position_ids=positions.masked_fill(positions == self.kv.trash, 0),
            attention_mask=self.masks.build(positions, num_keys, self.kv.keys.dtype),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=kept,
        )
        if self.recorder is not None:
            self.kv.note_experts(rows, positions, self.recorder.taken())
        logits: Tensor = answer.logits
        return logits.float()
