"""A game of TextArena's interface is played over seats, and rewards its players at its end."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import EnvSpec, TextArenaEnv, TurnLimit, check_env
from agentrl.errors import ConfigError, EnvError
from agentrl.rollouts import AgentSpec, run_episode
from agentrl.types import Observation, StepResult, Task, TrajectoryGroup
from tests.agent_server.agents.conftest import python
from tests.kit.episodes import spoken
from tests.rollouts.bytewise import KEY, context_of, rollout_spec, say, scripted

__all__ = ["python"]

FOLDER = Path(__file__).parent
NIM = f"{FOLDER / 'nim.py'}:Nim"
TASK = Task("t", ({"role": "system", "content": "Play."},))


def told(observation: Observation) -> tuple[str, list[Any]]:
    return observation.agent, [message["content"] for message in observation.messages]


def opened(**settings: Any) -> tuple[TextArenaEnv, Observation]:
    env = TextArenaEnv(TASK, env_id=NIM, **{"env_args": {"sticks": 5}, **settings})
    return env, env.reset(seed=0)


def test_a_tasks_own_arguments_may_be_null() -> None:
    env = TextArenaEnv(
        replace(TASK, info={"env_args": None}), env_id=NIM, env_args={"sticks": 5}
    )
    assert env.env_args == {"sticks": 5}


@pytest.mark.parametrize("as_text", [False, True])
def test_each_player_is_told_what_is_new_to_it(as_text: bool) -> None:
    env, opening = opened(env_args={"sticks": 5, "as_text": as_text})
    results = [env.step(spoken(word)) for word in ("I take [3]", "[1]", "[1]")]
    heard = [told(opening), *(told(result.observation) for result in results[:2])]
    own = "[Player 0] I take [3]\n" if as_text else ""
    game = "[GAME] " if as_text else ""
    assert heard == [
        ("player_0", ["Play.", f"{game}You are Player 0. There are 5."]),
        (
            "player_1",
            [
                "Play.",
                f"{game}You are Player 1. There are 5.\n[Player 0] I take [3]\n{game}2 are left.",
            ],
        ),
        ("player_0", [f"{own}{game}2 are left.\n[Player 1] [1]\n{game}1 are left."]),
    ]
    assert results[2].terminated
    assert results[2].reward == {"player_0": 1.0, "player_1": -1.0}
    assert results[2].info["game"]["player_0"] == {"invalid_move": False}
    env.close()
    env.close()


def test_an_invalid_move_is_the_games_to_judge() -> None:
    env, _ = opened(players=["white", "black"])
    first = env.step(spoken("[9]"))
    assert told(first.observation) == ("white", ["That is no move."])
    assert (first.reward, first.terminated) == (0.0, False)
    second = env.step(spoken("hm"))
    assert second.terminated
    assert second.reward == {"white": -1.0, "black": 0.0}
    assert second.info["game"]["white"] == {"invalid_move": True}


def test_thoughts_are_not_for_the_others() -> None:
    env, _ = opened()
    result = env.step(spoken("<think>[3] would lose</think>[1]"))
    assert "[Player 0] [1]\n4 are left." in told(result.observation)[1][1]


async def test_a_spent_limit_of_turns_truncates_without_rewards() -> None:
    inner, _ = opened()
    env = TurnLimit(inner, 2)
    assert not (await env.step(spoken("[1]"))).truncated
    result = await env.step(spoken("[1]"))
    assert (result.truncated, result.reward, result.info) == (
        True,
        0.0,
        {"reason": "max_turns"},
    )
    await env.close()


def test_what_a_game_draws_depends_on_the_seed_alone() -> None:
    def play(env: TextArenaEnv, between: Any) -> list[tuple[str, list[Any]]]:
        heard = [told(env.reset(seed=3))]
        result = StepResult(Observation())
        while not result.terminated:
            between()
            result = env.step(spoken("[1]"))
            heard.append(told(result.observation))
        return heard

    def disturb() -> None:
        other.reset(seed=random.randrange(99))
        other.step(spoken("[1]"))

    other = TextArenaEnv(TASK, env_id=NIM)
    alone = play(TextArenaEnv(TASK, env_id=NIM), lambda: None)
    assert len(alone) > 3
    assert play(TextArenaEnv(TASK, env_id=NIM), disturb) == alone


def test_a_game_leaves_the_process_its_own_random_numbers() -> None:
    random.seed(7)
    expected = [random.random() for _ in range(3)]
    random.seed(7)
    found = [random.random()]
    env, _ = opened()
    found.append(random.random())
    env.step(spoken("[1]"))
    assert [*found, random.random()] == expected


def test_which_agent_is_which_player_comes_from_the_seed() -> None:
    settings = {"players": ["us", "them"], "shuffle_players": True}
    first = []
    for seed in range(20):
        env = TextArenaEnv(TASK, env_id=NIM, **settings)  # type: ignore[arg-type]
        first.append(env.reset(seed=seed).agent)
    assert set(first) == {"us", "them"}
    again = TextArenaEnv(TASK, env_id=NIM, **settings)  # type: ignore[arg-type]
    assert again.reset(seed=19).agent == first[-1]


def test_a_game_of_one_is_played_by_the_main_agent() -> None:
    env, opening = opened(num_players=1)
    assert opening.agent == "main"
    results = [env.step(spoken(word)) for word in ("[3]", "[2]")]
    assert results[-1].reward == {"main": 1.0}


def test_the_board_is_a_state_for_people() -> None:
    env, _ = opened()
    assert env.snapshot() == {"form": "text", "text": "|||||"}
    env.close()
    assert env.snapshot() is None


@pytest.mark.parametrize(
    "settings", [{}, {"num_players": 3}, {"env_args": {"as_text": True}}]
)
def test_the_contract_is_kept(settings: dict[str, Any]) -> None:
    check_env(EnvSpec(TextArenaEnv, {"env_id": NIM, **settings}), TASK)


async def test_an_opponent_that_is_not_trained_plays_the_other_seat() -> None:
    turns = iter(["[3]", "[1]", "[1]"])
    spec = replace(
        rollout_spec(
            env=EnvSpec(TextArenaEnv, {"env_id": NIM, "env_args": {"sticks": 5}}),
            reward=lambda view: 0.0,
        ),
        agents={"player_1": AgentSpec(train=False)},
    )
    engine = scripted(lambda request: say(next(turns)))
    trajectory = await run_episode(context_of(spec, engine), TASK, KEY)
    assert str(trajectory.status) == "terminated"
    assert [turn.agent for turn in trajectory.turns] == ["player_0", "player_1", "player_0"]
    assert {name: (s.train, s.rewards["step"]) for name, s in trajectory.seats.items()} == {
        "player_0": (True, 1.0),
        "player_1": (False, -1.0),
    }
    (group,) = TrajectoryGroup(0, TASK, (trajectory,)).by_seat()
    assert [one.reward for one in group.finished] == [1.0]


def test_what_is_no_such_game_is_named() -> None:
    with pytest.raises(EnvError, match="without reset, get_observation, step, close"):
        TextArenaEnv(TASK, env_id="builtins:dict")
    with pytest.raises(
        ConfigError, match=r"players needs a different name for each of the 2"
    ):
        opened(players=["a", "a"])
    with pytest.raises(
        ConfigError, match=r"TextArenaEnv\.num_players must be at least 1, got 0"
    ):
        opened(num_players=0)
    env = TextArenaEnv(TASK, env_id=f"{FOLDER / 'nim.py'}:Unpaid", env_args={"sticks": 1})
    env.reset(seed=0)
    with pytest.raises(
        EnvError, match=r"Unpaid ended, and its close\(\) must give the rewards"
    ):
        env.step(spoken("[1]"))


@pytest.mark.agents
def test_games_of_the_package_are_played(python: str) -> None:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run(
        [python, "-c", where], capture_output=True, text=True, check=True
    )
    command = [sys.executable, str(FOLDER / "programs" / "textarena_games.py")]
    found = subprocess.run(
        [*command, packages.stdout.strip()], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout.splitlines()[-1])
    assert told["checked"] == 6
    assert told["agents"] == ["player_0", "player_1"] * 2 + ["player_0"]
    assert told["reward"] == {"player_0": 1.0, "player_1": -1.0}
    assert (
        told["second"].startswith("Player 0 placed their symbol")
        or "[Player 0]" in told["second"]
    )
    assert told["second"].count("Current Board") == 2
    assert told["third"].count("Current Board") == 2
    assert "TicTacToe-v0-raw" in told["unknown"]
