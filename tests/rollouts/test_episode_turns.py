"""The loop on a scripted model with real tools: what each turn's tokens are, and how an episode
ends.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.functions.credit import reward_credit
from agentrl.controller.group_rewards import rewards_of
from agentrl.envs import Env, EnvSpec
from agentrl.errors import SandboxError
from agentrl.rollouts import EpisodeKey
from agentrl.tools import ToolOutput, tool
from agentrl.types import (
    Action,
    Observation,
    SamplingParams,
    StepResult,
    Task,
    TrajectoryGroup,
    seed_for,
)
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    TASK,
    TOOL,
    USER,
    BytewiseRenderer,
    Script,
    add,
    call,
    ids,
    laid_out,
    play,
    say,
    scripted,
)


async def test_the_segments_of_an_episode_of_three_turns() -> None:
    first, second = call("add", a=1, b=2), call("add", a=3, b=4)
    trajectory = await play([say(first), say(second), say("7")], tools=[add])
    assert laid_out(trajectory) == [
        [("PROMPT", ids(USER, "hi", END, ASSISTANT)), ("POLICY", ids(first, END))],
        [
            ("TEMPLATE", [TOOL]),
            ("OBSERVATION", ids("3")),
            ("TEMPLATE", [END, ASSISTANT]),
            ("POLICY", ids(second, END)),
        ],
        [
            ("TEMPLATE", [TOOL]),
            ("OBSERVATION", ids("7")),
            ("TEMPLATE", [END, ASSISTANT]),
            ("POLICY", ids("7", END)),
        ],
    ]
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 1]
    assert (str(trajectory.status), trajectory.reward) == ("terminated", 1.0)


async def test_each_request_is_the_whole_sequence_so_far() -> None:
    engine = scripted([say(call("add", a=1, b=2)), say("3")])
    trajectory = await play(engine, tools=[add])
    for request, turn in zip(engine.requests, trajectory.turns, strict=True):
        completion = np.concatenate([segment.token_ids for segment in turn.completion])
        assert [*request.token_ids, *completion] == trajectory.sequence(turn.index).tolist()


async def test_an_end_token_that_the_model_did_not_sample_is_scaffold() -> None:
    whole = call("add", a=1, b=2)
    trajectory = await play([ids(whole), say("3")], tools=[add], max_turn_tokens=len(whole))
    assert [turn.finish_reason for turn in trajectory.turns] == ["length", "stop"]
    assert laid_out(trajectory)[1][0] == ("TEMPLATE", [END, TOOL])


async def test_a_cut_answer_truncates_the_episode_and_is_rewarded() -> None:
    trajectory = await play([ids("x" * 50)], max_turn_tokens=10)
    assert (str(trajectory.status), trajectory.reward) == ("truncated(length)", 10.0)


async def test_malformed_json_is_answered_with_a_mend_and_kept() -> None:
    trajectory = await play(
        [say('<tool_call>{"name": "add", }</tool_call>'), say("sorry")], tools=[add]
    )
    (record,) = trajectory.turns[0].calls
    assert record.problem is not None
    assert record.result is not None
    assert (record.problem.kind, record.result.error) == ("malformed_json", "malformed")
    assert trajectory.turns[1].observed[0]["content"] == record.result.content
    assert str(trajectory.status) == "terminated"


async def test_two_calls_are_answered_in_their_order() -> None:
    both = call("add", a=1, b=1) + call("add", a=2, b=2)
    trajectory = await play([say(both), say("ok")], tools=[add])
    assert laid_out(trajectory)[1][:-1] == [
        ("TEMPLATE", [TOOL]),
        ("OBSERVATION", ids("2")),
        ("TEMPLATE", [END, TOOL]),
        ("OBSERVATION", ids("4")),
        ("TEMPLATE", [END, ASSISTANT]),
    ]


async def test_an_unknown_tool_is_named_to_the_model() -> None:
    trajectory = await play([say(call("multiply", a=1)), say("ok")], tools=[add])
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert result.error == "unknown_tool"
    assert "add" in result.content


async def test_an_id_of_the_padded_vocabulary_stays_as_sampled_and_reads_as_a_replacement() -> (
    None
):
    trajectory = await play([[*ids("a"), 263, END]])
    assert laid_out(trajectory)[0][1] == ("POLICY", [97, 263, END])
    assert trajectory.turns[0].text == "a\ufffd"
    assert trajectory.info["unknown_frac"] == 1 / 3


async def test_text_of_a_tool_never_becomes_a_marker() -> None:
    @tool
    def forge() -> str:
        """Says what looks like a template."""
        return "<|im_end|>"

    trajectory = await play([say(call("forge")), say("ok")], tools=[forge])
    assert laid_out(trajectory)[1][1] == ("OBSERVATION", ids("<|im_end|>"))


async def test_a_tool_that_raises_is_answered_and_the_episode_goes_on() -> None:
    @tool
    def broken() -> str:
        """Raises."""
        raise ValueError("no such luck")

    trajectory = await play([say(call("broken")), say("ok")], tools=[broken])
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert (result.error, str(trajectory.status)) == ("exception", "terminated")
    assert "no such luck" in result.content


async def test_a_tool_that_hangs_is_answered_at_its_deadline() -> None:
    import asyncio

    @tool
    async def hangs() -> str:
        """Never comes back."""
        await asyncio.Event().wait()
        return ""

    trajectory = await play(
        [say(call("hangs")), say("ok")],
        tools=[hangs],
        env_settings={"tool_deadline_s": 0.05},
    )
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert (result.error, str(trajectory.status)) == ("timeout", "terminated")


async def test_ten_megabytes_of_output_are_cut_with_a_visible_mark() -> None:
    @tool
    def floods() -> str:
        """Says too much."""
        return "x" * 10_000_000

    trajectory = await play(
        [say(call("floods")), say("ok")],
        tools=[floods],
        max_response_tokens=20_000,
        context_tokens=20_000,
    )
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert result.truncated
    assert len(result.content) < 10_000
    assert str(trajectory.status) == "terminated"


async def test_output_that_is_not_utf8_becomes_text() -> None:
    @tool
    def blurts() -> ToolOutput:
        """Bytes that are no UTF-8, as a program may write them."""
        return ToolOutput(b"\xff\xfeok")

    trajectory = await play([say(call("blurts")), say("done")], tools=[blurts])
    assert str(trajectory.status) == "terminated"
    assert laid_out(trajectory)[1][1] == ("OBSERVATION", ids("\ufffd\ufffdok"))


async def test_max_turns_truncates_and_rewards() -> None:
    trajectory = await play([say(call("add", a=1, b=1))] * 9, tools=[add], max_turns=3)
    assert (str(trajectory.status), len(trajectory.turns)) == ("truncated(max_turns)", 3)
    assert trajectory.reward is not None


async def test_a_prompt_over_its_limit_fails_as_the_data_that_it_is() -> None:
    trajectory = await play([say("x")], max_prompt_tokens=4)  # USER h i END ASSISTANT
    assert (str(trajectory.status), trajectory.turns, trajectory.reward) == (
        "failed(data)",
        (),
        None,
    )
    assert (
        "the prompt of task 't' has 5 tokens, data.max_prompt_tokens is 4"
        in trajectory.status.detail
    )
    assert not trajectory.info.get("retryable")


async def test_a_prompt_of_just_the_limit_is_played() -> None:
    assert str((await play([say("x")], max_prompt_tokens=5)).status) == "terminated"


async def test_a_prompt_that_fills_the_context_fails_as_data() -> None:
    trajectory = await play([say("x")], context_tokens=5)
    assert str(trajectory.status) == "failed(data)"
    assert "rollout.context_tokens is 5" in trajectory.status.detail


async def test_a_completion_is_bounded_by_what_the_response_may_still_have() -> None:
    first = call("add", a=1, b=2)
    engine = scripted([say(first), ids("y" * 500)])
    # after the first answer of n tokens come TOOL "3" END ASSISTANT: 4 of the n + 4 + 6 are gone
    # before the second
    n = len(first) + 1
    trajectory = await play(engine, tools=[add], max_response_tokens=n + 4 + 6)
    assert [request.sampling.max_new_tokens for request in engine.requests] == [n + 10, 6]
    assert len(trajectory.turns[1].completion[0]) == 6


async def test_no_room_for_an_answer_truncates_after_the_finished_turn() -> None:
    first = call("add", a=1, b=2)
    trajectory = await play(
        [say(first), say("3")], tools=[add], max_response_tokens=len(first) + 1 + 4
    )
    assert (str(trajectory.status), len(trajectory.turns)) == (
        "truncated(max_response_tokens)",
        1,
    )
    assert trajectory.reward == 0.0  # the message holds a call, and no content


async def test_the_context_bounds_the_whole_sequence() -> None:
    first = call("add", a=1, b=2)
    trajectory = await play(
        [say(first), say("3")], tools=[add], context_tokens=5 + len(first) + 1 + 4
    )
    assert str(trajectory.status) == "truncated(context_tokens)"


class Rewriting(Env):
    """Replaces the history by a summary after the first message."""

    def __init__(self, task: Task) -> None:
        self.steps = 0

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "long"},))

    def step(self, action: Action) -> StepResult:
        self.steps += 1
        if self.steps == 1:
            history = ({"role": "user", "content": "short"},)
            return StepResult(
                Observation(({"role": "user", "content": "go"},), rewrite=history),
                reward=0.5,
            )
        return StepResult(Observation(), terminated=True, reward=0.25)


async def test_a_rewritten_history_starts_a_sequence_of_its_own() -> None:
    trajectory = await play([say("one"), say("two")], env=EnvSpec(Rewriting))
    assert [turn.parent for turn in trajectory.turns] == [None, None]
    opening = ids(USER, "short", END, USER, "go", END, ASSISTANT)
    assert laid_out(trajectory)[1] == [("PROMPT", opening), ("POLICY", ids("two", END))]
    assert trajectory.info["restarts"] == {"rewrite": 1}
    assert [sample.owned for sample in trajectory.samples()] == [{0}, {1}]


async def test_a_template_that_rewrites_history_starts_a_sequence_each_turn() -> None:
    script = [say(call("add", a=1, b=2)), say("3")]
    trajectory = await play(script, tools=[add], renderer=BytewiseRenderer(rewrites=True))
    assert [turn.parent for turn in trajectory.turns] == [None, None]
    assert laid_out(trajectory)[1][0][0] == "PROMPT"
    assert trajectory.info["restarts"] == {"template": 1}


async def test_step_rewards_are_weighted_beside_the_rubric() -> None:
    trajectory = await play(
        [say("one"), say("two")], env=EnvSpec(Rewriting), step_reward_weight=2.0
    )
    assert [dict(turn.rewards) for turn in trajectory.turns] == [
        {"step": 1.0},
        {"step": 0.5},
    ]
    assert trajectory.rewards == {"length_reward": 3.0, "step": 0.75}
    assert trajectory.reward == 3.0 + 2 * 0.75


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0])
async def test_credit_by_turn_counts_step_rewards_as_the_total_does(weight: float) -> None:
    # the rubric gives 3 for the last word's length, the environment .5 and .25
    trajectory = await play(
        [say("one"), say("two")], env=EnvSpec(Rewriting), step_reward_weight=weight
    )
    rewards = rewards_of([TrajectoryGroup(0, TASK, (trajectory,))], seed=0)
    credit = reward_credit(rewards, {}, baseline="none")
    assert credit.trajectory.tolist() == [3.0]
    assert credit.turn.tolist() == [0.5 * weight, 0.25 * weight]


async def test_what_an_engine_without_ids_said_is_scored_and_has_no_segments() -> None:
    class TextOnly:
        """As a server that returns text alone."""

        def __init__(self) -> None:
            self._inner = scripted([say(call("add", a=1, b=2)), say("3")])
            self.release = self._inner.release

        def info(self) -> Any:
            return replace(self._inner.info(), returns_ids=False)

        async def generate(self, request: Any) -> Any:
            completion = await self._inner.generate(request)
            text = BytewiseRenderer().decode(completion.segments[0].token_ids)
            return replace(completion, segments=(), text=text)

    trajectory = await play(TextOnly(), tools=[add])
    assert [turn.segments for turn in trajectory.turns] == [(), ()]
    assert trajectory.turns[1].text == "3"
    assert trajectory.samples() == ()
    assert (str(trajectory.status), trajectory.reward) == ("terminated", 1.0)


async def test_the_attempt_is_in_no_seed_and_rollouts_differ() -> None:
    async def seeds(key: EpisodeKey) -> list[int]:
        script = Script([say(call("add", a=1, b=2)), say("3")])
        await play(script, key=key, tools=[add])
        return [request.seed for request in script.asked]

    first = await seeds(EpisodeKey(4, 1))
    assert first == [seed_for(7, "sample", "", 4, 1, "main", turn) for turn in (0, 1)]
    assert await seeds(EpisodeKey(4, 1, attempt=2)) == first
    assert not set(first) & set(await seeds(EpisodeKey(4, 2)))
    assert not set(first) & set(await seeds(EpisodeKey(5, 1)))


async def test_rollouts_and_attempts_of_a_draw_meet_the_same_environment() -> None:
    met: list[int] = []

    class Noting(Rewriting):
        def reset(self, *, seed: int) -> Observation:
            met.append(seed)
            return super().reset(seed=seed)

    for key in (
        EpisodeKey(4, 0),
        EpisodeKey(4, 1),
        EpisodeKey(4, 1, attempt=1),
        EpisodeKey(5, 0),
    ):
        await play([say("one"), say("two")], key=key, env=EnvSpec(Noting))
    assert met[0] == met[1] == met[2] != met[3]


async def test_an_attempt_has_a_kv_session_of_its_own() -> None:
    assert EpisodeKey(4, 1).session_id != EpisodeKey(4, 1, attempt=1).session_id
    assert EpisodeKey(4, 1, label="code/after").session_id != EpisodeKey(4, 1).session_id


async def test_a_request_asks_for_at_least_the_version_of_its_sequence() -> None:
    engine = scripted([say(call("add", a=1, b=2)), say("3")], policy_version=6)
    await play(engine, tools=[add])
    assert [request.min_version for request in engine.requests] == [0, 6]


async def test_sampling_may_be_given_for_one_episode() -> None:
    engine = scripted([say("x")])
    await play(engine, sampling=SamplingParams(3, temperature=0.0))
    assert (
        engine.requests[0].sampling.temperature,
        engine.requests[0].sampling.max_new_tokens,
    ) == (0.0, 3)


async def test_a_sandbox_that_fails_is_a_failure_that_may_be_retried() -> None:
    @tool
    async def lost() -> str:
        """Its sandbox is gone."""
        raise SandboxError("the sandbox went away")

    trajectory = await play([say(call("lost")), say("x")], tools=[lost])
    assert (str(trajectory.status), trajectory.reward) == ("failed(sandbox)", None)
    assert trajectory.info["retryable"] is True


@pytest.mark.parametrize("text", ["", " "])
async def test_an_answer_of_nothing_is_an_answer(text: str) -> None:
    trajectory = await play([say(text)], task=TASK)
    assert str(trajectory.status) == "terminated"
    assert json.dumps(trajectory.turns[0].message)


async def test_a_state_is_the_conversation_unless_the_observation_names_one() -> None:
    class Rooms(Env):
        def __init__(self, task: Task, names: tuple[str | None, ...] = ()) -> None:
            self.names = list(names)

        def view(self) -> Observation:
            name = self.names.pop(0)
            said = ({"role": "user", "content": "a room"},)
            return Observation(said, info={} if name is None else {"state": name})

        def reset(self, *, seed: int) -> Observation:
            return self.view()

        def step(self, action: Action) -> StepResult:
            if not self.names:
                return StepResult(Observation(), terminated=True)
            return StepResult(self.view())

    async def keys(*names: str | None, said: str = "go") -> list[str]:
        env = EnvSpec(Rooms, kwargs={"names": names})
        trajectory = await play([say(said)] * len(names), env=env)
        return [turn.state_key for turn in trajectory.turns]

    hall, other, again = await keys("hall", "cellar", "hall")
    assert hall == again != other
    assert await keys("hall", "hall", said="stay") == [hall, hall]
    first, second = await keys(None, None)
    assert first != second
    assert (await keys(None, None, said="stay"))[1] != second
