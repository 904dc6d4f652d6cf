"""Token columns: numbers of each trained token that an update leaves behind.

They stay on the device until the update's end, so that no micro-batch waits for them. None of them
is part of the loss's graph.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.algorithms import Correction, OldLogprobs, PolicyInputs, TokenLoss
from agentrl.store.store_spec import Detail
from agentrl.types.arrays import Floats

I64 = npt.NDArray[np.int64]


class TokenColumns:
    """Collects the columns of one update over its micro-batches.

    Args:
        detail: ``basic`` collects none, ``full`` the entropy too.
        dtype: of the columns.
    """

    def __init__(
        self, detail: Detail, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> None:
        self._dtype = dtype
        self._detail = detail
        self._parts: dict[str, list[tuple[I64, Tensor]]] = {}

    @torch.no_grad()
    def add(
        self,
        source: I64,
        inputs: PolicyInputs,
        outcome: TokenLoss,
        correction: Correction | None,
        old_logprobs: OldLogprobs,
    ) -> None:
        """Take a micro-batch.

        Args:
            source: ``[N]`` positions of its trained tokens in the shard's columns.
            inputs, outcome: what the loss was given and returned.
            correction: factors c_t; None is 1.
            old_logprobs: where π_old comes from. Unless a pass of its own computed it, the update's
                logprobs are kept.

        Raises:
            ValueError: a column of the loss has another shape.
        """
        if self._detail == "basic":
            return
        loss = outcome.loss if correction is None else outcome.loss * correction.factor
        for term in outcome.terms.values():
            loss = loss + term.coef * term.values
        columns = {**outcome.columns, "token_loss": loss}
        if old_logprobs in ("current", "rollout"):
            columns["logprobs"] = inputs.logprobs
        if correction is not None:
            columns["correction"] = correction.factor
        if self._detail == "full":
            columns["entropy"] = inputs.entropy
        for name, values in columns.items():
            if values.shape != inputs.logprobs.shape:
                raise ValueError(
                    f"column {name!r} of the policy's loss must have an entry for each of the "
                    f"{inputs.logprobs.numel()} trained tokens, got shape {tuple(values.shape)}"
                )
            self._parts.setdefault(name, []).append((source, values.detach()))

    def result(self, num_tokens: int) -> dict[str, Floats]:
        """``[num_tokens]`` columns by name, 0 for tokens that were not trained."""
        columns = {}
        for name, parts in self._parts.items():
            column = np.zeros(num_tokens, dtype=self._dtype)
            sources = np.concatenate([source for source, _ in parts])
            # bfloat16, which numpy has not, is not among them
            column[sources] = torch.cat([values for _, values in parts]).cpu().numpy()
            columns[name] = column
        return columns
