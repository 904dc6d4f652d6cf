"""What a rank hands to an algorithm's functions: credit where it falls due, π_old, auxiliary
losses."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms import (
    ALGORITHMS,
    AuxiliaryLoss,
    PolicyInputs,
    Term,
    TokenLoss,
    make_algorithm,
)
from agentrl.training import Actor, ActorSpec, DistSpec, join, sample_weights, shards
from agentrl.training.data.partition import auxiliary_weights, partition
from agentrl.training.roles.advantages import due_credit, token_credit
from agentrl.types import Batch, SegmentKind
from agentrl.types.arrays import Floats
from tests.training.harness import PLAIN, gradients, layout, make_batch, prepared


def two_trajectories() -> Batch:
    """The first has three turns in two samples, whose second restates the first turn; the second
    has one turn. P is a prompt, numbers are POLICY tokens of a turn, o is a tool's.

        sample 0, trajectory 0:  P 0 0 o 1 1
        sample 1, trajectory 0:  P 0 0 2 2      (turn 0 is context here)
        sample 2, trajectory 1:  P 3 3
    """
    batch = make_batch([6, 5, 3], rollouts=2)
    prompt, policy, tool = SegmentKind.PROMPT, SegmentKind.POLICY, SegmentKind.OBSERVATION
    kinds = [prompt, policy, policy, tool, policy, policy]
    kinds += [prompt, policy, policy, policy, policy, prompt, policy, policy]
    mask = [0, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1]
    return replace(
        batch,
        kind=np.array(kinds, np.int8),
        loss_mask=np.array(mask, np.float32),
        turn_index=np.array([0, 0, 0, 1, 1, 1, 0, 0, 0, 2, 2, 3, 3, 3], np.int32),
        trajectory=np.array([0, 0, 1], np.int32),
        turn_trajectory=np.array([0, 0, 0, 1], np.int32),
        turn_reward=np.zeros(4, np.float32),
        turn_credit=np.array([1.0, 2.0, 4.0, 8.0], np.float32),
        state_key=np.zeros(4, np.uint64),
        group=np.zeros(2, np.int32),
        group_index=np.zeros(2, np.int64),
        rollout_index=np.arange(2, dtype=np.int32),
        reward=np.zeros(2, np.float32),
        credit=np.array([100.0, 200.0], np.float32),
        weight=np.ones(2),
        truncated=np.zeros(2, np.bool_),
        interrupted=np.zeros(2, np.bool_),
    )


def test_credit_falls_due_on_the_last_token_of_its_turn_and_of_its_trajectory() -> None:
    due = due_credit(two_trajectories()).tolist()
    assert due == [0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 104, 0, 0, 208]


@pytest.mark.parametrize(
    ("untrained", "expected"),
    [
        ([4, 5], {2: 3.0, 10: 104.0}),  # turn 1 falls due on the turn before it
        (
            [1, 2],
            {4: 1.0, 5: 2.0, 10: 104.0},
        ),  # turn 0 has none before it: on the one behind it
        ([9, 10], {2: 1.0, 5: 106.0}),  # the last turn, and with it the trajectory's own
    ],
)
def test_the_credit_of_an_untrained_turn_is_not_lost(
    untrained: list[int], expected: dict[int, float]
) -> None:
    batch = two_trajectories()
    mask = batch.loss_mask.copy()
    mask[untrained] = 0
    due = due_credit(replace(batch, loss_mask=mask))
    found = {row: due[row] for row in np.flatnonzero(due).tolist() if row < 11}
    assert found == expected


def test_a_turn_that_an_earlier_sample_owns_is_not_owned_again() -> None:
    owned = two_trajectories().owned().tolist()
    assert owned == [True] * 6 + [False] * 3 + [True] * 5


def actor_of(model_path: str, algorithm: Any) -> Actor:
    join(DistSpec())
    return Actor(ActorSpec(model_path, algorithm, PLAIN), DistSpec())


def one_update(actor: Actor, batch: Batch) -> Any:
    """An optimizer step on the whole batch, auxiliary losses included."""
    algorithm = actor.spec.algorithm
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, 64)
    )
    auxiliary = {
        one.name: auxiliary_weights(batch, plan, one.select(batch))
        for one in algorithm.auxiliary
    }
    weights = sample_weights(batch, plan, algorithm.reduction)
    (shard,) = shards(batch, plan, weights, auxiliary=auxiliary)
    return actor.update(shard)


@pytest.mark.parametrize("old_logprobs", ["current", "rollout", "recompute"])
def test_the_old_policy_is_who_the_algorithm_says(
    model_path: str, old_logprobs: str
) -> None:
    seen: list[PolicyInputs] = []

    def spying(inputs: PolicyInputs) -> TokenLoss:
        seen.append(inputs)
        return TokenLoss(-inputs.logprobs)

    algorithm = replace(
        make_algorithm("grpo"), policy_loss=spying, old_logprobs=old_logprobs
    )
    actor = actor_of(model_path, algorithm)
    batch = prepared(actor, make_batch())
    if old_logprobs != "recompute":
        batch = replace(batch, old_logprobs=None)
    one_update(actor, batch)
    old = torch.cat([one.old_logprobs for one in seen])
    source = {
        "current": torch.cat([one.logprobs.detach() for one in seen]),
        "rollout": torch.cat([one.rollout_logprobs for one in seen]),
        # before the only update the policy's own logprobs are the recomputed ones
        "recompute": torch.cat([one.logprobs.detach() for one in seen]),
    }
    assert torch.equal(old, source[old_logprobs])
    assert not old.requires_grad


def test_advantages_take_the_old_policy_from_where_the_algorithm_says(
    model_path: str,
) -> None:
    batch = make_batch()
    reference = np.linspace(-3.0, -1.0, batch.num_tokens, dtype=np.float32)
    mask = batch.loss_mask

    def advantages(old_logprobs: str, batch: Batch) -> Floats:
        settings = {"kl_coef": 0.5, "old_logprobs": old_logprobs}
        actor = actor_of(model_path, make_algorithm("reinforce_plus_plus", settings))
        plan = partition(
            batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, 64)
        )
        (shard,) = shards(replace(batch, ref_logprobs=reference * mask), plan[0])
        return actor.advantages(shard)["advantages"]

    sampled = replace(batch, old_logprobs=batch.rollout_logprobs)
    np.testing.assert_array_equal(
        advantages("rollout", batch), advantages("recompute", sampled)
    )


def test_dppo_asks_for_the_old_policy_where_several_updates_move_it() -> None:
    dppo = make_algorithm("dppo")
    assert not dppo.for_updates(1, single=True).recomputes_old_logprobs
    assert dppo.for_updates(2, single=False).recomputes_old_logprobs


def imitation_of_tools(coef: float) -> AuxiliaryLoss:
    return AuxiliaryLoss(
        "tools",
        coef,
        lambda batch: batch.kind == SegmentKind.OBSERVATION,
        lambda inputs: TokenLoss(-inputs.logprobs),
    )


def test_an_auxiliary_loss_is_the_mean_over_its_own_tokens(model_path: str) -> None:
    batch = make_batch()
    masked = replace(batch, loss_mask=np.zeros_like(batch.loss_mask))
    spec = replace(make_algorithm("grpo"), auxiliary=(imitation_of_tools(0.5),))
    actor = actor_of(model_path, spec.for_updates(1, single=True))
    alone = one_update(actor, replace(masked, advantages=np.zeros_like(batch.loss_mask)))
    found = gradients(actor)

    # the same tokens imitated by SFT, whose loss is their mean
    chosen = (batch.kind == SegmentKind.OBSERVATION) & batch.owned()
    chosen[batch.cu_seqlens[:-1]] = False
    imitated = actor_of(model_path, make_algorithm("sft"))
    stats = one_update(imitated, replace(batch, loss_mask=chosen.astype(np.float32)))
    assert alone["policy/tools"].mean == pytest.approx(stats["policy/loss"].mean, rel=1e-6)
    for name, gradient in gradients(imitated).items():
        torch.testing.assert_close(found[name], 0.5 * gradient, rtol=1e-5, atol=1e-8)


def test_a_mini_batch_without_an_auxiliary_losss_tokens_counts_in_no_mean(
    model_path: str,
) -> None:
    spec = replace(make_algorithm("grpo"), auxiliary=(imitation_of_tools(0.5),))
    actor = actor_of(model_path, spec.for_updates(1, single=True))
    batch = prepared(actor, make_batch())
    kind = np.where(batch.kind == SegmentKind.OBSERVATION, SegmentKind.TEMPLATE, batch.kind)
    assert one_update(actor, batch)["policy/tools"].count == 1
    assert "policy/tools" not in one_update(actor, replace(batch, kind=kind))


def test_an_auxiliary_loss_and_the_policys_add_up(model_path: str) -> None:
    def gradient_of(coef: float, *, trained: bool) -> dict[str, torch.Tensor]:
        auxiliary = (imitation_of_tools(coef),) if coef else ()
        spec = replace(make_algorithm("grpo"), auxiliary=auxiliary).for_updates(
            1, single=True
        )
        actor = actor_of(model_path, spec)
        batch = prepared(actor, make_batch())
        mask = batch.loss_mask if trained else np.zeros_like(batch.loss_mask)
        one_update(actor, replace(batch, loss_mask=mask))
        return gradients(actor)

    both = gradient_of(0.5, trained=True)
    policy = gradient_of(0.0, trained=True)
    auxiliary = gradient_of(0.5, trained=False)
    for name, gradient in both.items():
        torch.testing.assert_close(
            gradient, policy[name] + auxiliary[name], rtol=1e-4, atol=1e-7
        )


def test_a_trajectory_of_weight_two_is_trained_as_if_it_were_there_twice(
    model_path: str,
) -> None:
    actor = actor_of(model_path, make_algorithm("grpo").for_updates(1, single=True))
    batch = prepared(actor, make_batch([9, 12], rollouts=2))
    one_update(actor, replace(batch, weight=np.array([2.0, 1.0])))
    weighed = gradients(actor)
    # of the two trajectories the first one again, as a row of its own
    again = actor_of(model_path, make_algorithm("grpo").for_updates(1, single=True))
    copied = replace(batch.select([0, 0, 1]), trajectory=np.array([0, 2, 1], np.int32))
    rows = {
        name: np.append(getattr(batch, name), getattr(batch, name)[:1])
        for name in (
            "group", "group_index", "rollout_index", "reward", "credit", "weight", "truncated",
            "interrupted",
        )
    }  # fmt: skip
    one_update(again, replace(copied, **rows))
    for name, gradient in gradients(again).items():
        torch.testing.assert_close(weighed[name], gradient, rtol=1e-4, atol=1e-7)


def test_terms_that_were_not_declared_are_refused(model_path: str) -> None:
    def undeclared(inputs: PolicyInputs) -> TokenLoss:
        return TokenLoss(-inputs.logprobs, terms={"kl": Term(inputs.logprobs, 1.0)})

    spec = replace(make_algorithm("grpo"), policy_loss=undeclared).for_updates(
        1, single=True
    )
    actor = actor_of(model_path, spec)
    with pytest.raises(
        ValueError, match=r"must return the terms .* declares, \[\], got \['kl'\]"
    ):
        one_update(actor, prepared(actor, make_batch()))


def test_the_entropy_has_a_gradient_where_it_is_asked_for(model_path: str) -> None:
    def of_entropy(inputs: PolicyInputs) -> TokenLoss:
        return TokenLoss(
            0.0 * inputs.logprobs, terms={"entropy": Term(inputs.entropy, -1.0)}
        )

    spec = replace(make_algorithm("grpo"), policy_loss=of_entropy, terms=("entropy",))
    spec = spec.for_updates(1, single=True)
    asked = replace(spec, needs=replace(spec.needs, entropy=True))
    norms = []
    for one in (spec, asked):
        actor = actor_of(model_path, one)
        stats = one_update(actor, prepared(actor, make_batch()))
        norms.append(stats["optim/grad_norm"].mean)
    assert norms[0] == 0.0
    assert norms[1] > 1e-4


PLAYED = [
    name for name in ALGORITHMS if ALGORITHMS[name].settings.learns_from == "rollouts"
]


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name in PLAYED if name not in ("echo", "vapo")])
def test_what_a_tool_said_has_no_gradient(model_path: str, name: str) -> None:
    """No number of a token that is not trained reaches the loss: not its ratio, nor its credit."""
    settings = {"rollout_correction": {"level": "sequence"}} if name != "dppo" else {}
    found = []
    for garbage in (0.0, 1e3):
        actor = actor_of(
            model_path, make_algorithm(name, settings).for_updates(1, single=False)
        )
        valued = make_batch()
        zeros = np.zeros_like(valued.loss_mask)
        given = {"values": zeros, "final_values": zeros, "ref_logprobs": zeros - 1}
        batch = prepared(actor, replace(valued, **given))
        untrained = batch.loss_mask == 0
        columns = {
            column: np.where(untrained, np.float32(garbage), getattr(batch, column))
            for column in ("rollout_logprobs", "old_logprobs", "advantages", "ref_logprobs")
            if getattr(batch, column) is not None
        }
        one_update(actor, replace(batch, **columns))
        found.append(gradients(actor))
    assert all(torch.equal(found[1][name], gradient) for name, gradient in found[0].items())


@pytest.mark.filterwarnings("error")
def test_columns_that_came_over_ray_are_brought_to_tokens_without_a_warning() -> None:
    batch = two_trajectories()
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, 64)
    )
    (shard,) = shards(batch, plan)
    for array in (getattr(shard.batch, one.name) for one in fields(batch)):
        if isinstance(array, np.ndarray):
            array.setflags(write=False)  # as what comes out of Ray's object store is

    credit = token_credit(shard, torch.device("cpu"))

    assert credit.trajectory.tolist() == [100.0] * 11 + [200.0] * 3
