"""Behaviour: what the policy says and does more or less often in one range of steps than before.

The unit is the trajectory: it has a phrase or a pattern of calls, or it has not. Statistics and
sources: docs/behaviour-and-blame.md.

Axes: D trajectories, K candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import NormalDist

import numpy as np

from agentrl.types.arrays import F64, I32, I64, Bools
from agentrl.viewer.analysis.change_points import level_onset
from agentrl.viewer.analysis.ngrams import (
    MAX_DOCUMENTS,
    MAX_WORDS,
    SEPARATOR,
    Candidate,
    Corpus,
    NgramCounts,
    Vocabulary,
    count_ngrams,
    join_overlapping,
    spell,
)
from agentrl.viewer.analysis.significance import (
    design_effect,
    fisher_p,
    log_odds,
    proportion_z,
    q_values,
)
from agentrl.viewer.analysis.stored_rows import NO_CALL, Episode

LONGEST = 4
"""Words of the longest n-gram; phrases that occur together are joined to longer ones."""
MIN_SUPPORT = 5
"""The fewest trajectories of a candidate, over both ranges."""
FALSE_DISCOVERIES = 0.001
"""The largest expected share of findings that are none; so few, because readers look at many pairs
of ranges."""
SHOWN_IDS = 20
MAX_CHARACTERS = 200_000
"""What is read of one trajectory's text."""

_WORD = re.compile(r"[^\W\d]\w{0,63}|\d[\d.,]{0,63}")
_MAX_CANDIDATES = 4000
_Z_MARGIN = 0.3
"""By how much a first look's z may lie below that of the largest p-value that can pass."""


