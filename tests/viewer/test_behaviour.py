"""Behaviour: planted changes are found, and nothing else."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agentrl.viewer.analysis.behaviour import behaviour
from agentrl.viewer.analysis.stored_rows import Episode

PLANTED = "let me double check that"
COMMON = [f"w{index}" for index in range(300)]


def played(
    rng: random.Random,
    task: int,
    rollout: int,
    *,
    planted: float = 0.0,
    broken: float = 0.0,
) -> Episode:
    """An episode: common words, words that its task's siblings use too, and what is planted."""
    own = [f"topic{task}x{index}" for index in range(6)]
    words = [*rng.choices(COMMON, k=60), *rng.choices(own, k=10)]
    rng.shuffle(words)
    says = rng.random() < planted
    text = " ".join(words) + (
        f". Let me double check that {rng.randrange(99)}" if says else ""
    )
    call = "python exception" if rng.random() < broken else "python ok"
    return Episode(
        id=f"{task}-{rollout}-0",
        task_id=f"t{task}",
        prompt=f"Please solve {own[0]} {own[1]} now",
        texts=(text,),
        calls=((call,), ("python ok",)),
        reward=0.25 + 0.5 * says,
    )


def rounds(seed: int, tasks: range, **planted: float) -> list[Episode]:
    rng = random.Random(f"{seed}-{tasks}")
    return [played(rng, task, rollout, **planted) for task in tasks for rollout in range(8)]


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_phrase_is_among_the_first_five(seed: int) -> None:
    found = behaviour(rounds(seed, range(40)), rounds(seed, range(40, 80), planted=0.3))

    texts = [change.text for change in found.phrases[:5]]
    assert PLANTED in " / ".join(texts)


def test_the_parts_of_a_phrase_are_joined_to_one() -> None:
    found = behaviour(rounds(1, range(40)), rounds(1, range(40, 80), planted=0.4))

    assert [change.text for change in found.phrases] == [f"{PLANTED} #"]


def test_a_phrase_has_its_counts_rewards_and_episodes() -> None:
    after = rounds(2, range(40, 80), planted=0.3)
    having = [episode.id for episode in after if "double" in episode.texts[0]]

    (change,) = behaviour(rounds(2, range(40)), after).phrases

    assert (change.count_a, change.freq_a) == (0, 0.0)
    assert (change.count_b, change.freq_b) == (len(having), len(having) / 320)
    assert (change.reward_with, change.reward_without) == (0.75, 0.25)
    assert change.ids_b == having[:20]
    assert change.log_odds > 2.0
    assert change.p <= change.q < 0.01


