"""Rewards: parts, weights, failures that are never 0, and exact answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.envs import EpisodeView, Rubric, exact_answer, group_rewards, stated_answer
from agentrl.envs import rubric as rubric_module
from agentrl.errors import ConfigError, RewardError
from agentrl.tools import BoundedThreads
from agentrl.types import Message, Status, Task
from tests.kit.waiting import DEADLINE_S, until_async


def view(text: str = "", answer: Any = 3) -> EpisodeView:
    said: Message = {"role": "assistant", "content": text}
    return EpisodeView(
        Task("t-1", answer=answer),
        ({"role": "user", "content": "?"}, said),
        (),
        Status("terminated"),
    )


def half(view: EpisodeView) -> float:
    return 0.5


async def length(view: EpisodeView) -> float:
    return len(view.final_text)


def correct(view: EpisodeView) -> bool:
    return True


async def test_parts_are_raw_values_by_name() -> None:
    assert await Rubric([half, (length, 0.1), correct]).score(view("abcd")) == {
        "half": 0.5,
        "length": 4.0,
        "correct": 1.0,
    }


def test_the_total_is_weighted_and_has_the_steps_rewards() -> None:
    rubric = Rubric([half, (length, 0.1)])

    # 1 * 0.5 + 0.1 * 4 + 2 * 0.25
    assert rubric.total(
        {"half": 0.5, "length": 4.0}, step_reward=0.25, step_weight=2.0
    ) == pytest.approx(1.4)


def test_an_empty_rubric_leaves_the_steps_rewards() -> None:
    assert Rubric([]).total({}, step_reward=2.5) == 2.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", 1j, 10**400])
async def test_a_reward_that_is_no_finite_number_is_an_error(value: Any) -> None:
    def odd(view: EpisodeView) -> Any:
        return value

    with pytest.raises(
        RewardError, match="reward 'odd' of task 't-1' must be a finite number, got"
    ):
        await Rubric([odd]).score(view())


async def test_a_score_of_a_group_or_a_turn_is_held_to_the_same() -> None:
    @group_rewards
    def huge(views: Sequence[EpisodeView]) -> list[int]:
        return [10**400] * len(views)

    with pytest.raises(
        RewardError, match="reward 'huge' of task 't-1' must be a finite number"
    ):
        await Rubric([huge]).group_scores([view()])


async def test_a_list_of_scores_that_exits_when_it_is_looked_at_is_an_error() -> None:
    class Leaving(list[float]):
        def __len__(self) -> int:
            raise SystemExit(3)

    @group_rewards
    def leaving(views: Sequence[EpisodeView]) -> list[float]:
        return Leaving()

    with pytest.raises(
        RewardError, match=r"raised SystemExit: 3 \(.*test_rubric\.py:\d+\)"
    ):
        await Rubric([leaving]).group_scores([view()])


async def test_a_reward_that_raises_is_an_error_named_with_the_task() -> None:
    def broken(view: EpisodeView) -> float:
        raise KeyError("judge")

    with pytest.raises(
        RewardError, match="reward 'broken' of task 't-1' raised KeyError: 'judge'"
    ):
        await Rubric([half, broken]).score(view())


async def test_a_reward_that_hangs_is_an_error() -> None:
    release = threading.Event()

    def hangs(view: EpisodeView) -> float:
        release.wait(DEADLINE_S)
        return 1.0

    with pytest.raises(
        RewardError, match=r"reward 'hangs' of task 't-1' took longer than 0\.05 s"
    ):
        await Rubric([hangs], deadline_s=0.05).score(view())
    release.set()


def step(view: EpisodeView) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([half, half], "different names, got 'half' twice"),
        ([step], "the part 'step' is the sum"),
        (
            [(half, float("nan"))],
            "the weight of reward 'half' must be a finite number, got nan",
        ),
        (["half"], "must be a function of an EpisodeView, got 'half'"),
    ],
)
def test_a_wrong_rubric_is_refused(rewards: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rubric(rewards)


def test_the_final_text_is_the_assistants_last() -> None:
    tool: Message = {"role": "tool", "content": "56", "tool_call_id": "call_0"}
    said: tuple[Message, ...] = (
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
        tool,
    )

    assert (
        EpisodeView(Task("t"), said, (), Status("truncated", "max_turns")).final_text
        == "two"
    )
    assert EpisodeView(Task("t"), (), (), Status("truncated", "length")).final_text == ""


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("The sum is 56,088.", 56088, 1.0),
        ("56088.0", 56088, 1.0),
        ("12 + 5 = 17", 17, 1.0),
        ("17 = 12 + 5", 17, 0.0),
        ("It is 12-5", 5, 1.0),
        ("Answer: 17, since 12 + 5.\nanswer: 18", 17, 0.0),
        ("The answer is **-3**.", -3, 1.0),
        ("I do not know", 17, 0.0),
        ("", 17, 0.0),
        ("1e3", 1000, 1.0),
        ("Answer: Rome.", "rome", 1.0),
        ("  ROME ", "Rome", 1.0),
        ("Rome or Paris", "Rome", 0.0),
        ("answer: b", ["a", "b"], 1.0),
        ("0.30", "0.3", 1.0),
        ("$5", "5", 1.0),
    ],
)
def test_exact_answer(text: str, answer: Any, reward: float) -> None:
    assert exact_answer(view(text, answer)) == reward


@pytest.mark.parametrize("answer", [None, [], ["a", None]])
def test_exact_answer_needs_an_answer(answer: Any) -> None:
    with pytest.raises(RewardError, match="needs the answer of task 't-1'"):
        exact_answer(view("3", answer))


def test_the_stated_answer_is_the_last_one() -> None:
    assert stated_answer("answer: 1\nSo the answer is 2") == "2"


async def test_a_bool_is_a_number_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rubric = Rubric([correct])
    for _ in range(2):
        await rubric.score(view("3"))
    (record,) = caplog.records
    assert (vars(record)["event"], vars(record)["reward"]) == ("reward_is_bool", "correct")


async def test_the_wait_for_a_thread_spends_no_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = BoundedThreads(1, "test")
    entered = threading.Event()
    release = threading.Event()
    monkeypatch.setattr(rubric_module, "ENV_THREADS", threads)

    def hold() -> None:
        entered.set()
        release.wait(DEADLINE_S)

    holder = asyncio.create_task(threads.run(hold))
    await asyncio.to_thread(entered.wait, DEADLINE_S)
    scoring = asyncio.create_task(Rubric([half], deadline_s=600.0).score(view()))
    await until_async(lambda: threads._waiting)
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + 3600.0)  # an hour passes
    for _ in range(9):
        await asyncio.sleep(0)
    release.set()

    assert await scoring == {"half": 0.5}
    await holder
