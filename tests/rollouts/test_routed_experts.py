"""The experts of a token stay with it: from an engine's answers over turns into a batch."""

from __future__ import annotations

import pickle
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.controller.checkpoints.saved_groups import read_groups, write_groups
from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import EnvSpec
from agentrl.errors import DataError, TokenMismatchError
from agentrl.rollouts import (
    EpisodeRunner,
    GroupRequest,
    assert_token_consistency,
    make_batch,
)
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    RoutingShape,
    SamplingParams,
    Trajectory,
    TrajectoryGroup,
    concat_ids,
)
from agentrl.types.arrays import recorded
from tests.rollouts.bytewise import (
    MODEL_VOCAB,
    TASK,
    BytewiseRenderer,
    add,
    call,
    play,
    rollout_spec,
    say,
)
from tests.rollouts.test_snapshots import Counts, Gate, collect, words

SHAPE = RoutingShape(layers=2, experts=200, top_k=2)


def experts_of(ids: np.ndarray, version: int = 0) -> Any:
    """Other ones for each token and place of a sequence, and for each version of the weights."""
    first = (7 * np.arange(ids.size) + ids + version) % 99
    layer = np.stack([first, first + 100], 1)
    return np.stack([layer, layer[:, ::-1]], 1).astype(np.uint8)


class TellingEngine(ScriptedEngine):
    """Tells ``experts_of`` the tokens that it has read."""

    def info(self) -> EngineInfo:
        return replace(super().info(), routing=SHAPE)

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        ids = concat_ids(completion.segments, after=request.token_ids)
        record = experts_of(ids, completion.segments[0].policy_version or 0)
        return replace(completion, routed_experts=record[request.experts_from : -1])


async def told(**settings: Any) -> Trajectory:
    turns = [say(call("add", a=1, b=2)), say(call("add", a=3, b=4)), say("done")]
    engine = TellingEngine(turns, vocab_size=MODEL_VOCAB)
    return await play(engine, tools=[add], max_prompt_tokens=1000, **settings)


def group(trajectory: Trajectory) -> list[TrajectoryGroup]:
    return [TrajectoryGroup(0, TASK, (trajectory,))]


@pytest.mark.parametrize("rewrites", [False, True])
async def test_every_token_of_an_episode_has_its_own(rewrites: bool) -> None:
    trajectory = await told(renderer=BytewiseRenderer(rewrites=rewrites))
    batch = make_batch(group(trajectory), credit=np.zeros(1, np.float32), routing=SHAPE)
    assert batch.num_samples == (3 if rewrites else 1)
    assert batch.routed_experts is not None
    for first, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False):
        own = batch.routed_experts[first:end]
        assert (own[:-1] == experts_of(batch.token_ids[first:end])[:-1]).all()
        assert recorded(own).tolist() == [True] * (end - first - 1) + [False]
    assert batch.num_unrecorded == 0
    assert batch.routed_experts.nbytes == batch.num_tokens * SHAPE.layers * SHAPE.top_k
    # samples keep their rows, and tokens without a record are counted
    last = batch.select([batch.num_samples - 1])
    assert (last.routed_experts == batch.routed_experts[batch.cu_seqlens[-2] :]).all()
    bare = make_batch(
        group(trajectory.without_experts()), credit=np.zeros(1, np.float32), routing=SHAPE
    )
    assert bare.num_unrecorded == batch.num_tokens - batch.num_samples
    without = make_batch(group(trajectory), credit=np.zeros(1, np.float32))
    assert without.routed_experts is None


async def test_the_first_of_two_turns_that_extend_one_tells_of_its_last_token() -> None:
    trajectory = await told()
    first = trajectory.turns[0].completion[-1]
    assert recorded(first.routed_experts).all()
    assert recorded(trajectory.turns[-1].completion[-1].routed_experts)[-1] == np.False_


async def test_a_checkpoint_keeps_those_of_groups_that_wait(tmp_path: Path) -> None:
    waiting = group(await told())
    write_groups(tmp_path, waiting)
    own, again = (
        make_batch(groups, credit=np.zeros(1, np.float32), routing=SHAPE)
        for groups in (waiting, read_groups(tmp_path))
    )
    assert again.routed_experts.tolist() == own.routed_experts.tolist()


