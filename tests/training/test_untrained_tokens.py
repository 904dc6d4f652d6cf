"""For every built-in algorithm: only tokens of the kinds that it trains have a gradient.

Random batches go through the real update. The gradient is read where the model hands its numbers
to the loss, for each token of the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from agentrl.algorithms import ALGORITHMS, AlgorithmSpec, make_algorithm
from agentrl.training import (
    Actor,
    Critic,
    CriticSpec,
    DistSpec,
    join,
    merge_columns,
    sample_weights,
    shards,
)
from agentrl.training.data.partition import auxiliary_weights, partition
from agentrl.types import Batch, BatchShard, SegmentKind
from tests.training.harness import PLAIN, layout, make_actor, make_batch

POLICIES = sorted(
    name for name in ALGORITHMS if make_algorithm(name).policy_loss is not None
)
"""All but reward_model, which scores whole samples and sees no token's logprob."""
CRITICS = [name for name in POLICIES if make_algorithm(name).needs.critic]
SEEDS = range(3)


def settings_of(name: str) -> dict[str, Any]:
    """A KL and an entropy bonus where there may be one, which reach tokens too."""
    keys = ALGORITHMS[name].settings.model_fields
    wanted = {"kl_coef": 0.1, "entropy_coef": 0.01}
    if name == "distillation":
        del wanted["kl_coef"]
    return {key: value for key, value in wanted.items() if key in keys}


def random_batch(algorithm: AlgorithmSpec, seed: int) -> Batch:
    """Samples of every kind of token; one has a single trained token, one has none.

    Tokens that nobody may read have numbers as the others do.
    """
    rng = np.random.default_rng(seed)
    lengths = [*rng.integers(4, 24, 6).tolist(), 6, 6]
    batch = make_batch(lengths, seed=seed)
    kinds = rng.choice(list(SegmentKind), batch.num_tokens).astype(np.int8)
    starts = batch.cu_seqlens[:-1]
    kinds[starts] = SegmentKind.PROMPT
    trained = min(algorithm.trains)
    kinds[starts[0] + 1] = trained
    kinds[starts[6] : starts[6] + 5] = SegmentKind.OBSERVATION
    kinds[starts[6] + 5] = trained
    kinds[starts[7] :] = SegmentKind.PROMPT
    mask = np.isin(kinds, list(algorithm.trains)) & (rng.random(batch.num_tokens) < 0.9)
    mask[starts[0] + 1] = mask[starts[6] + 5] = True

    def noise(mean: float) -> npt.NDArray[np.float32]:
        return rng.normal(mean, 0.5, batch.num_tokens).astype(np.float32)

    return replace(
        batch,
        kind=kinds,
        loss_mask=mask.astype(np.float32),
        policy_versions=np.where(kinds == SegmentKind.POLICY, 0, -1).astype(np.int32),
        rollout_logprobs=noise(-4.6),
        old_logprobs=noise(-4.6),
        ref_logprobs=noise(-4.6),
        turn_credit=rng.normal(size=batch.num_samples).astype(np.float32),
        values=noise(0.0),
        final_values=noise(0.0),
    )


def shard_of(batch: Batch, algorithm: AlgorithmSpec) -> BatchShard:
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, 64)
    )
    auxiliary = {
        one.name: auxiliary_weights(batch, plan, one.select(batch))
        for one in algorithm.auxiliary
    }
    weights = sample_weights(batch, plan, algorithm.reduction)
    return shards(batch, plan, weights, auxiliary=auxiliary)[0]


def with_advantages(actor: Actor, batch: Batch) -> Batch:
    shard = shard_of(batch, actor.spec.algorithm)
    return batch.join(merge_columns([actor.advantages(shard)], [shard], batch.cu_seqlens))


def token_gradients(role: Actor | Critic, shard: BatchShard) -> npt.NDArray[np.float64]:
    """``[T]`` absolute gradients of what the model said of each token of the shard, in one
    update."""
    said: list[tuple[Any, list[torch.Tensor]]] = []

    def keep(_: Any, given: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        columns = [one for one in outputs if one.requires_grad]
        for column in columns:
            column.retain_grad()
        said.append((given[0], columns))

    hook = role.backend.model.register_forward_hook(keep)
    role.update(shard)
    hook.remove()
    found = np.zeros(shard.batch.num_tokens)
    for packed, columns in said:
        for column in columns:
            if column.grad is None or not column.grad.any():
                continue
            # what is of no token has no gradient
            assert column.shape == packed.source.shape
            np.add.at(found, packed.source, column.grad.abs().double().numpy())
    return found


@pytest.mark.wide
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", POLICIES)
def test_a_token_of_another_kind_has_exactly_no_gradient(
    model_path: str, name: str, seed: int
) -> None:
    actor = make_actor(model_path, name, settings=settings_of(name))
    algorithm = actor.spec.algorithm
    shard = shard_of(with_advantages(actor, random_batch(algorithm, seed)), algorithm)
    kinds, trained = shard.batch.kind, shard.batch.loss_mask != 0
    gradient = token_gradients(actor, shard)
    assert gradient[trained].any()
    read = trained.copy()
    for one in algorithm.auxiliary:
        read |= shard.auxiliary[one.name] > 0
    assert not gradient[~read].any()
    foreign = ~np.isin(kinds, list(algorithm.trains))
    if name == "echo":  # it declares that it imitates observations
        observed = foreign & read
        assert observed.any()
        assert gradient[observed].all()
        foreign = foreign & (kinds != SegmentKind.OBSERVATION)
    assert foreign.any()
    assert not gradient[foreign].any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_learns_from_the_policys_tokens_alone(
    model_path: str, name: str, seed: int
) -> None:
    algorithm = make_algorithm(name)
    actor = make_actor(model_path, name)
    batch = with_advantages(actor, random_batch(algorithm, seed))
    join(DistSpec())
    critic = Critic(CriticSpec(model_path, algorithm, optim=PLAIN, head_seed=5), DistSpec())
    shard = shard_of(batch, algorithm)
    gradient = token_gradients(critic, shard)
    trained = shard.batch.loss_mask != 0
    assert gradient[trained].any()
    assert not gradient[~trained].any()
    assert not gradient[shard.batch.kind != SegmentKind.POLICY].any()
