"""Where there is no room: what was sampled and what a tool said are kept, and the cut is
visible.
"""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.envs import Env, EnvSpec
from agentrl.rollouts import make_batch
from agentrl.tools import tool
from agentrl.types import Action, Observation, StepResult, Task, TrajectoryGroup
from tests.rollouts.bytewise import (
    TASK,
    BytewiseRenderer,
    call,
    ids,
    laid_out,
    play,
    say,
    scripted,
)


@tool
def recite(letters: int) -> str:
    """Many letters.

    Args:
        letters: how many.
    """
    return "x" * letters


LONG = call("recite", letters=500)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"context_tokens": 5 + len(LONG) + 1 + 300}, "context_tokens"),
        ({"max_response_tokens": len(LONG) + 1 + 300}, "max_response_tokens"),
    ],
)
async def test_an_answer_that_does_not_fit_ends_the_episode_with_the_turn_whole(
    limits: dict[str, int], reason: str
) -> None:
    engine = scripted([say(LONG), say("never")])
    trajectory = await play(engine, tools=[recite], **limits)
    assert str(trajectory.status) == f"truncated({reason})"
    assert len(engine.requests) == 1
    (turn,) = trajectory.turns
    assert laid_out(trajectory)[0][1] == ("POLICY", ids(LONG) + say("")[-1:])
    result = turn.calls[0].result
    assert result is not None
    assert result.content == "x" * 500  # not in the sequence, but stored


async def test_the_tokens_of_an_episode_that_was_cut_are_trained() -> None:
    trajectory = await play([ids("a" * 50)], max_turn_tokens=20)
    batch = make_batch(
        [TrajectoryGroup(4, TASK, (trajectory,))], credit=np.ones(1, dtype=np.float32)
    )
    assert str(trajectory.status) == "truncated(length)"
    assert batch.loss_mask.sum() == 20
    assert bool(batch.truncated[0])


async def test_an_observation_is_cut_by_the_tools_rule_with_a_visible_mark() -> None:
    engine = scripted([say(LONG), say("ok")])
    trajectory = await play(
        engine, tools=[recite], env_settings={"max_tool_output_chars": 40}
    )
    observed = BytewiseRenderer().decode(trajectory.turns[1].context[1].token_ids)
    assert observed == "x" * 20 + "\n[... 460 of 500 characters left out ...]\n" + "x" * 20
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert result.truncated


async def test_each_call_is_told_how_much_room_there_is() -> None:
    engine = scripted([say(call("recite", letters=3)), say("ok")])
    trajectory = await play(engine, tools=[recite], context_tokens=150)
    for request in engine.requests:
        assert request.token_ids.size + request.sampling.max_new_tokens <= 150
    assert str(trajectory.status) == "terminated"
    assert (
        engine.requests[1].sampling.max_new_tokens
        == 150 - engine.requests[1].token_ids.size
    )


async def test_a_restated_history_over_the_prompts_limit_truncates_with_all_turns() -> None:
    script = [say(call("recite", letters=60)), say("never")]
    trajectory = await play(
        script,
        tools=[recite],
        renderer=BytewiseRenderer(rewrites=True),
        max_prompt_tokens=80,
    )
    assert str(trajectory.status) == "truncated(max_prompt_tokens)"
    assert len(trajectory.turns) == 1
    assert trajectory.reward is not None


class AsksTwice(Env):
    """Speaks once more whatever is said."""

    def __init__(self, task: Task) -> None:
        self._steps = 0

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "2 + 2?"},))

    def step(self, action: Action) -> StepResult:
        self._steps += 1
        if self._steps == 1:
            return StepResult(Observation(({"role": "user", "content": "Well?"},)))
        return StepResult(Observation(), terminated=True)


async def test_a_completion_of_nothing_keeps_its_context_and_the_sequence_goes_on() -> None:
    engine = scripted([[], say("4")])
    trajectory = await play(engine, env=EnvSpec(AsksTwice))
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert trajectory.sequence(0).tolist() == engine.requests[0].token_ids.tolist()
    assert (
        engine.requests[1].token_ids.tolist()[: trajectory.sequence(0).size]
        == trajectory.sequence(0).tolist()
    )
    batch = make_batch(
        [TrajectoryGroup(4, TASK, (trajectory,))], credit=np.ones(1, dtype=np.float32)
    )
    assert batch.loss_mask.sum() == len(say("4"))