def test_a_resumed_episode_has_those_of_before_and_of_newer_weights() -> None:
    spec = replace(rollout_spec(env=EnvSpec(Counts)), save_episode_state=True)
    gate = Gate(2)
    with closing(EpisodeRunner(spec, telling(latency=gate))) as runner:
        runner.submit([GroupRequest(3, TASK, 1)])
        gate.wait_for(1)
        (saved,) = pickle.loads(pickle.dumps(runner.in_flight()))
        runner.cancel([3])
        collect(runner)
    engine = telling()
    engine.pause("retract")
    engine.begin_update(5).commit()
    engine.resume()
    with closing(EpisodeRunner(spec, engine)) as runner:
        runner.submit([GroupRequest(3, TASK, 1, saved=saved)])
        outcome = collect(runner)
    assert outcome.group.trajectories[0].policy_versions == (0, 0, 5, 5)
    batch = make_batch([outcome.group], credit=np.zeros(1, np.float32), routing=SHAPE)
    assert (batch.num_samples, batch.num_unrecorded) == (1, 0)
    # the last token that the older weights sampled was read by the newer ones
    read = int(np.flatnonzero(batch.policy_versions == 0)[-1])
    ids, record = batch.token_ids, batch.routed_experts
    assert record is not None
    assert (record[:read] == experts_of(ids)[:read]).all()
    assert (record[read:-1] == experts_of(ids, 5)[read:-1]).all()


def telling(**settings: Any) -> TellingEngine:
    return TellingEngine(words, vocab_size=MODEL_VOCAB, **settings)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (replace(SHAPE, layers=3), "and a model of 3 layers of 200 experts, 2 a token has"),
        (replace(SHAPE, top_k=1), r"has uint8 \[tokens, 2, 1\]"),
        (
            replace(SHAPE, experts=100),
            "it names expert 1.., and a model of 2 layers of 100",
        ),
        (replace(SHAPE, experts=300), "it has uint8 .* has uint16"),
    ],
)
async def test_a_batch_for_another_model_is_refused(
    shape: RoutingShape, named: str
) -> None:
    trajectory = await told()
    what = f"trajectory {trajectory.id} has the experts of another model .*{named}"
    with pytest.raises(DataError, match=f"{what}.*TrainConfig.router_replay=off"):
        make_batch(group(trajectory), credit=np.zeros(1, np.float32), routing=shape)


ASKED = GenerateRequest("r", "s", np.arange(5, dtype=np.int32), SamplingParams(4), 0)


@pytest.mark.parametrize(
    ("change", "routing", "named"),
    [
        (lambda one: one, None, "info() tells no routing of its model"),
        (lambda one: one[1:], SHAPE, "6 tokens were read, the experts of 5 came back"),
        (lambda one: np.concatenate([one, one]), SHAPE, "the experts of 12 came back"),
        (lambda one: one[:, :1], SHAPE, "another model's: it has uint8 of shape (6, 1, 2)"),
        (lambda one: one | 200, SHAPE, "another model's: it names expert"),
    ],
)
async def test_an_engines_own_account_is_held_to_them(
    change: Any, routing: RoutingShape | None, named: str
) -> None:
    answer = await TellingEngine([[8, 9]]).generate(ASKED)
    assert_token_consistency(ASKED, answer, MODEL_VOCAB, SHAPE)
    wrong = replace(answer, routed_experts=change(answer.routed_experts))
    with pytest.raises(TokenMismatchError) as caught:
        assert_token_consistency(ASKED, wrong, MODEL_VOCAB, routing)
    assert named in str(caught.value)


async def test_an_aborted_call_may_tell_of_fewer() -> None:
    answer = await TellingEngine([[8, 9]]).generate(ASKED)
    cut = replace(answer, finish_reason="abort", routed_experts=answer.routed_experts[:2])
    assert_token_consistency(ASKED, cut, MODEL_VOCAB, SHAPE)
