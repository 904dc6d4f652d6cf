"""What an agent's requests become in the trajectory: which sequence each goes on with."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from agentrl.algorithms import make_algorithm
from agentrl.metrics import rollout_metrics
from agentrl.rollouts.batching import make_batch
from agentrl.store import encode_trajectory
from agentrl.training import Layout, sample_weights
from agentrl.training.data.partition import partition
from agentrl.types import Task, TrajectoryGroup
from tests.agent_server.served_policy import ADD, HI, answer, assert_true, serving
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    TOOL,
    USER,
    add,
    call,
    ids,
    laid_out,
    play,
    say,
    scripted,
)


async def test_an_agent_with_tools_leaves_the_tokens_that_an_environment_leaves() -> None:
    script = [say(call("add", a=1, b=2)), say("3")]
    stepped = scripted(script)
    await play(
        stepped,
        tools=[add],
        task=Task("t", (HI,)),
        env_settings={"describe_tools_in_prompt": True},
    )  # type: ignore[arg-type]
    async with serving(script) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        last = await episode.say(HI, *answer(first, "3"), tools=[ADD])
        trajectory = await episode.end()
    assert last.content == "3"
    assert first.tool_calls[0].function.name == "add"
    assert json.loads(first.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
    assert [r.token_ids.tolist() for r in served.engine.requests] == [
        r.token_ids.tolist() for r in stepped.requests
    ]
    assert laid_out(trajectory)[1] == [
        ("TEMPLATE", [TOOL]),
        ("OBSERVATION", ids("3")),
        ("TEMPLATE", [END, ASSISTANT]),
        ("POLICY", ids("3", END)),
    ]
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert (str(trajectory.status), trajectory.reward, "restarts" in trajectory.info) == (
        "terminated",
        1.0,
        False,
    )
    record = trajectory.turns[0].calls[0]
    assert record.call is not None
    assert record.result is not None
    assert (record.call.name, record.result.content) == ("add", "3")


async def test_the_text_of_a_turn_is_never_encoded_again() -> None:
    # the ids stand as they were made, whatever an encoder would make of their text
    async with serving([ids("\u00e9 b", END), say("x")]) as served:
        episode = await served.open()
        first = await episode.say(HI)
        await episode.say(HI, *answer(first), HI)
        trajectory = await episode.end()
    assert_true(trajectory, served.engine)
    assert [turn.parent for turn in trajectory.turns] == [None, 0]


async def test_reasoning_that_the_agent_leaves_out_still_stands_in_the_sequence() -> None:
    async with serving([say("<think>hm</think>yes"), say("x")]) as served:
        episode = await served.open()
        first = await episode.say(HI)
        await episode.say(HI, {"role": "assistant", "content": first.content}, HI)
        trajectory = await episode.end()
    assert (first.content, first.reasoning_content) == ("yes", "hm")
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert trajectory.sequence(1).tolist()[5:25] == ids("<think>hm</think>yes")


async def test_reasoning_that_the_agent_changed_is_another_history() -> None:
    async with serving([say("<think>hm</think>yes"), say("x")]) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.say(
            HI, {"role": "assistant", "content": "yes", "reasoning_content": "other"}, HI
        )
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None]


async def test_parallel_calls_are_answered_together() -> None:
    async with serving([say(call("add", a=1) + call("add", a=2)), say("x")]) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        await episode.say(HI, *answer(first, "one", "two"), tools=[ADD])
        trajectory = await episode.end()
    assert len({made.id for made in first.tool_calls}) == 2
    assert [
        record.result and record.result.content for record in trajectory.turns[0].calls
    ] == [
        "one",
        "two",
    ]
    assert trajectory.turns[1].parent == 0


async def test_ids_of_calls_differ_over_the_whole_episode() -> None:
    async with serving([say(call("add", a=1)), say(call("add", a=1))]) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        second = await episode.say(HI, *answer(first, "1"), tools=[ADD])
    assert first.tool_calls[0].id != second.tool_calls[0].id


@pytest.mark.parametrize(
    ("edited", "cause"),
    [("question", "edited"), ("answer", "edited"), ("tools", "sub_agent")],
)
async def test_an_edited_history_begins_a_sequence_and_is_counted(
    edited: str, cause: str
) -> None:
    async with serving([say("one"), say("two")]) as served:
        episode = await served.open()
        first = await episode.say(HI)
        question = {"role": "user", "content": "hello"} if edited == "question" else HI
        words = "uno" if edited == "answer" else first.content
        tools = {"tools": [ADD]} if edited == "tools" else {}
        await episode.say(question, {"role": "assistant", "content": words}, HI, **tools)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None]
    assert trajectory.info["restarts"] == {cause: 1}
    assert [sample.owned for sample in trajectory.samples()] == [{0}, {1}]


async def test_a_summary_of_a_history_is_a_compaction() -> None:
    summary = {"role": "user", "content": "so far: one"}
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        long = [HI, *answer(await episode.say(HI)), HI]
        await episode.say(*long)
        await episode.say(summary)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, None]
    assert trajectory.info["restarts"] == {"compaction": 1}


@pytest.mark.parametrize(
    ("reduction", "weights"),
    [
        # N = 20 tokens
        ("token_mean", [8 / 20, 8 / 20, 4 / 20]),
        # J = 3 trajectories
        ("trajectory_mean", [1 / 3, 1 / 3, 1 / 3]),
        # J · C = 30
        ("constant", [8 / 30, 8 / 30, 4 / 30]),
    ],
)
async def test_an_episode_weighs_no_more_for_being_cut_in_several_sequences(
    reduction: str, weights: list[float]
) -> None:
    trajectories = []
    async with serving(lambda request: say("one")) as served:
        for second in ("extends", "is cut", ""):
            episode = await served.open()
            first = answer(await episode.say(HI))
            if second:
                await episode.say(*([HI, *first] if second == "extends" else []), HI)
            trajectories.append(await episode.end())
    assert [len(one.samples()) for one in trajectories] == [1, 2, 1]
    group = TrajectoryGroup(0, trajectories[0].task, tuple(trajectories))
    batch = make_batch([group], credit=np.ones(3, np.float32))
    (plan,) = partition(
        np.diff(batch.cu_seqlens),
        batch.group[batch.trajectory],
        seed=0,
        layout=Layout(1, 999, 1e3),
    )
    algorithm = make_algorithm("grpo", {"reduction": reduction, "constant_tokens": 10})
    of_samples = sample_weights(batch, plan, algorithm.reduction)
    rows = np.searchsorted(batch.cu_seqlens, np.arange(batch.num_tokens), side="right") - 1
    of_tokens = of_samples[rows] * (batch.loss_mask > 0)
    own = np.bincount(batch.trajectory[rows], weights=of_tokens)
    assert own.tolist() == pytest.approx(weights, abs=1e-15)


async def test_results_with_renamed_ids_are_those_of_the_calls_in_their_order() -> None:
    script = [say(call("add", a=1) + call("add", a=2)), say("x"), say("y")]
    async with serving(script) as served:
        episode = await served.open()
        history = [HI, *answer(await episode.say(HI, tools=[ADD]), "one", "two")]
        for number, made in enumerate(history[1]["tool_calls"]):
            made["id"] = history[2 + number]["tool_call_id"] = f"theirs-{number}"
        history += answer(await episode.say(*history, tools=[ADD]))
        await episode.say(*history, HI, tools=[ADD])
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 1]
    calls = trajectory.turns[0].calls
    assert [record.result and record.result.content for record in calls] == ["one", "two"]
    ours = [record.call and record.call.id for record in calls]
    assert [message["tool_call_id"] for message in trajectory.turns[1].observed] == ours


async def test_sequences_of_several_agents_go_on_in_turn() -> None:
    system = {"role": "system", "content": "sub"}
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        main = [HI, *answer(await episode.say(HI))]
        sub = [system, HI, *answer(await episode.say(system, HI))]
        await episode.say(*main, HI)
        await episode.say(*sub, HI)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None, 0, 1]
    assert_true(trajectory, served.engine)
    sessions = [request.session_id for request in served.engine.requests]
    assert sessions[0] == sessions[2] != sessions[1] == sessions[3]


async def test_requests_at_one_time_each_have_a_session() -> None:
    gate = asyncio.Event()
    engine = scripted(lambda request: say("ok"), latency=lambda request: gate.wait())
    async with serving(engine) as served:
        episode = await served.open()
        asked = [
            asyncio.create_task(episode.say({"role": "user", "content": str(n)}))
            for n in range(3)
        ]
        while len(engine.requests) < 3:
            await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*asked)
        trajectory = await episode.end()
    assert len({request.session_id for request in engine.requests}) == 3
    assert len({request.seed for request in engine.requests}) == 3
    assert len(trajectory.turns) == 3
    assert_true(trajectory, engine)


async def test_a_history_asked_twice_branches_and_each_turn_is_trained_once() -> None:
    async with serving([say("one"), say("two")] * 2) as served:
        episode = await served.open()
        opening = [HI, *answer(await episode.say(HI)), HI]
        await asyncio.gather(episode.say(*opening), episode.say(*opening))
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 0]
    owned = [sample.owned for sample in trajectory.samples()]
    assert sorted(turn for sample in owned for turn in sample) == [0, 1, 2]


async def test_a_call_that_cannot_be_read_is_shown_to_the_agent_and_recorded() -> None:
    async with serving([say('<tool_call>{"name": </tool_call>')]) as served:
        episode = await served.open()
        message = await episode.say(HI, tools=[ADD])
        trajectory = await episode.end()
    assert message.content == '<tool_call>{"name": </tool_call>'
    assert message.tool_calls is None
    (record,) = trajectory.turns[0].calls
    assert record.problem is not None
    assert (record.problem.kind, record.error) == ("malformed_json", "malformed")


async def test_a_call_of_a_tool_that_is_not_on_offer_is_none_of_a_tool() -> None:
    script = [say(call("invented_1") + call("add")), say(call("invented_2") + call("add"))]
    async with serving(script) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        await episode.say(HI, *answer(first, "no such tool", "3"), tools=[ADD])
        # the episode ends with calls that nobody answers
        trajectory = await episode.end()
    assert [
        (one.call and one.call.name, one.error, one.result and one.result.content)
        for turn in trajectory.turns
        for one in turn.calls
    ] == [
        ("invented_1", "unknown_tool", "no such tool"),
        ("add", None, "3"),
        ("invented_2", "unknown_tool", ""),
        ("add", None, None),
    ]
    metrics = rollout_metrics([TrajectoryGroup(0, trajectory.task, (trajectory,))])
    assert not [name for name in metrics if "invented" in name]
    assert (metrics["tool/add/calls"], metrics["tool/add/error_frac"]) == (2.0, 0.0)
    assert metrics["tool/error/unknown_tool_frac"] == pytest.approx(2 / 3)
    row, _ = encode_trajectory(trajectory, step=1, recorded_at=0.0)
    assert (row["tools"], row["errors"]) == (["add"], '{"unknown_tool":2}')


async def test_the_prompt_of_a_served_episode_is_what_the_agent_sends() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        await episode.say(
            {
                "role": "user",
                "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}],
            }
        )
        trajectory = await episode.end()
    assert laid_out(trajectory)[0][0] == ("PROMPT", ids(USER, "hi", END, ASSISTANT))
