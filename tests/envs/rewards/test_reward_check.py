"""Hostile answers: what they find in a reward, and that the built-in ones stand all of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from agentrl.envs import EpisodeView, Rubric, check_reward, group_rewards
from agentrl.envs.rewards import BUILT_IN, judge, reward_check
from agentrl.envs.rewards.answers import last_block
from agentrl.envs.rewards.reward_check import HOSTILE
from agentrl.errors import RewardError
from agentrl.types import Task, load_object
from tests.llm.odd_server import odd_server, said

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
ARGS: dict[str, dict[str, Any]] = {
    "json_schema": {"schema": SCHEMA},
    "text_format": {"pattern": r"<think>.*</think>\s*<answer>.*</answer>"},
    "length_cost": {"free": 10, "full": 20},
    "math_answer": {"cpu_s": 1},
    "unit_tests": {"timeout_s": 5},
}
TESTS = ["assert add(1, 2) == 3", "assert all(map(add, [1], [-2]))"]


def task(answer: Any = "42") -> Task:
    return Task(
        "t-1", ({"role": "user", "content": "?"},), answer=answer, info={"tests": TESTS}
    )


def built_in(name: str, **more: Any) -> Callable[[EpisodeView], Any]:
    reward: Any = partial(load_object(BUILT_IN[name]), **ARGS.get(name, {}), **more)
    reward.__name__ = name
    return reward


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"judge"}))
def test_built_in_rewards_stand_every_hostile_answer(name: str) -> None:
    check_reward(built_in(name), task())


async def test_a_judge_is_asked_about_every_hostile_answer() -> None:
    judge._judge.cache_clear()
    async with odd_server(said("Score: 0")) as server:
        reward = built_in("judge", base_url=server.url, model="m", max_retries=0)
        await asyncio.to_thread(check_reward, reward, task())
    assert len(server.asked) >= len(HOSTILE)
    assert not [asked for asked in server.asked if str(asked).count("</answer>") > 1]


def number(view: EpisodeView) -> float:
    return float(int(view.final_text.rpartition("answer: ")[2]) == view.task.answer)


def confident(view: EpisodeView) -> float:
    return float("correct" in view.final_text)


def pattern(view: EpisodeView) -> float:
    return float(re.fullmatch(r"(\w+\s?)+", view.final_text) is None) - 1.0


async def waits(view: EpisodeView) -> float:
    time.sleep(0.5)
    return 0.0


@group_rewards
def loudest(views: Sequence[EpisodeView]) -> list[float]:
    return [float("!" in view.final_text) for view in views]


@pytest.mark.parametrize(
    ("reward", "rule"),
    [
        (
            number,
            r"\(number\) breaks \d+ rule.*\[excluded\] the hostile answer '.*ValueError",
        ),
        (
            confident,
            r"\(confident\) breaks 2 .*\[forged\] the hostile answer 'a score' gets 1",
        ),
        (
            pattern,
            r"\(pattern\) breaks 1 .*\[slow\] .*'letters that do not end as they should'",
        ),
        (waits, r"\(waits\) breaks 1 .*\[slow\] .* holds the event loop for 0\.\d"),
        (loudest, r"\(loudest\) breaks \d+ .*\[forged\] .*'many words' gets 1"),
    ],
)
def test_what_a_reward_does_wrong_is_named(reward: Any, rule: str) -> None:
    with pytest.raises(RewardError, match=f"(?s){rule}"):
        check_reward(reward, task(42))


def test_what_pays_for_form_passes_where_it_cannot_reach_full_marks() -> None:
    rubric = Rubric([(confident, 0.2)])
    with pytest.raises(RewardError, match="forged"):
        check_reward(rubric, task())
    check_reward(rubric, task(), full_marks=1.2)


def test_a_reward_that_cannot_be_given_the_empty_answer_is_named() -> None:
    def fails(view: EpisodeView) -> float:
        return 1 / len(view.final_text)

    with pytest.raises(
        RewardError, match=r"\[excluded\] the empty answer fails the episode"
    ):
        check_reward(fails, task())


def test_the_answers_are_short_enough_for_a_reward_that_reads_all_of_them() -> None:
    assert max(map(len, HOSTILE.values())) <= 10 * reward_check._LONG


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("no block", None),
        ("```python\na\nb\n```", "a\nb\n"),
        ("```\none```\n```x\ntwo\n```\n", "two\n"),
        ("```\none\n```\n```\nopen", "one\n"),
        ("```", None),
        ("```a``` ```\nb```", "b"),
        ("`" * 10**6, None),
        ("```\n" + "\n" * 10**6, None),
    ],
)
def test_the_last_closed_block_is_found_in_linear_time(
    text: str, block: str | None
) -> None:
    assert last_block(text) == block
