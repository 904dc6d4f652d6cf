"""Drawing tokens from logits with a counter-based generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_S11 = np.uint64(11)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), a pure function of (seed, absolute token position).

    SplitMix64 (Steele, Lea & Flood 2014, OOPSLA, fig. 17) of the mixed seed at counter
    ``position``: no state, so a request gives the same numbers whatever else runs, and a resumed
    one goes on where it stopped.

    Args:
        seeds: ``[n]``.
        positions: ``[n]`` position, in the whole sequence, of the token to be drawn.

    Returns:
        ``[n]`` multiples of 2**-53.
    """
    mixed = _mix(_mix(seeds + _GAMMA) + positions.astype(np.uint64) * _GAMMA)
    return (mixed >> _S11).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters of N rows; None where no row uses the feature, so that the usual case
    stays short.

    Args:
        temperature: ``[N, 1]`` float32 (1 for greedy rows).
        inverse_temperature: ``[N, 1]`` float32 (1 for greedy rows).
        greedy: ``[N, 1]`` bool.
        top_p, min_p: ``[N, 1]`` float32. top_k: ``[N, 1]`` int64, 0 for off.
        num_alternatives: how many most likely tokens are given beside each drawn one.
    """

    temperature: Tensor | None = None
    inverse_temperature: Tensor | None = None
    greedy: Tensor | None = None
    top_p: Tensor | None = None
    top_k: Tensor | None = None
    min_p: Tensor | None = None
    num_alternatives: int = 0

    @property
    def truncates(self) -> bool:
        return self.top_p is not None or self.top_k is not None or self.min_p is not None


class Drawn(NamedTuple):
    """Tokens of N rows and k alternatives to each.

    Args:
        ids: ``[N]`` int64.
        logprobs: ``[N]`` float32.
        alternative_ids: ``[N, k]`` int64, the most likely tokens; None where k is 0.
        alternative_logprobs: ``[N, k]`` float32, falling.
    """

    ids: Tensor
    logprobs: Tensor
    alternative_ids: Tensor | None = None
    alternative_logprobs: Tensor | None = None

    def on_host(self) -> HostDrawn:
        """The same as arrays, by one transfer."""
        columns = [
            self.ids[:, None].to(torch.int32),
            self.logprobs[:, None].view(torch.int32),
        ]
        if self.alternative_ids is not None and self.alternative_logprobs is not None:
            columns.append(self.alternative_ids.to(torch.int32))
            columns.append(self.alternative_logprobs.contiguous().view(torch.int32))
        table = torch.cat(columns, 1).cpu().numpy()
        k = table.shape[1] // 2 - 1
        return HostDrawn(
            table[:, 0].astype(np.int64),
            table[:, 1].view(np.float32),
            table[:, 2 : 2 + k],
            table[:, 2 + k :].view(np.float32),
        )


class HostDrawn(NamedTuple):
    """``Drawn`` as arrays; without alternatives theirs are ``[N, 0]``."""

    ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    alternative_ids: npt.NDArray[np.int32]
    alternative_logprobs: npt.NDArray[np.float32]

    def of(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> HostDrawn:
        """Those of some rows."""
        return HostDrawn(
            self.ids[chosen],
            self.logprobs[chosen],
            self.alternative_ids[chosen],
            self.alternative_logprobs[chosen],
        )


def sample(
    logits_NV: Tensor, uniforms_N: Tensor, rows: SamplingRows, *, exact: bool = False
) -> Drawn:
    """Draws one token a row by inverting the cumulative distribution at ``uniforms_N``.

    Args:
        logits_NV: float32.
        uniforms_N: float64 in [0, 1).
        rows: sampling parameters.
        exact: take logprobs as the trainer does, to the last bit: by log-softmax, of logits that
            are divided by the temperature.

    Returns:
        ids ``[N]`` int64 and logprobs ``[N]`` float32 of log-softmax(logits / temperature) over the
        whole vocabulary, before any truncation. Logits that are not finite give a logprob that is
        not finite. Alternatives have logprobs of the same kind; one whose probability is too small
        for float32 has -inf.
    """
    if exact and rows.temperature is not None:
        logits_NV = logits_NV / rows.temperature
    elif rows.inverse_temperature is not None:
        logits_NV = logits_NV * rows.inverse_temperature
    probs = logits_NV.softmax(-1)
    kept = _truncated(probs, rows) if rows.truncates else probs
    # In float32, rare tokens would add less than a rounding to a sum near 1, and never be drawn.
    cumulative = kept.cumsum(-1, dtype=torch.float64)
    # Of the sum itself, which is below 1 where tokens were cut off.
    threshold = uniforms_N[:, None] * cumulative[:, -1:]
    # From the right, so that a threshold of 0 passes over tokens of probability 0. A NaN has no
    # place and is clamped to one; its logprob tells.
    ids = torch.searchsorted(cumulative, threshold, right=True).clamp_(
        max=logits_NV.shape[-1] - 1
    )
    if rows.greedy is not None:
        ids = torch.where(rows.greedy, logits_NV.argmax(-1, keepdim=True), ids)
    logprobs_NV = logits_NV.log_softmax(-1) if exact else None

    def logprobs_of(ids: Tensor) -> Tensor:
        return (
            probs.gather(1, ids).log_()
            if logprobs_NV is None
            else logprobs_NV.gather(1, ids)
        )

    drawn = ids.view(-1), logprobs_of(ids).view(-1)
    if not rows.num_alternatives:
        return Drawn(*drawn)
    likeliest = probs.topk(rows.num_alternatives, -1).indices
    return Drawn(*drawn, likeliest, logprobs_of(likeliest))


def _truncated(probs: Tensor, rows: SamplingRows) -> Tensor:
    """``probs`` with what top-k, top-p and min-p exclude set to 0, in the vocabulary's order.

    Top-p keeps the smallest set of most probable tokens whose sum reaches p (arXiv:1904.09751),
    min-p those of at least min_p times the most probable (arXiv:2407.01082). The three sets are
    intersected.
    """
    # Stable, so that the vocabulary's order decides which of equal tokens are kept.
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if rows.top_k is not None:
        rank = torch.arange(probs.shape[-1], device=probs.device)
        keep &= (rank < rows.top_k) | (rows.top_k == 0)
    if rows.top_p is not None:
        keep &= (ranked.cumsum(-1) - ranked < rows.top_p) | (rows.top_p >= 1.0)
    if rows.min_p is not None:
        keep &= ranked >= rows.min_p * ranked[:, :1]
    keep[:, 0] = True
    return probs * torch.zeros_like(keep).scatter_(1, order, keep)
