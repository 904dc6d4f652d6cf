"""What the scheduler needs of a model, whichever code computes it, and how its weights are
updated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines.checks import PutTensors
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.torch.kv_cache import KVCache, KVShape
from agentrl.engines.torch.model.images import ServedImages
from agentrl.engines.torch.row_layout import Blocks
from agentrl.errors import EngineError


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

    def prefill(
        self,
        tokens_MT: Tensor,
        positions_MT: Tensor,
        rows_M: Tensor,
        last_M: Tensor,
        num_keys: int,
    ) -> Tensor:
        """Logits ``[M, V]`` fp32 after a chunk a row, whose KV is written.

        Args:
            tokens_MT: int64 ids, padded at the end.
            positions_MT: int64, increasing along T; padding has ``kv.trash``.
            rows_M: int64 rows of the cache.
            last_M: int64 index within T of each row's last real token.
            num_keys: at least every real position + 1.
        """


class TensorPlace(Protocol):
    """Where a Hugging Face tensor goes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""

    def write(self, tensor: Tensor) -> None:
        """Puts it there."""

    def read(self) -> Tensor:
        """The tensor as it is served, in its form in the folder."""


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where a Hugging Face tensor lies: ``view`` has its elements in its order (copies along axis 0
    if ``copies``).
    """

    shape: tuple[int, ...]
    view: Tensor
    copies: bool = False

    @classmethod
    def of(cls, tensor: Tensor) -> WeightPlace:
        """The tensor as it is."""
        return cls(tuple(tensor.shape), tensor)

    def write(self, tensor: Tensor) -> None:
        shape = self.view.shape[1:] if self.copies else self.view.shape
        self.view.copy_(tensor.reshape(shape))

    def read(self) -> Tensor:
        return (self.view[0] if self.copies else self.view).reshape(self.shape)


class ServedModel(ABC):
    """A model's weights under their Hugging Face names, and its forward passes.

    Attributes:
        kind: its model type, for messages.
        vocab_size: logits of a token, padding included.
        max_positions: positions that the model was made for.
        num_heads: query heads of a layer.
        kv_shape: of its KV at one position.
        key_block: keys of its attention come in multiples of it.
        exact: a token's logits are a function of the ids up to it, whatever else is computed beside
            them, and equal the trainer's (``fixed_shapes``).
        places: of every tensor that an update must put, by its Hugging Face name.
        optional: of those that it may put too.
        aliases: other names of tensors in ``places``.
        images: those that it is shown; None of a model of text alone.
    """

    kind: str
    vocab_size: int
    max_positions: int
    num_heads: int
    kv_shape: KVShape
    key_block = 16
    exact = False
    images: ServedImages | None = None

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.places: dict[str, TensorPlace] = {}
        self.optional: dict[str, TensorPlace] = {}
        self.aliases: dict[str, str] = {}
        self._put = PutTensors({})

    @abstractmethod
    def forward_over(self, kv: KVCache) -> Forward:
        """The forward passes over a cache's rows."""

    @abstractmethod
    def renew(self) -> None:
        """Computes what depends on the weights, after they have changed."""

    @property
    def touched(self) -> bool:
        """Whether anything was put since ``begin``."""
        return bool(self._put.names)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Puts all weights; see ``put`` and ``finish``."""
        self.begin()
        for name, tensor in tensors:
            self.put(name, tensor)
        self.finish()

    def begin(self) -> None:
        """Starts an update: nothing counts as put."""
        must, may = (
            {name: place.shape for name, place in places.items()}
            for places in (self.places, self.optional)
        )
        self._put = PutTensors(must, may)

    def put(self, name: str, tensor: Tensor) -> None:
        """Copies one whole tensor into its place, cast to the served dtype.

        Raises:
            EngineError: an unknown name, or another shape.
        """
        name = self.aliases.get(name, name)
        if fault := self._put.fault(name, tuple(tensor.shape)):
            raise EngineError(
                f"weight update of this {self.kind}: {fault}", retryable=False
            )
        (self.places.get(name) or self.optional[name]).write(tensor)

    def finish(self) -> None:
        """Ends an update.

        Raises:
            EngineError: a tensor was not put.
        """
        if missing := self._put.missing():
            raise EngineError(
                f"weight update of this {self.kind}: {missing}", retryable=False
            )
        self.renew()

    def read(self, name: str) -> Tensor:
        """A copy of one tensor in the served dtype."""
        return self.places[name].read().clone(memory_format=torch.contiguous_format)

    def checksum(self) -> dict[str, int]:
        """The checksum of each tensor in the served dtype and Hugging Face order."""
        return {
            name: tensor_checksum(name, place.read()) for name, place in self.places.items()
        }

    def empty_rows(self, rows: int, context_tokens: int) -> tuple[KVCache, Forward]:
        """KV memory for ``rows`` sequences of ``context_tokens``, and the forward passes over
        it.
        """
        kv = KVCache(
            self.kv_shape, rows, context_tokens, self.dtype, self.device, self.key_block
        )
        return kv, self.forward_over(kv)

    def score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """See ``EngineControl.score``: over a row of its own, so that no request's KV is touched.
        The tokens are chunks of one each of that row, so that one pass gives all logits.
        """
        ids = torch.tensor(list(token_ids), dtype=torch.int64, device=self.device)
        kv, forward = self.empty_rows(1, ids.numel())
        places = torch.arange(ids.numel() - 1, device=ids.device)
        same = torch.zeros_like(places)
        logits = forward.prefill(ids[:-1, None], places[:, None], same, same, kv.max_keys)
        logprobs: npt.NDArray[np.float32] = (
            logits.log_softmax(-1)[places, ids[1:]].float().cpu().numpy()
        )
        return logprobs
