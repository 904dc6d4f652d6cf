"""The walk of eight rooms, and how samples are counted until it succeeds."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.types import Action, Task
from benchmarks.doors.task import DOORS, NUM_ROOMS, Doors, demonstrations, tasks
from benchmarks.pivotal_turn import WINDOW, samples_until

pytestmark = pytest.mark.tooling

TASK = Task(
    "t",
    info={
        "signs": ["red", "blue", "gold", "red", "red", "gold", "blue", "green"],
        "chest": 2,
    },
)


def walk(said: list[str]) -> tuple[list[float], list[str]]:
    """Rewards of the steps, and the names of the states."""
    env = Doors(TASK)
    seen = [env.reset(seed=0)]
    results = [
        env.step(Action(door, {"role": "assistant", "content": door})) for door in said
    ]
    assert [result.terminated for result in results] == [False] * (NUM_ROOMS - 1) + [True]
    seen += [result.observation for result in results[:-1]]
    return [result.reward for result in results], [each.info["state"] for each in seen]


@pytest.mark.parametrize("elsewhere", list(DOORS.values()))
def test_the_door_at_the_chest_alone_decides(elsewhere: str) -> None:
    right = [elsewhere] * NUM_ROOMS
    right[2] = "west"
    assert walk(right)[0] == [0, 0, 1, 0, 0, 0, 0, 0]
    wrong = [DOORS[sign] for sign in TASK.info["signs"]]
    wrong[2] = "north"
    assert walk(wrong)[0] == [0] * NUM_ROOMS


def test_states_recur_until_the_chest_and_then_tell_who_has_the_key() -> None:
    _, found = walk(["west"] * NUM_ROOMS)
    _, missed = walk(["north"] * NUM_ROOMS)
    assert found[:3] == missed[:3] == ["0 red", "1 blue", "2 gold chest"]
    assert (found[3], missed[3]) == ("3 red key", "3 red nothing")
    assert set(found[3:]).isdisjoint(missed[3:])


def test_chests_are_everywhere_and_demonstrations_rarely_right() -> None:
    made = list(tasks(0))
    assert {task.info["chest"] for task in made} == set(range(NUM_ROOMS))
    rows = demonstrations(1)
    walks = [next(rows)["messages"] for _ in range(500)]
    assert {len(each) for each in walks} == {2 * NUM_ROOMS}
    found = np.mean([any("key" in str(turn["content"]) for turn in each) for each in walks])
    assert 0.2 < found < 0.4  # .1 + .9 / 4, less chests in the last room


def test_samples_are_counted_to_the_end_of_the_first_window_that_succeeds() -> None:
    rewards = np.concatenate([np.zeros(20), np.ones(20)])
    ones = int(np.ceil(0.8 * WINDOW))
    assert samples_until(rewards, 0.8) == (20 + ones) * 8
    assert samples_until(np.zeros(40), 0.8) == 40 * 8
