"""Prefill: small chunks batched, long prompts cut, a group's prompt computed once and copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines.torch.kv_cache import KVCache
from agentrl.engines.torch.model.served_model import Forward

DETERMINISTIC_CHUNK = 32
_CHUNK = 512
_BATCH_TOKENS = 2048
_KEY_BUCKET = 32
_SCORE_BUDGET = 1 << 25


@dataclass(slots=True, eq=False)
class WaitingPrefill:
    """Rows to be prefilled alike: ``ids[first:]`` at positions ``first``.. of the first one, then
    copied to the others.
    """

    rows: list[int]
    ids: npt.NDArray[np.int32]
    first: int

    @property
    def remaining(self) -> int:
        return int(self.ids.size) - self.first


@dataclass(frozen=True, slots=True)
class Prefiller:
    """Runs pending prefills.

    In deterministic mode (``fixed``) one row at a time, in chunks of fixed size at fixed positions
    with a fixed key length: a position's KV is then a function of the ids up to it, to the last
    bit.
    """

    decoder: Forward
    kv: KVCache
    num_heads: int
    device: torch.device
    fixed: bool

    def run(
        self, pending: Sequence[WaitingPrefill]
    ) -> Iterator[tuple[list[WaitingPrefill], Tensor]]:
        """Prefills everything; yields the finished ones in batches with their logits ``[M, V]``."""
        work = sorted(pending, key=lambda item: item.remaining)
        while work:
            batch = self._batch(work)
            last_logits = self._chunk(batch)
            done = [index for index, item in enumerate(batch) if item.remaining == 0]
            work = [item for item in work if item.remaining > 0]
            finished = [batch[index] for index in done]
            for item in finished:
                for target in item.rows[1:]:
                    self.kv.copy(item.rows[0], target, item.first)
            if done:
                yield (
                    finished,
                    last_logits if len(done) == len(batch) else last_logits[done],
                )

    def _batch(self, work: Sequence[WaitingPrefill]) -> list[WaitingPrefill]:
        """The longest leading run of ``work`` (sorted by length) that wastes little on padding."""
        if self.fixed:
            return [work[0]]
        batch: list[WaitingPrefill] = []
        useful = 0
        for item in work:
            tokens = min(item.remaining, _CHUNK)
            padded = tokens * (len(batch) + 1)
            keys = max(entry.first for entry in (*batch, item)) + tokens
            too_large = (
                padded > _BATCH_TOKENS or padded * keys * self.num_heads > _SCORE_BUDGET
            )
            if batch and (too_large or padded > 1.5 * (useful + tokens) + 32):
                break
            batch.append(item)
            useful += tokens
        return batch

    def _chunk(self, batch: Sequence[WaitingPrefill]) -> Tensor:
        """One forward over the next tokens of each row of the batch; moves ``first``."""
        if self.fixed:
            limit = width = DETERMINISTIC_CHUNK
        else:
            # the attention scores of a long context stay within their budget
            keys = max(item.first for item in batch) + _CHUNK
            budget = _SCORE_BUDGET // (self.num_heads * keys * len(batch))
            limit = max(16, min(_CHUNK, budget))
            width = min(limit, max(item.remaining for item in batch))
        tokens = np.zeros((len(batch), width), dtype=np.int64)
        positions = np.full_like(tokens, self.kv.trash)
        last = []
        for index, item in enumerate(batch):
            size = min(item.remaining, limit)
            end = item.first + size
            tokens[index, :size] = item.ids[item.first : end]
            positions[index, :size] = np.arange(item.first, end)
            last.append(size - 1)
            item.first = end
        num_keys = self.kv.max_keys
        if not self.fixed:
            keys = max(item.first for item in batch)
            num_keys = min(-(-keys // _KEY_BUCKET) * _KEY_BUCKET, num_keys)
        return self.decoder.prefill(
            self._tensor(tokens),
            self._tensor(positions),
            self._tensor(np.array([item.rows[0] for item in batch])),
            self._tensor(np.array(last)),
            num_keys,
        )

    def _tensor(self, array: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device)
