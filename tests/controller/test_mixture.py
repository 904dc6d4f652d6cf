"""A mixture's draws follow the weights of its sources, at every moment."""

from __future__ import annotations

import random

import pytest

from agentrl.rollouts.samplers.mixture import Mixture


def test_weights_of_a_half_a_third_and_a_sixth() -> None:
    # deadlines of the first draws, 1 / share: 2, 3 and 6, so source 0 begins. Its second draw is
    # due when 1 < p / 2, from draw 3 on, and source 1 takes draw 2. At draw 4 source 1's second and
    # source 2's first have the deadline 6, and so have, at draw 5, source 0's third and source 2's
    # first: the lower number goes first.
    mixture = Mixture([3, 2, 1])
    assert [mixture.next() for _ in range(6)] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (0, 2),
        (2, 0),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_source_is_ever_a_whole_draw_ahead_or_behind(seed: int) -> None:
    rng = random.Random(seed)
    weights = [round(rng.uniform(0.05, 3), 2) for _ in range(rng.randrange(2, 9))]
    mixture = Mixture(weights)
    counts = [0] * len(weights)
    for drawn in range(1, 2000):
        source, place = mixture.next()
        assert place == counts[source]
        counts[source] += 1
        for weight, count in zip(weights, counts, strict=True):
            assert abs(count - weight / sum(weights) * drawn) < 1
