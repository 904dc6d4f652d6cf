"""How an episode's ids differ from those of its text: worked by hand, stored, and in the step's
metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from agentrl.errors import DataError
from agentrl.metrics import rollout_metrics
from agentrl.render.retokenize import changed_tokens
from agentrl.rollouts import run_episode
from agentrl.types import Message, Segment, ToolSpec, TrajectoryGroup
from tests.rollouts.bytewise import (
    KEY,
    TASK,
    BytewiseRenderer,
    add,
    call,
    context_of,
    ids,
    play,
    rollout_spec,
    say,
    scripted,
)


def ints(*values: int) -> npt.NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("recorded", "anew", "changed"),
    [
        ((), (), 0),
        ((1, 2, 3), (1, 2, 3), 0),
        ((1, 2, 3, 4), (1, 9, 4), 2),  # 2 and 3 became 9
        ((1, 9, 4), (1, 2, 3, 4), 1),
        ((1, 2), (1, 2, 3), 1),  # a token more: something of what is there became another
        ((1, 2, 3), (1, 2), 1),
        ((1, 1, 1), (1, 1), 1),
        ((1, 2), (3, 4), 2),
        ((), (1,), 1),
    ],
)
def test_changed_tokens_lie_between_what_agrees(
    recorded: tuple[int, ...], anew: tuple[int, ...], changed: int
) -> None:
    assert changed_tokens(ints(*recorded), ints(*anew)) == changed


class Merging(BytewiseRenderer):
    """A tokenizer that has one token, 262, for the two letters ``ok``, which a model may also
    spell.
    """

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        return ints(
            *(262 if token == 0 else token for token in ids(text.replace("ok", "\0")))
        )


async def test_a_text_that_would_be_tokenized_otherwise_is_seen() -> None:
    trajectory = await play([say("is ok")], renderer=Merging())
    # "is " stays, the two letters of "ok" do not; the end token is not counted
    assert trajectory.info["retok_frac"] == 2 / 5


async def test_an_episode_whose_text_gives_its_ids_has_a_share_of_zero() -> None:
    script = [say(call("add", a=1, b=2)), say("3")]
    trajectory = await play(script, tools=[add])
    assert trajectory.info["retok_frac"] == 0.0
    assert trajectory.info["template_frac"] == 0.0
    assert trajectory.timings["retokenize_s"] >= 0.0


async def test_a_history_that_the_template_would_write_otherwise_is_seen() -> None:
    # the model writes its call without a space; the template, given the call, writes one
    written = '<tool_call>{"name": "add", "arguments": {"a": 1,"b": 2}}</tool_call>'
    trajectory = await play([say(written), say("3")], tools=[add])
    context = len(trajectory.sequence(1)) - len(say("3"))
    assert trajectory.info["template_frac"] == 1 / context
    assert trajectory.info["retok_frac"] == 0.0


async def test_a_conversation_that_the_template_cannot_write_is_all_changed() -> None:
    class Refusing(BytewiseRenderer):
        def prompt(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
        ) -> tuple[Segment, ...]:
            if len(messages) > 1:
                raise DataError("one message at most")
            return super().prompt(messages, tools)

    trajectory = await play(
        [say(call("add", a=1, b=2)), say("3")], tools=[add], renderer=Refusing()
    )
    assert str(trajectory.status) == "terminated"
    assert trajectory.info["template_frac"] == 1.0


async def test_it_can_be_switched_off() -> None:
    spec = rollout_spec(renderer=Merging(), measure_retokenization=False)
    trajectory = await run_episode(context_of(spec, scripted([say("is ok")])), TASK, KEY)
    assert "retok_frac" not in trajectory.info
    assert "retokenize_s" not in trajectory.timings


async def test_an_episode_that_sampled_nothing_has_no_share() -> None:
    trajectory = await play([[]])
    assert str(trajectory.status) == "terminated"
    assert "retok_frac" not in trajectory.info


async def test_the_step_has_their_means_and_the_restarts() -> None:
    script = [say(call("add", a=1, b=2)), say("ok")]
    one = await play(script, tools=[add], renderer=Merging())
    # what an environment says of a turn is its own, whatever it is called
    said = [replace(turn, info={"repairs": 3, "restarts": 3}) for turn in one.turns]
    one = replace(one, turns=tuple(said))
    two = await play(script, tools=[add], renderer=BytewiseRenderer(rewrites=True))
    metrics = rollout_metrics([TrajectoryGroup(4, TASK, (one, two))])
    assert metrics["mismatch/retok_frac"] == pytest.approx(one.info["retok_frac"] / 2)
    assert metrics["mismatch/template_frac"] == 0.0
    assert metrics["turns/restarts"] == metrics["turns/restarts/template"] == 0.5
    assert not any("repairs" in name for name in metrics)
