"""Question information: how much the answers of a step depend on their questions.

With a template collapse the policy's answers stay diverse, so that entropy stays high, and stop
depending on the question (arXiv:2604.06268). What falls is the mutual information of the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.types import SegmentKind, Trajectory, TrajectoryGroup, concat_ids

_MOST_GROUPS = 64
_MOST_TOKENS = 256
"""Tokens of an answer, its first ones. Both bounds keep the cost of a step small."""
_POOLED = 0.5
"""Weight of the pooled distribution in a question's own: no token costs more than log 2 nats."""

I64 = npt.NDArray[np.int64]
Counts = tuple[I64, I64]
"""The tokens of an answer, each once, and how often each occurs."""


def question_information(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The information of each finished trajectory about its question, in nats a token.

    It is the log of how much likelier the other answers to the same question make an answer's
    tokens than all other answers do, both as distributions over single tokens. The same of groups
    that are made across questions is taken off, which is what chance gives. Its mean estimates the
    mutual information of question and answer from below: words in another order are not seen.

    Args:
        groups: of a step; of at most 64 of them the first 256 policy tokens count.

    Returns:
        By trajectory id. Empty with fewer than two questions that have two answers each.
    """
    answers = [own for group in groups if len(own := _answers(group)) >= 2][:_MOST_GROUPS]
    if len({group[0][0].task.id for group in answers}) < 2:
        return {}
    ids = [tokens for group in answers for _, tokens in group]
    vocabulary, flat = np.unique(np.concatenate(ids), return_inverse=True)
    parts = np.split(flat.astype(np.int64), np.cumsum([len(tokens) for tokens in ids])[:-1])
    counts = [np.unique(part, return_counts=True) for part in parts]
    owners = np.repeat(np.arange(len(answers)), [len(group) for group in answers])
    places = np.concatenate([np.arange(len(group)) for group in answers])
    found = _log_ratios(counts, owners, len(vocabulary))
    chance = _log_ratios(counts, (owners + places) % len(answers), len(vocabulary)).mean()
    names = [trajectory.id for group in answers for trajectory, _ in group]
    return dict(zip(names, (found - chance).tolist(), strict=True))


def _answers(group: TrajectoryGroup) -> list[tuple[Trajectory, I64]]:
    """The finished trajectories that have policy tokens, with the first of these."""
    found = []
    for trajectory in group.finished:
        segments = [
            s for turn in trajectory.turns for s in turn.completion if s.kind == SegmentKind.POLICY
        ]
        tokens = concat_ids(segments)[:_MOST_TOKENS] if segments else ()
        if len(tokens):
            found.append((trajectory, np.asarray(tokens, np.int64)))
    return found


def _log_ratios(answers: Sequence[Counts], owners: I64, size: int) -> npt.NDArray[np.float64]:
    """Of each answer the mean over its tokens of log(pooled weight + own weight · own / pooled),
    the answer itself left out of both distributions."""
    everyone = _sum(answers, size)
    total = everyone.sum()
    means = np.zeros(len(answers))
    for owner in np.unique(owners):
        members = np.flatnonzero(owners == owner).tolist()
        together = _sum([answers[member] for member in members], size)
        siblings = together.sum()
        for member in members:
            tokens, counts = answers[member]
            length = counts.sum()
            pooled = (everyone[tokens] - counts) / (total - length)
            own = (together[tokens] - counts) / max(1.0, siblings - length)
            # a token that no other answer has says nothing of the question
            ratio = np.divide(own, pooled, out=np.ones_like(own), where=pooled > 0)
            means[member] = counts @ np.log(_POOLED + (1 - _POOLED) * ratio) / length
    return means


def _sum(answers: Sequence[Counts], size: int) -> npt.NDArray[np.float64]:
    """How often each token occurs in these answers."""
    tokens, counts = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    found = np.bincount(tokens, weights=counts, minlength=size)
    return np.asarray(found, dtype=np.float64)
