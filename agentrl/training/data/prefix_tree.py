"""Prefix tree: finds the common prefixes of a row's samples as a forest of spans.

- The rollouts of a group share their prompt, and often a whole turn. If a template rewrites
  history, a trajectory's next sample shares a prefix with the one before it.
- Placeholders of two images are equal tokens with another meaning: a prefix ends there.
- Attention is causal, so tokens with the same past have the same hidden states and logprobs. A row
  needs them once.
- The driver sorts the samples of each group by their tokens once a batch (``PrefixOrder``). From
  what neighbours have in common follows what any set of them shares.

Axes: S samples of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agentrl.types.arrays import I32, I64, common_prefix

ROOT = -1
"""The parent of a span that begins a sample."""

_LEAST_SAVED = 16
"""Tokens that sharing a span must save; for fewer, one more attention call costs more than they do.
"""


class Span(NamedTuple):
    """Tokens ``first`` .. ``first + size - 1`` of each sample whose path contains the span.

    Args:
        parent: the index of the span before it; ``ROOT`` if ``first`` is 0.
        first: tokens before it.
        size: at least 1.
    """

    parent: int
    first: int
    size: int


def shared_spans(
    samples: Sequence[I32],
) -> tuple[list[Span], list[tuple[int, ...]]]:
    """The spans of several samples, and each sample's path through them.

    Args:
        samples: ``[n]`` identities each (``Batch.identities``), at least one; they may be equal or
            prefixes of each other.

    Returns:
        The spans, each after its parent, and for each sample the indices of its spans in order.
    """
    order, alike = _sorted_prefixes(samples)
    spans: list[Span] = []
    paths: list[tuple[int, ...]] = [()] * len(samples)
    # ranges of ``order`` whose samples are alike at least up to ``first``, with their path up to
    # there
    waiting: list[tuple[int, int, int, tuple[int, ...]]] = [(0, len(order), 0, ())]
    while waiting:
        low, high, first, path = waiting.pop()
        number = high - low
        end = min(alike[low : high - 1]) if number > 1 else samples[order[low]].size
        if end > first and (number == 1 or (number - 1) * (end - first) >= _LEAST_SAVED):
            spans.append(Span(path[-1] if path else ROOT, first, end - first))
            path = (*path, len(spans) - 1)
            first = end
        if number == 1:
            paths[order[low]] = path
            continue
        cuts = [
            low,
            *(place + 1 for place in range(low, high - 1) if alike[place] == end),
            high,
        ]
        waiting += [
            (cut, next_cut, first, path) for cut, next_cut in itertools.pairwise(cuts)
        ]
    return spans, paths


@dataclass(frozen=True, slots=True, eq=False)
class PrefixOrder:
    """The samples of a batch, those of a group side by side and sorted by their tokens.

    The tokens that two samples of a group share are the least ``shared`` after the first of them,
    up to the second.

    Args:
        order: ``[S]`` rows of the batch.
        shared: ``[S]`` tokens that a micro-batch holds once for ``order[k]`` and ``order[k - 1]``;
            0 where they are of two groups. The packer never shares fewer.
    """

    order: I64
    shared: I64

    @classmethod
    def of(
        cls,
        identities: I32,
        cu_seqlens: I32,
        groups: npt.NDArray[np.integer],
    ) -> PrefixOrder:
        """What the samples of each group begin with alike.

        Args:
            identities: ``[T]`` of the batch (``Batch.identities``).
            cu_seqlens: ``[S+1]`` its samples' boundaries.
            groups: ``[S]`` equal for samples of one group.
        """
        plain = cls.without_sharing(groups).order
        order, shared = [], []
        for members in np.split(plain, np.flatnonzero(np.diff(groups[plain])) + 1):
            samples = [identities[cu_seqlens[row] : cu_seqlens[row + 1]] for row in members]
            places, alike = _sorted_prefixes(samples)
            order.append(members[places])
            shared.append(np.array([0, *alike], dtype=np.int64))
        # the packer leaves a span apart that saves too little
        least = np.maximum(np.concatenate(shared) - (_LEAST_SAVED - 1), 0)
        return cls(np.concatenate(order), least)

    @classmethod
    def without_sharing(cls, groups: npt.NDArray[np.integer]) -> PrefixOrder:
        """The order for a model whose rows hold each sample whole.

        Args:
            groups: ``[S]`` equal for samples of one group.
        """
        order = np.argsort(groups, kind="stable")
        return cls(order, np.zeros(order.size, dtype=np.int64))


def _sorted_prefixes(samples: Sequence[I32]) -> tuple[list[int], list[int]]:
    """The order of samples by their tokens, and what each but the first has in common with the one
    before it.
    """
    # The bytes sort as the ids do.
    keys = [sample.astype(">i4").tobytes() for sample in samples]
    order = sorted(range(len(samples)), key=keys.__getitem__)
    alike = [
        common_prefix(samples[one], samples[other])
        for one, other in itertools.pairwise(order)
    ]
    return order, alike