@dataclass(frozen=True, slots=True)
class Change:
    """A phrase or pattern whose frequency changed.

    Args:
        text: the words, in lower case, a number as ``#``; or the calls, with an arrow between.
        freq_a, freq_b: the shares of trajectories that have it.
        count_a, count_b: the trajectories that have it.
        log_odds: of b less those of a, natural, with an informative prior.
        p: Fisher's exact test, two-sided, of counts divided by the design effect.
        q: the same after Benjamini and Hochberg.
        reward_with, reward_without: mean rewards in the range where it is more frequent; None
            without a reward to average.
        ids_a, ids_b: some trajectories that have it.
        course: by step, the share of trajectories that have it.
        since: the step at which it became so, if it did at once (``level_onset``).
        first: the first trajectory from then on that has it, where it became more frequent.
    """

    text: str
    freq_a: float
    freq_b: float
    count_a: int
    count_b: int
    log_odds: float
    p: float
    q: float
    reward_with: float | None
    reward_without: float | None
    ids_a: list[str] = field(default_factory=list)
    ids_b: list[str] = field(default_factory=list)
    course: list[tuple[int, float]] = field(default_factory=list)
    since: int | None = None
    first: str = ""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What changed from a to b, the surest first.

    Args:
        patterns: of tool calls.
        phrases: of the policy's text.
        num_a, num_b: trajectories that were read; fewer than given where ``MAX_WORDS`` of text or
            ``MAX_DOCUMENTS`` were reached.
        complete: whether all of a and b were read.
    """

    patterns: tuple[Change, ...]
    phrases: tuple[Change, ...]
    num_a: int
    num_b: int
    complete: bool


def behaviour(
    a: Iterable[Episode],
    b: Iterable[Episode],
    between: Iterable[Episode] = (),
    *,
    limit: int = 50,
    rate: float = FALSE_DISCOVERIES,
) -> Behaviour:
    """What changed from the episodes ``a`` to the episodes ``b``.

    Args:
        a, b: of two ranges of steps; read in turns, an episode at a time.
        between: of the steps between them, in any order, which date what changed; all are read.
        limit: the most patterns and the most phrases.
        rate: the largest expected share of findings that are none.
    """
    sides = _Sides()
    complete = sides.read(a, b)
    patterns: list[Candidate] = []
    phrases: list[Candidate] = []
    if any(sides.second) and not all(sides.second):
        second = np.array(sides.second)
        tasks = np.unique(sides.tasks, return_inverse=True)[1] * 2 + second
        frame = _Frame(
            second,
            np.unique(tasks, return_inverse=True)[1],
            sides.ids,
            sides.rewards,
            sides.steps,
        )
        known = Corpus.of(sides.prompts)
        phrases = _changes(Corpus.of(sides.texts), known, frame, rate, limit)
        nothing = Corpus.of([[] for _ in sides.ids])
        patterns = _changes(Corpus.of(sides.calls), nothing, frame, rate, limit)
    counts = (sides.second.count(False), sides.second.count(True))
    if not (phrases or patterns):
        return Behaviour((), (), *counts, complete)
    middle = _Middle(sides, phrases, patterns, between)
    return Behaviour(
        tuple(
            _change(one, " → ".join(sides.names.words[i] for i in one.words), frame, middle)
            for one in patterns
        ),
        tuple(
            _change(one, " ".join(sides.words.words[i] for i in one.words), frame, middle)
            for one in phrases
        ),
        *counts,
        complete,
    )


class _Sides:
    """What was read of both ranges, as numbers of words."""

    def __init__(self) -> None:
        self.words = Vocabulary(fold_numbers=True)
        self.names = Vocabulary()
        self.ids: list[str] = []
        self.tasks: list[str] = []
        self.rewards: list[float] = []
        self.steps: list[int] = []
        self.second: list[bool] = []
        self.texts: list[I32] = []
        self.prompts: list[I32] = []
        self.calls: list[I32] = []

    def read(self, a: Iterable[Episode], b: Iterable[Episode]) -> bool:
        """Both in turns, up to the bounds; whether that was all."""
        left = MAX_WORDS
        for pair in zip_longest(a, b):
            for second, episode in enumerate(pair):
                if episode is None:
                    continue
                if left <= 0 or len(self.ids) >= MAX_DOCUMENTS:
                    return False
                self._add(episode, second=bool(second))
                left -= self.texts[-1].size + self.prompts[-1].size
        return True

    def _add(self, episode: Episode, *, second: bool) -> None:
        self.ids.append(episode.id)
        self.tasks.append(episode.task_id or episode.id)
        self.rewards.append(np.nan if episode.reward is None else episode.reward)
        self.steps.append(episode.step)
        self.second.append(second)
        for own, numbers in zip(
            (self.texts, self.prompts, self.calls), self.numbers(episode), strict=True
        ):
            own.append(numbers)

    def numbers(self, episode: Episode) -> tuple[I32, I32, I32]:
        """What the policy wrote, its prompt, and its calls."""
        calls = [call for turn in episode.calls for call in turn] or [NO_CALL]
        called = np.array([self.names[call] for call in calls], dtype=np.int32)
        return self._numbers(episode.texts), self._numbers((episode.prompt,)), called

    def _numbers(self, texts: Sequence[str]) -> I32:
        numbers: list[int] = []
        left = MAX_CHARACTERS
        for text in texts:
            found = _WORD.findall(text[:left].lower())
            numbers += map(self.words.__getitem__, found)
            numbers.append(SEPARATOR)
            left = max(0, left - len(text))
        return np.array(numbers, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """The trajectories that are compared.

    Args:
        second: ``[D]`` whether it is of range b.
        tasks: ``[D]`` the number of its task in its range.
        ids, rewards, steps: ``[D]``; NaN without a reward.
    """

    second: Bools
    tasks: I64
    ids: Sequence[str]
    rewards: Sequence[float]
    steps: Sequence[int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Trajectories of a and of b."""
        num_b = int(self.second.sum())
        return self.second.size - num_b, num_b


def _changes(
    corpus: Corpus,
    known: Corpus,
    frame: _Frame,
    rate: float,
    limit: int,
) -> list[Candidate]:
    """The candidates that pass the test, the surest first."""
    found: list[Candidate] = []
    num_tests = 0
    for counts in count_ngrams(corpus, known, LONGEST, MIN_SUPPORT):
        num_tests += counts.hashes.size
        found += _candidates(corpus, counts, frame, rate)
    if not found:
        return []
    kept = _significant(found, num_tests, frame, rate)
    kept.sort(key=lambda one: (-abs(one.z), -len(one.words)))
    return join_overlapping(kept, corpus, limit)


def _candidates(
    corpus: Corpus, counts: NgramCounts, frame: _Frame, rate: float
) -> list[Candidate]:
    """N-grams whose frequencies differ at a first look: no other can pass the test, whose design
    effect only makes p-values larger.
    """
    least_z = NormalDist().inv_cdf(1.0 - rate / 2.0) - _Z_MARGIN
    num_a, num_b = frame.sizes
    count_b = counts.with_flag(frame.second)
    count_a = np.diff(counts.starts) - count_b
    z = np.abs(proportion_z(count_a, num_a, count_b, num_b))
    indices = np.flatnonzero(z >= least_z)
    indices = indices[np.argsort(-z[indices], kind="stable")[:_MAX_CANDIDATES]]
    spelled = spell(corpus, counts, indices)
    return [Candidate(spelled[index], counts.of(index)) for index in indices.tolist()]


