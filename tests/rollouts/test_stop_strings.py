"""A turn that a stop string ended is cut at the first of any of them."""

from __future__ import annotations

import pytest

from agentrl.types import SamplingParams
from tests.rollouts.bytewise import BytewiseRenderer, ids, play, scripted


def two_at_once(token_ids: object) -> str:
    """Text of a tokenizer in which ``|`` is one token for a whole phrase with several stop strings
    in it.
    """
    return BytewiseRenderer().decode(token_ids).replace("|", "B and A and B")  # type: ignore[arg-type]


class Phrases(BytewiseRenderer):
    def decode(self, token_ids: object) -> str:  # type: ignore[override]
        return two_at_once(token_ids)


@pytest.mark.parametrize(
    "stop", [("A", "B"), ("B", "A"), ("and A", "B and"), ("d", "A", "B")]
)
async def test_the_text_is_cut_at_the_first_of_any_stop_string(
    stop: tuple[str, ...],
) -> None:
    engine = scripted([ids("so |")], decode=two_at_once)
    sampling = SamplingParams(max_new_tokens=50, stop=stop)

    trajectory = await play(engine, sampling=sampling, renderer=Phrases())

    assert trajectory.turns[0].finish_reason == "stop"
    assert trajectory.turns[0].text == "so "
