"""One optimizer step: exact normalisation, and which numbers can reach a gradient."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms import Advantages, Correction, TokenLoss, make_algorithm
from agentrl.errors import ConfigError, TrainingError
from agentrl.training import Actor, DistSpec, OptimSpec, merge_columns
from agentrl.types import Batch, SegmentKind
from tests.training.harness import (
    gradients,
    make_actor,
    make_batch,
    prepared,
    update,
    update_shards,
)

Gradients = dict[str, torch.Tensor]


def largest_difference(first: Gradients, second: Gradients) -> float:
    return max((first[name] - second[name]).abs().max().item() for name in first)


def stepped(
    model_path: str, batch: Batch, micro_batch_tokens: int = 64
) -> tuple[float, Gradients]:
    actor = make_actor(model_path)
    loss = update(actor, batch, micro_batch_tokens)["policy/loss"].mean
    return loss, gradients(actor)


@pytest.fixture(scope="module")
def batch(model_path: str) -> Batch:
    return prepared(make_actor(model_path), make_batch())


def test_token_mean_is_the_mean_over_all_trained_tokens(
    model_path: str, batch: Batch
) -> None:
    # on policy the ratio is 1, so a token's loss is minus its advantage
    trained = batch.loss_mask != 0
    assert batch.advantages is not None
    loss, _ = stepped(model_path, batch)
    assert loss == pytest.approx(
        -batch.advantages[trained].astype(np.float64).mean(), abs=1e-7
    )


def test_trajectory_mean_weighs_trajectories_alike(model_path: str, batch: Batch) -> None:
    # one sample a trajectory: the mean of their credits, whatever their lengths
    actor = make_actor(model_path, settings={"reduction": "trajectory_mean"})
    loss = update(actor, batch)["policy/loss"].mean
    assert loss == pytest.approx(-batch.credit.astype(np.float64).mean(), abs=1e-7)


@pytest.mark.parametrize("micro_batch_tokens", [30, 45, 1000])
def test_loss_and_gradient_do_not_depend_on_micro_batches(
    model_path: str, batch: Batch, micro_batch_tokens: int
) -> None:
    loss, gradient = stepped(model_path, batch)
    other_loss, other = stepped(model_path, batch, micro_batch_tokens)
    assert other_loss == pytest.approx(loss, abs=1e-6)
    assert largest_difference(gradient, other) < 1e-6


SEQUENCES = [
    ("gspo", {}),
    ("grpo", {"rollout_correction": {"level": "sequence"}}),
    ("grpo", {"rollout_correction": {"level": "geometric"}}),
]


@pytest.mark.parametrize(("name", "settings"), SEQUENCES)
def test_a_sequences_numbers_do_not_depend_on_micro_batches(
    model_path: str, name: str, settings: dict[str, Any]
) -> None:
    def step(micro_batch_tokens: int) -> Gradients:
        actor = make_actor(model_path, name, settings=settings)
        update(actor, prepared(actor, make_batch()), micro_batch_tokens)
        return gradients(actor)

    assert largest_difference(step(1000), step(30)) < 1e-6


@pytest.mark.parametrize(("name", "settings"), SEQUENCES)
def test_a_sequence_longer_than_a_micro_batch_is_refused_whole(
    model_path: str, name: str, settings: dict[str, Any]
) -> None:
    actor = make_actor(model_path, name, settings=settings)
    with pytest.raises(
        ConfigError,
        match=r"TrainConfig\.micro_batch_tokens must be at least .* got 29 .* of 30 tokens",
    ):
        update(actor, prepared(actor, make_batch()), 29)


def test_gradient_checkpointing_changes_no_gradient(model_path: str, batch: Batch) -> None:
    _, gradient = stepped(model_path, batch)
    actor = make_actor(model_path, gradient_checkpointing=True)
    update(actor, batch)
    assert largest_difference(gradient, gradients(actor)) < 1e-6


@pytest.mark.invariant
@pytest.mark.parametrize("column", ["advantages", "rollout_logprobs", "old_logprobs"])
def test_an_untrained_tokens_numbers_change_no_gradient_by_a_bit(
    model_path: str, batch: Batch, column: str
) -> None:
    changed = np.where(batch.loss_mask == 0, np.float32(1e6), getattr(batch, column))
    _, gradient = stepped(model_path, batch)
    _, other = stepped(model_path, replace(batch, **{column: changed}))
    assert largest_difference(gradient, other) == 0.0


def test_a_trained_tokens_advantage_does_change_it(model_path: str, batch: Batch) -> None:
    assert batch.advantages is not None
    changed = batch.advantages.copy()
    changed[np.flatnonzero(batch.loss_mask)[0]] += 1
    _, gradient = stepped(model_path, batch)
    _, other = stepped(model_path, replace(batch, advantages=changed))
    assert largest_difference(gradient, other) > 1e-4


@pytest.mark.invariant
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_ratio_is_exactly_one_before_the_first_update(
    model_path: str, deterministic: bool
) -> None:
    actor = make_actor(model_path, deterministic=deterministic)
    try:
        stats = update(actor, prepared(actor, make_batch()))
    finally:
        torch.use_deterministic_algorithms(False)
    assert stats["policy/ratio"].mean == 1.0
    assert stats["policy/kl_old"].sum == 0.0


def test_a_second_pass_is_clipped_where_it_went_too_far(
    model_path: str, batch: Batch
) -> None:
    actor = make_actor(model_path, optim=OptimSpec(lr=0.02))
    update(actor, batch)
    stats = update(actor, batch)
    assert stats["policy/kl_old"].mean > 0
    assert stats["policy/clip_frac_high"].mean > 0


def test_mismatch_is_the_distance_to_the_samplers_logprobs(
    model_path: str, batch: Batch
) -> None:
    assert batch.old_logprobs is not None
    trained = batch.loss_mask != 0
    distance = np.abs(batch.old_logprobs - batch.rollout_logprobs)[trained]
    stat = update(make_actor(model_path), batch)["mismatch/logp_abs"]
    assert stat.mean == pytest.approx(distance.mean(), abs=1e-5)
    assert stat.max == pytest.approx(distance.max(), abs=1e-6)


def test_mismatch_tells_the_engine_from_the_weights_age(
    model_path: str, batch: Batch
) -> None:
    # every third token is of the version that is trained, 7; the others are of 5
    assert batch.old_logprobs is not None
    trained = batch.loss_mask != 0
    fresh = trained & (np.arange(batch.num_tokens) % 3 == 0)
    old = trained & ~fresh
    versions = np.select([fresh, old], [7, 5], -1).astype(np.int32)
    actor = make_actor(model_path)
    aged = replace(batch, policy_versions=versions)
    stats = actor.update(update_shards(actor, aged, 64, 1, policy_version=7)[0])
    difference = (batch.old_logprobs - batch.rollout_logprobs).astype(np.float64)
    for name, tokens in (("engine/", fresh), ("stale/", old), ("", trained)):
        own = difference[tokens]
        found = stats[f"mismatch/{name}logp_abs"]
        assert (found.count, found.mean) == (
            own.size,
            pytest.approx(abs(own).mean(), abs=1e-5),
        )
        k3 = stats[f"mismatch/{name}k3_kl"].mean
        assert k3 == pytest.approx((np.expm1(own) - own).mean(), rel=1e-4)


def test_without_older_tokens_there_is_no_mismatch_by_age(
    model_path: str, batch: Batch
) -> None:
    stats = update(make_actor(model_path), batch)
    assert stats["mismatch/engine/logp_abs"].mean == stats["mismatch/logp_abs"].mean
    assert not [name for name in stats if name.startswith("mismatch/stale/")]


def test_the_columns_of_a_rank_travel_with_its_statistics(
    model_path: str, batch: Batch
) -> None:
    actor = make_actor(model_path, detail="tokens")
    parts = update_shards(actor, batch, 64, 1)
    sent = actor.update(parts[0])
    got = pickle.loads(pickle.dumps(sent))
    assert got == sent
    assert got.columns.keys() == {"ratio", "clipped", "token_loss"}
    columns = merge_columns([got.columns], parts, batch.cu_seqlens)
    trained = batch.loss_mask != 0
    assert batch.advantages is not None
    # on policy the ratio is 1
    np.testing.assert_array_equal(columns["ratio"], trained)
    np.testing.assert_array_equal(
        columns["token_loss"], np.where(trained, -batch.advantages, 0)
    )


def test_entropy_is_at_most_that_of_the_uniform_distribution(
    model_path: str, batch: Batch
) -> None:
    stat = update(make_actor(model_path), batch)["policy/entropy"]
    assert 0 < stat.mean <= stat.max < math.log(96)


def test_a_mini_batch_without_trained_tokens_takes_no_step(
    model_path: str, batch: Batch
) -> None:
    actor = make_actor(model_path)
    before = actor.checksum()
    stats = update(actor, replace(batch, loss_mask=np.zeros_like(batch.loss_mask)))
    assert dict(stats).keys() == {"optim/skipped"}
    assert (actor.steps, actor.checksum()) == (0, before)


def test_a_micro_batch_without_trained_tokens_changes_nothing(
    model_path: str, batch: Batch
) -> None:
    # the longest sample is alone in its micro-batch of 30 tokens, and untrained
    mask = batch.loss_mask.copy()
    mask[batch.cu_seqlens[7] : batch.cu_seqlens[8]] = 0
    partly = replace(batch, loss_mask=mask)
    loss, gradient = stepped(model_path, partly, 30)
    other_loss, other = stepped(model_path, partly, 1000)
    assert loss == pytest.approx(other_loss, abs=1e-6)
    assert largest_difference(gradient, other) < 1e-6


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38], ids=["inf", "nan", "overflow"])
def test_a_gradient_that_is_not_finite_takes_no_step_and_is_named(
    model_path: str, batch: Batch, caplog: pytest.LogCaptureFixture, value: float
) -> None:
    assert batch.advantages is not None
    actor = make_actor(model_path)
    update(actor, batch)
    before = actor.checksum(), gradients(actor)
    bad = np.where(batch.loss_mask != 0, np.float32(value), np.float32(0))
    stats = update(actor, replace(batch, advantages=bad))
    assert stats["optim/not_finite"].sum == 1
    assert not math.isfinite(stats["optim/grad_norm"].mean)
    assert "optim/lr" not in stats
    assert (actor.steps, actor.checksum()) == (1, before[0])
    assert largest_difference(gradients(actor), before[1]) == 0  # the optimizer's moments
    (told,) = [vars(record) for record in caplog.records]
    assert told["event"] == "gradient_not_finite"
    assert told["role"] == "actor"
    # 3e38 leaves finite gradients, whose norm is beyond float32
    assert ("model.embed_tokens.weight" in told["parameters"]) == (value != 3e38)
    # what comes next is as if nothing had been
    other = make_actor(model_path)
    update(other, batch)
    assert dict(update(actor, batch)) == dict(update(other, batch))


def test_credit_that_is_not_finite_is_refused(model_path: str) -> None:
    batch = make_batch()
    with pytest.raises(
        TrainingError,
        match=r"its advantages must return advantages that are finite, got nan",
    ):
        prepared(
            make_actor(model_path),
            replace(batch, credit=np.full_like(batch.credit, np.nan)),
        )


def test_an_update_needs_its_columns(model_path: str) -> None:
    with pytest.raises(ValueError, match=r"batch\.old_logprobs is missing"):
        update(make_actor(model_path), make_batch())


def test_advantages_are_credit_on_trained_tokens(batch: Batch) -> None:
    credit = np.repeat(batch.credit, batch.lengths) * (batch.loss_mask != 0)
    assert batch.advantages is not None
    assert batch.advantages.tolist() == credit.astype(np.float32).tolist()


def test_normalised_advantages_have_the_moments_of_a_unit(model_path: str) -> None:
    actor = make_actor(model_path)
    algorithm = replace(make_algorithm("grpo"), normalize_advantages=True)
    actor.spec = replace(actor.spec, algorithm=algorithm)
    batch = prepared(actor, make_batch())
    assert batch.advantages is not None
    own = batch.advantages[batch.loss_mask != 0].astype(np.float64)
    assert own.mean() == pytest.approx(0.0, abs=1e-6)
    assert own.std() == pytest.approx(1.0, abs=1e-6)
    assert not batch.advantages[batch.loss_mask == 0].any()


def test_imitation_makes_its_targets_likelier(model_path: str) -> None:
    actor = make_actor(
        model_path,
        "sft",
        optim=OptimSpec(name="muon", lr=2e-3, schedule="linear"),
        total_steps=20,
    )
    batch = make_batch(kind=SegmentKind.TARGET)
    losses = [update(actor, batch)["policy/loss"].mean for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]
    assert losses[0] == pytest.approx(math.log(96), abs=0.5)


def test_the_learning_rate_follows_its_schedule(model_path: str) -> None:
    actor = make_actor(model_path, "sft", optim=OptimSpec(lr=0.4, warmup_steps=4))
    batch = make_batch(kind=SegmentKind.TARGET)
    rates = [update(actor, batch)["optim/lr"].mean for _ in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_clipping_bounds_the_gradient_of_the_step(model_path: str, batch: Batch) -> None:
    actor = make_actor(
        model_path, optim=OptimSpec(lr=1e-3, betas=(0.0, 0.0), clip_grad_norm=0.01)
    )
    assert update(actor, batch)["optim/grad_norm"].mean > 0.01
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients(actor).values()))
    assert norm == pytest.approx(0.01, rel=1e-5)


def of_algorithm(model_path: str, **functions: Any) -> Actor:
    actor = make_actor(model_path)
    spec = replace(actor.spec, algorithm=replace(actor.spec.algorithm, **functions))
    return Actor(spec, DistSpec())


def test_a_loss_that_is_summed_already_is_refused(model_path: str, batch: Batch) -> None:
    actor = of_algorithm(model_path, policy_loss=lambda own: TokenLoss(-own.logprobs.sum()))
    with pytest.raises(
        TrainingError,
        match=r"its policy_loss must return one number for each of the \d+ trained tokens of a "
        r"micro-batch, got shape \(\); leave their sum to the algorithm's reduction",
    ):
        update(actor, batch)


def test_a_correction_of_another_length_is_refused(model_path: str, batch: Batch) -> None:
    actor = of_algorithm(
        model_path, correction=lambda own: Correction(own.logprobs[:1].detach())
    )
    with pytest.raises(
        TrainingError, match=r"its correction must return one number for each"
    ):
        update(actor, batch)


@pytest.mark.parametrize(
    ("value", "told"),
    [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")],
)
def test_advantages_that_are_not_finite_are_refused(
    model_path: str, value: float, told: str
) -> None:
    actor = of_algorithm(model_path, advantages=lambda own: Advantages(own.mask * value))
    with pytest.raises(
        TrainingError,
        match=rf"its advantages must return advantages that are finite, got {told} ",
    ):
        prepared(actor, make_batch())


def test_advantages_of_other_tokens_are_refused(model_path: str) -> None:
    actor = of_algorithm(model_path, advantages=lambda own: Advantages(own.mask[:-1]))
    with pytest.raises(TrainingError, match=r"one number for each of the \d+ tokens, got "):
        prepared(actor, make_batch())
