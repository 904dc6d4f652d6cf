"""The decode rows as arrays on the host: one vectorised pass over all of them a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from agentrl.engines.torch.job import ScheduledRequest
from agentrl.engines.torch.sampling import SamplingRows

_OFF: Mapping[str, np.generic] = {
    "temperature": np.float32(1.0),
    "inverse_temperature": np.float32(1.0),
    "greedy": np.False_,
    "top_p": np.float32(1.0),
    "top_k": np.int64(0),
    "min_p": np.float32(0.0),
}
"""Fields of ``SamplingRows`` with the values that leave a row as it is."""


class RowTable:
    """Every array has one entry a row; ``ids`` and ``logprobs`` are ``[rows, capacity]`` by
    absolute position. A request samples its tokens at positions ``start`` to ``last``.

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
        self.start = np.zeros(rows, dtype=np.int64)
        self.last = np.zeros(rows, dtype=np.int64)
        self.seeds = np.zeros(rows, dtype=np.uint64)
        self.stop_ids = np.full((rows, 1), -1, dtype=np.int64)
        self.num_alternatives = np.zeros(rows, dtype=np.int64)
        self._sampling = {name: np.full(rows, off) for name, off in _OFF.items()}

    def begin(self, row: int, job: ScheduledRequest) -> None:
        """Gives a row to a request; it holds no KV yet."""
        sampling = job.request.sampling
        start = job.num_prompt
        self.kv_len[row] = 0
        self.ids[row, : job.ids.size] = job.ids
        self.logprobs[row, start : job.ids.size] = job.logprobs
        self.start[row] = start
        self.last[row] = start + sampling.max_new_tokens - 1
        self.seeds[row] = np.uint64(job.request.seed % 2**64)
        self.num_alternatives[row] = job.request.num_alternatives
        greedy = sampling.temperature == 0.0
        values = (
            1.0 if greedy else sampling.temperature,
            1.0 if greedy else 1.0 / sampling.temperature,
            greedy,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p,
        )
        for column, value in zip(self._sampling.values(), values, strict=True):
            column[row] = value
        stops = sampling.stop_token_ids
        more = max(len(stops) - self.stop_ids.shape[1], 0)
        self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, more)), constant_values=-1)
        self.stop_ids[row] = -1
        self.stop_ids[row, : len(stops)] = stops

    def end(self, row: int) -> None:
        """The row is idle: what it computes from now on is written to the trash."""
        self.inputs[0, row] = 0
        self.inputs[1, row] = self._trash

    def held(self, row: int) -> npt.NDArray[np.int32]:
        """View of the ids whose KV the row holds."""
        return self.ids[row, : self.kv_len[row]]

    def keys(self, span: int) -> npt.NDArray[np.int64]:
        """How many keys the next token of each of the first ``span`` rows attends to, 0 for an idle
        row.
        """
        positions = self.inputs[1, :span]
        return np.where(positions == self._trash, 0, positions + 1)

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
        stopped: npt.NDArray[np.bool_] = (self.stop_ids[rows] == ids[:, None]).any(axis=1)
        return stopped

    def sampled(self, row: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Views of the ids and logprobs that the row's request sampled so far."""
        places = slice(int(self.start[row]), int(self.inputs[1, row]) + 1)
        return self.ids[row, places], self.logprobs[row, places]

    def swap(self, one: int, other: int) -> None:
        """Exchanges two rows."""
        pair = [one, other]
        turned = [other, one]
        self.inputs[:, pair] = self.inputs[:, turned]
        arrays: tuple[npt.NDArray[Any], ...] = (
            *(self.ids, self.logprobs, self.kv_len, self.start, self.last, self.seeds),
            *(self.stop_ids, self.num_alternatives, *self._sampling.values()),
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
        return SamplingRows(
            **{
                name: torch.from_numpy(column[chosen].copy()).to(device)[:, None]
                for name, column in self._sampling.items()
                if (column[live] != _OFF[name]).any()
            },
            num_alternatives=int(self.num_alternatives[live].max(initial=0)),
        )
