"""What the scheduler needs of a model, whichever code computes it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from agentrl.engines.torch.kv_cache import KVCache
from agentrl.engines.torch.row_layout import Blocks


class Forward(Protocol):
    """Forward passes over the rows of a KV cache.

    Legend: N decode rows, M rows being prefilled, T tokens of a chunk, V vocabulary.
    """

    def decode(self, tokens_N: Tensor, positions_N: Tensor, blocks: Blocks) -> Tensor:
        """Logits ``[N, V]`` fp32 after one token each of rows 0..N-1, whose KV is written.

        Args:
            tokens_N: int64 ids.
            positions_N: int64 position of each token; a row's ``kv.trash`` writes where nothing is
                read.
            blocks: keys that each run of rows must attend to, at least every live position + 1.
        """
        ...

    def prefill(
        self, tokens_MT: Tensor, positions_MT: Tensor, rows_M: Tensor, last_M: Tensor, num_keys: int
    ) -> Tensor:
        """Logits ``[M, V]`` fp32 after a chunk a row, whose KV is written.

        Args:
            tokens_MT: int64 ids, padded at the end.
            positions_MT: int64, increasing along T; padding has ``kv.trash``.
            rows_M: int64 rows of the cache.
            last_M: int64 index within T of each row's last real token.
            num_keys: at least every real position + 1.
        """
        ...


class ServedModel(Protocol):
    """A model's weights under their Hugging Face names, and its forward passes."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int:
        """Logits of a token, padding included."""
        ...

    @property
    def max_positions(self) -> int:
        """Positions that the model was made for."""
        ...

    @property
    def num_heads(self) -> int:
        """Query heads of a layer."""
        ...

    @property
    def touched(self) -> bool:
        """Whether anything was written since ``begin``."""
        ...

    def begin(self) -> None:
        """Starts an update: nothing counts as written."""
        ...

    def put(self, name: str, tensor: Tensor) -> None:
        """Copies one whole tensor into its place, cast to the served dtype.

        Raises:
            EngineError: an unknown name, or another shape.
        """
        ...

    def finish(self) -> None:
        """Ends an update.

        Raises:
            EngineError: a tensor was not written.
        """
        ...

    def checksum(self) -> dict[str, int]:
        """The checksum of each tensor in the served dtype and Hugging Face order."""
        ...

    def empty_rows(self, rows: int, context_tokens: int) -> tuple[KVCache, Forward]:
        """KV memory for ``rows`` sequences of ``context_tokens``, and the forward passes over
        it.
        """
        ...