def _significant(
    found: list[Candidate], num_tests: int, frame: _Frame, rate: float
) -> list[Candidate]:
    sizes = np.bincount(frame.tasks)
    side = np.zeros(sizes.size, dtype=bool)
    side[frame.tasks] = frame.second
    by_task = (
        np.bincount(frame.tasks[one.documents], minlength=sizes.size) for one in found
    )
    effects = np.array([design_effect(own, sizes, side) for own in by_task])
    num_a, num_b = frame.sizes
    count_b = np.array([int(frame.second[one.documents].sum()) for one in found])
    count_a = np.array([one.documents.size for one in found]) - count_b
    # Rollouts of one task say alike things, and so count as fewer than they are.
    scaled = (count_a / effects, num_a / effects, count_b / effects, num_b / effects)
    change, z = log_odds(*scaled)
    p_values = fisher_p(*(np.rint(column).astype(np.int64) for column in scaled))
    q = q_values(p_values, num_tests)
    for index, one in enumerate(found):
        one.log_odds = float(change[index])
        one.z = float(z[index])
        one.p = float(p_values[index])
        one.q = float(q[index])
    return [one for one in found if one.q <= rate]


class _Middle:
    """Which of the episodes between the ranges have what changed.

    Attributes:
        steps, ids: ``[D]`` of those that were read.
    """

    def __init__(
        self,
        sides: _Sides,
        phrases: Sequence[Candidate],
        patterns: Sequence[Candidate],
        episodes: Iterable[Episode],
    ) -> None:
        self.steps: list[int] = []
        self.ids: list[str] = []
        self._having: dict[Candidate, list[bool]] = {
            one: [] for one in (*phrases, *patterns)
        }
        for episode in episodes:
            self.steps.append(episode.step)
            self.ids.append(episode.id)
            # nothing of its text is kept
            wrote, knew, called = (Corpus.of([own]) for own in sides.numbers(episode))
            for one in phrases:
                has = wrote.occurs(0, one.counted) and not knew.occurs(0, one.counted)
                self._having[one].append(has)
            for one in patterns:
                self._having[one].append(called.occurs(0, one.counted))

    def having(self, one: Candidate) -> Bools:
        """``[D]`` whether it has this one."""
        return np.array(self._having[one], dtype=bool)


def _change(one: Candidate, text: str, frame: _Frame, middle: _Middle) -> Change:
    num_a, num_b = frame.sizes
    in_b = frame.second[one.documents]
    count_b = int(in_b.sum())
    count_a = one.documents.size - count_b
    has = np.zeros(frame.second.size, dtype=bool)
    has[one.documents] = True
    rewards = np.array(frame.rewards)
    ids = [*frame.ids, *middle.ids]
    everywhere = np.concatenate([has, middle.having(one)])
    steps, places = np.unique([*frame.steps, *middle.steps], return_inverse=True)
    counts = np.bincount(places).astype(np.float64)
    shares = np.bincount(places[everywhere], minlength=steps.size) / counts
    onset = level_onset(steps.astype(np.float64), shares, counts)
    later = [] if onset is None else np.flatnonzero(everywhere & (places >= onset)).tolist()
    risen = onset is not None and everywhere[places >= onset].mean() > everywhere.mean()
    own = (frame.second == (count_b / num_b > count_a / num_a)) & ~np.isnan(rewards)
    return Change(
        text=text,
        freq_a=count_a / num_a,
        freq_b=count_b / num_b,
        count_a=count_a,
        count_b=count_b,
        log_odds=one.log_odds,
        p=one.p,
        q=one.q,
        reward_with=_mean(rewards[own & has]),
        reward_without=_mean(rewards[own & ~has]),
        ids_a=[frame.ids[index] for index in one.documents[~in_b][:SHOWN_IDS]],
        ids_b=[frame.ids[index] for index in one.documents[in_b][:SHOWN_IDS]],
        course=list(zip(steps.tolist(), shares.tolist(), strict=True)),
        since=None if onset is None else int(steps[onset]),
        first=ids[min(later, key=places.__getitem__)] if later and risen else "",
    )


def _mean(values: F64) -> float | None:
    return float(values.mean()) if values.size else None
