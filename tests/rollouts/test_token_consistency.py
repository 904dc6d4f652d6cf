"""Mutations of a true answer: each rule of token consistency is violated alone, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import TokenMismatchError
from agentrl.rollouts import assert_extends_context, assert_token_consistency
from agentrl.types import Completion, GenerateRequest, SamplingParams, Segment, SegmentKind
from tests.rollouts.bytewise import laid_out, play, say, scripted

VOCAB = 50


def request(*, min_version: int = 0) -> GenerateRequest:
    ids = np.asarray([5, 6, 7], dtype=np.int32)
    return GenerateRequest(
        "r", "s", ids, SamplingParams(4), seed=0, min_version=min_version
    )


async def true_answer() -> Completion:
    """Two tokens on a prompt of three: five ids, and KV for the first four."""
    return await ScriptedEngine([[8, 9]], vocab_size=VOCAB, policy_version=3).generate(
        request()
    )


def policy(ids: list[int], version: int) -> Segment:
    return Segment(
        SegmentKind.POLICY,
        np.asarray(ids, dtype=np.int32),
        np.full(len(ids), -1.0, np.float32),
        version,
    )


async def test_a_true_answer_passes() -> None:
    assert_token_consistency(request(min_version=3), await true_answer(), VOCAB)


async def test_an_engine_that_ran_the_last_token_through_passes() -> None:
    answer = await true_answer()
    assert_token_consistency(
        request(), replace(answer, usage=replace(answer.usage, kv_tokens=5)), VOCAB
    )


async def test_an_answer_that_crossed_a_weight_update_passes() -> None:
    answer = replace(await true_answer(), segments=(policy([8], 3), policy([9], 4)))
    assert_token_consistency(request(), answer, VOCAB)


Mutation = Callable[[Completion], Completion]


@pytest.mark.invariant
@pytest.mark.parametrize(
    ("mutate", "named"),
    [
        pytest.param(
            lambda c: replace(c, request_id="q"),
            "the answer is for request 'q'",
            id="request_id",
        ),
        pytest.param(
            lambda c: replace(c, usage=replace(c.usage, prompt_tokens=2)),
            "3 ids were sent, the engine was given 2",
            id="prompt_tokens",
        ),
        pytest.param(
            lambda c: replace(c, usage=replace(c.usage, completion_tokens=3)),
            "2 ids came back, the engine made 3",
            id="completion_tokens",
        ),
        pytest.param(
            lambda c: replace(c, usage=replace(c.usage, kv_tokens=3)),
            "the sequence has 5 ids, the engine's KV cache 3",
            id="kv_short",
        ),
        pytest.param(
            lambda c: replace(c, usage=replace(c.usage, kv_tokens=6)),
            "the sequence has 5 ids, the engine's KV cache 6",
            id="kv_long",
        ),
        pytest.param(
            lambda c: replace(c, segments=(policy([8, VOCAB], 3),)),
            "id 50 is outside the model's vocabulary of 50",
            id="vocabulary",
        ),
        pytest.param(
            lambda c: replace(c, segments=(policy([8, -1], 3),)),
            "id -1 is outside the model's vocabulary of 50",
            id="negative",
        ),
        pytest.param(
            lambda c: replace(c, segments=(policy([8], 4), policy([9], 3))),
            "policy version fell from 4 to 3",
            id="version_fell",
        ),
        pytest.param(
            lambda c: replace(
                c, segments=(Segment(SegmentKind.TEMPLATE, np.asarray([8, 9])),)
            ),
            "a completion holds a segment of kind TEMPLATE",
            id="kind",
        ),
        pytest.param(
            lambda c: replace(
                c,
                segments=(policy([8] * 5, 3),),
                usage=replace(c.usage, completion_tokens=5, kv_tokens=7),
            ),
            "5 ids came back, max_new_tokens was 4",
            id="too_many",
        ),
    ],
)
async def test_each_broken_statement_is_named(mutate: Mutation, named: str) -> None:
    with pytest.raises(
        TokenMismatchError, match="token consistency violated by request 'r'"
    ) as caught:
        assert_token_consistency(request(), mutate(await true_answer()), VOCAB)
    assert named in str(caught.value)


@pytest.mark.invariant
async def test_a_version_below_what_the_sequence_holds_is_named() -> None:
    with pytest.raises(TokenMismatchError, match="policy version fell from 4 to 3"):
        assert_token_consistency(request(min_version=4), await true_answer(), VOCAB)


def test_a_request_that_lost_its_prefix_is_named() -> None:
    with pytest.raises(TokenMismatchError, match="id 6 at 1 where the sequence has 1"):
        assert_extends_context(request(), np.asarray([5, 1], dtype=np.int32))


def test_a_request_that_adds_nothing_is_named() -> None:
    with pytest.raises(
        TokenMismatchError, match="it has 3 ids, the sequence that it extends has 3"
    ):
        assert_extends_context(request(), np.asarray([5, 6, 7], dtype=np.int32))


class Lying:
    """A ScriptedEngine whose answers are changed on their way."""

    def __init__(self, mutate: Mutation) -> None:
        self._true = scripted([say("yes")])
        self._mutate = mutate
        self.release, self.info = self._true.release, self._true.info
        self.calls = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.calls += 1
        return self._mutate(await self._true.generate(request))


@pytest.mark.invariant
async def test_a_broken_rule_fails_the_episode_for_good() -> None:
    engine = Lying(lambda c: replace(c, usage=replace(c.usage, prompt_tokens=99)))
    trajectory = await play(engine)
    assert (str(trajectory.status), trajectory.reward) == ("failed(engine)", None)
    assert "token consistency" in trajectory.status.detail
    assert trajectory.info["retryable"] is False
    assert laid_out(trajectory) == []