def course(seed: int, shares: Sequence[float]) -> list[list[Episode]]:
    """By step from 1 on, 64 episodes of which such a share has the phrase and a broken call."""
    return [
        [
            replace(one, id=f"{step}-{one.id}", step=step)
            for one in rounds(
                seed, range(8 * step, 8 * step + 8), planted=share, broken=share
            )
        ]
        for step, share in enumerate(shares, start=1)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("onset", [2, 5, 8, 9])
def test_what_began_at_once_is_dated(seed: int, onset: int) -> None:
    steps = course(seed, [0.5 * (step >= onset) for step in range(1, 11)])
    flat = [one for own in steps for one in own]
    first = 128 if onset > 2 else 64
    found = behaviour(flat[:first], flat[-128:], flat[first:-128])

    for change in (*found.phrases, *found.patterns):
        assert change.since == onset
        assert [step for step, _ in change.course] == list(range(1, 11))
    (phrase,) = found.phrases
    assert phrase.first == next(
        one.id for one in steps[onset - 1] if "double" in one.texts[0]
    )
    # two steps have no course
    apart = behaviour(steps[0], steps[-1])
    assert [change.since for change in apart.phrases] == [None]


def test_all_that_lies_between_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = course(0, [0.0] * 6 + [0.5] * 2)
    between = [one for own in steps[1:6] for one in own]
    # as many words as both ranges have, about
    monkeypatch.setattr(sys.modules[behaviour.__module__], "MAX_WORDS", 16_000)
    (phrase,) = behaviour(steps[0], [*steps[6], *steps[7]], between).phrases
    assert [step for step, _ in phrase.course] == list(range(1, 9))
    assert phrase.since == 7


def test_what_came_gradually_has_no_onset() -> None:
    steps = course(0, [0.06 * step for step in range(10)])
    flat = [one for own in steps for one in own]
    (phrase,) = behaviour(flat[:128], flat[-128:], flat[128:-128]).phrases
    assert (phrase.since, phrase.first) == (None, "")
    assert len(phrase.course) == 10


def test_what_the_prompt_of_an_episode_between_says_is_not_its_behaviour() -> None:
    steps = course(0, [0.0, 0.0, 0.5, 0.5])
    between = [
        replace(one, texts=(PLANTED,), prompt=f"Now {PLANTED} {n}", id=f"x{n}")
        for n, one in enumerate(steps[1])
    ]
    (phrase,) = behaviour(steps[0], [*steps[2], *steps[3]], between).phrases
    assert phrase.since == 3
    assert dict(phrase.course)[2] == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_pattern_of_calls_is_found(seed: int) -> None:
    found = behaviour(
        rounds(seed, range(40), broken=0.5), rounds(seed, range(40, 80), broken=0.1)
    )

    # one in two at first began with an exception; now nine in ten begin well
    changes = {change.text: change.log_odds for change in found.patterns}
    assert changes["python exception → python ok"] < -1.0
    assert changes["python ok → python ok"] > 1.0
    assert len(changes) == 2


def shuffled(
    episodes: Sequence[Episode], seed: int, whole: bool
) -> tuple[list[Episode], ...]:
    """The episodes in two halves at random: each for itself, or a task's rollouts together."""
    rng = np.random.default_rng(seed)
    names = [episode.task_id if whole else episode.id for episode in episodes]
    order = {name: place for place, name in enumerate(rng.permutation(sorted(set(names))))}
    half = len(order) // 2
    first = [e for e, name in zip(episodes, names, strict=True) if order[name] < half]
    return first, [
        e for e, name in zip(episodes, names, strict=True) if order[name] >= half
    ]


@pytest.mark.parametrize("whole", [False, True], ids=["trajectories", "tasks"])
def test_nothing_is_found_under_shuffled_steps(whole: bool) -> None:
    episodes = [
        *rounds(9, range(40), broken=0.5),
        *rounds(9, range(40, 80), planted=0.3, broken=0.1),
    ]

    for seed in range(10):
        found = behaviour(*shuffled(episodes, seed, whole))
        assert (found.phrases, found.patterns) == ((), ()), seed


def test_the_words_of_one_task_are_no_change_of_behaviour() -> None:
    # each task's eight rollouts say its words, which is one observation and not eight
    found = behaviour(rounds(3, range(8)), rounds(3, range(8, 16)))

    assert found.phrases == ()


def test_what_the_prompt_contains_is_no_phrase() -> None:
    def asked(step: int) -> list[Episode]:
        prompt = "Say abracadabra" if step else "Say nothing"
        text = "abracadabra" if step else "nothing"
        return [
            Episode(f"{step}-{i}-0", f"t{step}{i}", prompt, (text,), ((),), 1.0)
            for i in range(50)
        ]

    assert behaviour(asked(0), asked(1)).phrases == ()


def test_an_empty_range_has_no_findings() -> None:
    found = behaviour([], rounds(0, range(3)))

    assert (found.phrases, found.patterns, found.num_a, found.num_b) == ((), (), 0, 24)


def test_endless_text_is_cut_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # the package exports a function of the module's name
    monkeypatch.setattr(sys.modules[behaviour.__module__], "MAX_WORDS", 2000)

    found = behaviour(rounds(0, range(10)), rounds(0, range(10, 20)))

    assert not found.complete
    assert 0 < found.num_a + found.num_b < 160
    assert abs(found.num_a - found.num_b) <= 1
