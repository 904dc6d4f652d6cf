"""The decode rows as arrays on the host: one vectorised pass over all of them a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from agentrl.engines.torch.sampling import SamplingRows
from agentrl.types import SamplingParams


class RowTable:
    """Every array has one entry a row; ``ids`` and ``logprobs`` are ``[rows, capacity]`` by
    absolute position.

    ``ids[r, :kv_len[r]]`` are the ids whose KV the row holds, running or not. While the row runs,
    the token to be fed next is ``inputs[0, r]`` at position ``inputs[1, r]``; of an idle row that
    position is the cache's trash.
    """

    def __init__(self, rows: int, capacity: int, trash: int) -> None:
        self._trash = trash
        self.ids = np.zeros((rows, capacity), dtype=np.int32)
        self.logprobs = np.zeros((rows, capacity), dtype=np.float32)
        self.inputs = np.zeros((2, rows), dtype=np.int64)
        self.inputs[1] = trash
        self.kv_len = np.zeros(rows, dtype=np.int64)
        self.busy = np.zeros(rows, dtype=np.bool_)
        self.start = np.zeros(rows, dtype=np.int64)
        self.count = np.zeros(rows, dtype=np.int64)
        self.limit = np.zeros(rows, dtype=np.int64)
        self.seeds = np.zeros(rows, dtype=np.uint64)
        self.stop_ids = np.full((rows, 1), -1, dtype=np.int64)
        self._inverse_temperature = np.ones(rows, dtype=np.float32)
        self._greedy = np.zeros(rows, dtype=np.bool_)
        self._top_p = np.ones(rows, dtype=np.float32)
        self._top_k = np.zeros(rows, dtype=np.int64)
        self._min_p = np.zeros(rows, dtype=np.float32)

    def begin(self, row: int, seed: int, sampling: SamplingParams) -> None:
        """Sets a row's sampling parameters."""
        self.busy[row] = True
        self.limit[row] = sampling.max_new_tokens
        self.seeds[row] = np.uint64(seed % 2**64)
        self._greedy[row] = sampling.temperature == 0.0
        self._inverse_temperature[row] = 1.0 / sampling.temperature if sampling.temperature else 1.0
        self._top_p[row] = sampling.top_p
        self._top_k[row] = sampling.top_k
        self._min_p[row] = sampling.min_p
        stops = sampling.stop_token_ids
        if len(stops) > self.stop_ids.shape[1]:
            wider = np.full((len(self.busy), len(stops)), -1, dtype=np.int64)
            wider[:, : self.stop_ids.shape[1]] = self.stop_ids
            self.stop_ids = wider
        self.stop_ids[row] = -1
        self.stop_ids[row, : len(stops)] = stops

    def end(self, row: int) -> None:
        """The row is idle: what it computes from now on is written to the trash."""
        self.busy[row] = False
        self.inputs[0, row] = 0
        self.inputs[1, row] = self._trash

    def keys(self, span: int) -> npt.NDArray[np.int64]:
        """How many keys the next token of each of the first ``span`` rows attends to, 0 for an idle
        row.
        """
        return np.where(self.busy[:span], self.inputs[1, :span] + 1, 0)

    def accept(
        self,
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.bool_]:
        """Appends one sampled token to each of ``rows``; tells which of them sampled a stop
        token.
        """
        positions = self.inputs[1, rows] + 1
        self.ids[rows, positions] = ids
        self.logprobs[rows, positions] = logprobs
        self.inputs[0, rows] = ids
        self.inputs[1, rows] = positions
        self.count[rows] += 1
        stopped: npt.NDArray[np.bool_] = (self.stop_ids[rows] == ids[:, None]).any(axis=1)
        return stopped

    def sampled(self, row: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Views of the ids and logprobs that the row's request sampled so far."""
        first = int(self.start[row])
        end = int(self.start[row] + self.count[row])
        return self.ids[row, first:end], self.logprobs[row, first:end]

    def swap(self, one: int, other: int) -> None:
        """Exchanges two rows."""
        pair = [one, other]
        turned = [other, one]
        self.inputs[:, pair] = self.inputs[:, turned]
        arrays: tuple[npt.NDArray[Any], ...] = (
            *(self.ids, self.logprobs, self.kv_len, self.busy, self.start, self.count, self.limit),
            *(self.seeds, self.stop_ids),
            *(self._inverse_temperature, self._greedy, self._top_p, self._top_k, self._min_p),
        )
        for array in arrays:
            array[pair] = array[turned]

    def sampling(
        self,
        chosen: npt.NDArray[np.int64] | slice,
        live: npt.NDArray[np.int64],
        device: torch.device,
    ) -> SamplingRows:
        """Parameters of the ``chosen`` rows as tensors, for features that one of the ``live`` rows
        uses.
        """

        def column(array: npt.NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(array[chosen].copy()).to(device)[:, None]

        def used(array: npt.NDArray[np.generic], off: float) -> torch.Tensor | None:
            return column(array) if bool((array[live] != off).any()) else None

        greedy = used(self._greedy, False)
        return SamplingRows(
            inverse_temperature=used(self._inverse_temperature, 1.0),
            greedy=None if greedy is None else greedy[:, 0],
            top_p=used(self._top_p, 1.0),
            top_k=used(self._top_k, 0),
            min_p=used(self._min_p, 0.0),
        )
