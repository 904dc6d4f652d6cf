"""Prefix tree: finds the common prefixes of a row's samples as a forest of spans.

- The rollouts of a group share their prompt, and often a whole turn. If a template rewrites
  history, a trajectory's next sample shares a prefix with the one before it.
- Attention is causal, so tokens with the same past have the same hidden states and logprobs. A row
  needs them once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agentrl.types.arrays import common_prefix

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
    samples: Sequence[npt.NDArray[np.int32]],
) -> tuple[list[Span], list[tuple[int, ...]]]:
    """The spans of several samples, and each sample's path through them.

    Args:
        samples: ``[n]`` token ids each, at least one token; they may be equal or prefixes of each
            other.

    Returns:
        The spans, each after its parent, and for each sample the indices of its spans in order.
    """
    keys = [sample.astype(">i4").tobytes() for sample in samples]  # bytes in the order of the ids
    order = sorted(range(len(samples)), key=keys.__getitem__)
    alike = [
        common_prefix(samples[one], samples[other]) for one, other in itertools.pairwise(order)
    ]
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
        cuts = [low, *(place + 1 for place in range(low, high - 1) if alike[place] == end), high]
        waiting += [(cut, next_cut, first, path) for cut, next_cut in itertools.pairwise(cuts)]
    return spans, paths
