"""A critic's values, losses and checkpoints against independent computations of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms import TokenLoss, make_algorithm
from agentrl.errors import ConfigError, TrainingError
from agentrl.training import (
    Critic,
    CriticSpec,
    DistSpec,
    OptimSpec,
    join,
    sample_weights,
    shards,
)
from agentrl.training.data.partition import partition
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.packed_model import ModelSpec
from agentrl.types import Batch, BatchShard
from tests.training.harness import PLAIN, layout, make_batch
from tests.training.test_algorithm_inputs import two_trajectories
from tests.whole_models import load_value_model


def critic(model_path: str, settings: dict[str, Any] | None = None, **spec: Any) -> Critic:
    join(DistSpec())
    algorithm = make_algorithm("ppo", settings)
    return Critic(
        CriticSpec(model_path, algorithm, **{"optim": PLAIN, "head_seed": 5} | spec),
        DistSpec(),
    )


def shard_of(batch: Batch, micro_batch_tokens: int = 64) -> BatchShard:
    (plan,) = partition(
        batch.lengths,
        batch.group[batch.trajectory],
        seed=0,
        layout=layout(1, micro_batch_tokens),
    )
    weights = sample_weights(batch, plan, make_algorithm("ppo").reduction)
    return shards(batch, plan, weights)[0]


def valued(role: Critic, batch: Batch, micro_batch_tokens: int = 64) -> Batch:
    """The batch with values, and returns of one more than them."""
    shard = shard_of(batch, micro_batch_tokens)
    found = role.values(shard)
    order = np.concatenate(
        [
            np.arange(batch.cu_seqlens[row], batch.cu_seqlens[row + 1])
            for row in shard.samples
        ]
    )
    columns = {name: np.zeros_like(column) for name, column in found.items()}
    for name, column in found.items():
        columns[name][order] = column
    returns = np.where(batch.loss_mask != 0, columns["values"] + 1, 0).astype(np.float32)
    return batch.join({**columns, "returns": returns})


def reference_values(model_path: str, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """A model of its own with the same head, on each sample alone: values of what stands before
    each trained token, and of the whole sample."""
    model = load_value_model(ModelSpec(model_path), head_seed=5)
    found = np.zeros(batch.num_tokens, np.float32)
    behind = np.zeros(batch.num_samples, np.float32)
    for row in range(batch.num_samples):
        start, end = batch.cu_seqlens[row], batch.cu_seqlens[row + 1]
        ids = torch.from_numpy(batch.token_ids[start:end].astype(np.int64))
        positions = torch.arange(ids.numel())
        with torch.no_grad():
            hidden = model.hidden(
                ids, positions[None], [Span(ROOT, 0, ids.numel())], positions
            )
            values = model.head(hidden)[:, 0].numpy()
        found[start + 1 : end] = values[:-1]
        behind[row] = values[-1]
    return np.where(batch.loss_mask != 0, found, 0), behind


@pytest.mark.parametrize("micro_batch_tokens", [64, 200])
def test_a_value_is_of_the_state_before_its_token(
    model_path: str, micro_batch_tokens: int
) -> None:
    role = critic(model_path)
    batch = make_batch()
    found = valued(role, batch, micro_batch_tokens)
    expected, behind = reference_values(model_path, batch)
    assert found.values is not None
    assert found.final_values is not None
    np.testing.assert_allclose(found.values, expected, atol=1e-5)
    ends = np.flatnonzero(found.final_values)
    np.testing.assert_allclose(found.final_values[ends], behind, atol=1e-5)
    assert (batch.loss_mask[ends] == 1).all()


def test_the_value_behind_a_trajectory_stands_on_its_last_token_of_all(
    model_path: str,
) -> None:
    role = critic(model_path)
    batch = two_trajectories()
    found = valued(role, batch)
    _, behind = reference_values(model_path, batch)
    assert found.final_values is not None
    # the second sample is the one with the first trajectory's last turn
    assert np.flatnonzero(found.final_values).tolist() == [10, 13]
    np.testing.assert_allclose(found.final_values[[10, 13]], behind[[1, 2]], atol=1e-5)


def test_the_loss_is_that_of_returns_weighted_as_the_policys(model_path: str) -> None:
    role = critic(model_path)
    stats = role.update(shard_of(valued(role, make_batch())))
    # (V - (V + 1))² / 2 at every token
    assert stats["loss"].mean == pytest.approx(0.5, rel=1e-5)
    assert stats["error"].mean == pytest.approx(1.0, rel=1e-5)
    assert stats["clip_frac"].mean == 0.0


def test_a_critic_learns_its_returns(model_path: str) -> None:
    role = critic(model_path, {"value_clip": None}, optim=OptimSpec(lr=3e-3))
    batch = valued(role, make_batch())
    losses = [role.update(shard_of(batch))["loss"].mean for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]


def test_micro_batches_change_no_gradient(model_path: str) -> None:
    found = []
    for micro_batch_tokens in (40, 400):
        role = critic(model_path)
        role.update(shard_of(valued(role, make_batch(), 64), micro_batch_tokens))
        (optimizer,) = role.backend.optimizers
        found.append(
            [
                optimizer.state[p]["exp_avg"].full_tensor()
                for p in role.backend.model.parameters()
            ]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_a_value_that_moved_too_far_has_no_gradient(model_path: str) -> None:
    role = critic(model_path, {"value_clip": 0.1})
    batch = valued(role, make_batch())
    assert batch.values is not None
    # the returns are one above the old values, which the current ones passed by .5 already
    mask = batch.loss_mask != 0
    moved = replace(
        batch,
        values=np.where(mask, batch.values - 0.5, 0).astype(np.float32),
        returns=np.where(mask, batch.values + 0.01, 0).astype(np.float32),
    )
    stats = role.update(shard_of(moved))
    assert stats["clip_frac"].mean == 1.0
    assert stats["optim/grad_norm"].mean == 0.0


def test_a_checkpoint_goes_on_exactly(model_path: str, tmp_path: Path) -> None:
    role = critic(model_path)
    batch = valued(role, make_batch())
    role.update(shard_of(batch))
    role.save(tmp_path / "critic")
    expected = [role.update(shard_of(batch))["loss"].mean for _ in range(2)]
    again = critic(model_path, head_seed=77)
    again.load(tmp_path / "critic")
    assert [again.update(shard_of(batch))["loss"].mean for _ in range(2)] == expected


def test_an_export_is_a_reward_models_folder_that_the_next_stage_starts_from(
    model_path: str, tmp_path: Path
) -> None:
    role = critic(model_path)
    role.export(tmp_path / "export")
    batch = make_batch()
    again = critic(str(tmp_path / "export"), head_seed=99)
    expected, found = valued(role, batch).values, valued(again, batch).values
    assert expected is not None
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_batch_without_trained_tokens_takes_no_step(model_path: str) -> None:
    role = critic(model_path)
    batch = valued(role, make_batch())
    stats = role.update(shard_of(replace(batch, loss_mask=np.zeros_like(batch.loss_mask))))
    assert set(stats) == {"optim/skipped"}


def test_an_update_needs_values_and_returns(model_path: str) -> None:
    with pytest.raises(ValueError, match=r"batch\.values is missing"):
        critic(model_path).update(shard_of(make_batch()))


def test_an_algorithm_without_a_loss_of_values_has_no_critic(model_path: str) -> None:
    join(DistSpec())
    with pytest.raises(ConfigError, match="algorithm 'grpo' has no value_loss"):
        Critic(CriticSpec(model_path, make_algorithm("grpo")), DistSpec())


def test_a_loss_of_values_that_is_summed_already_is_refused(model_path: str) -> None:
    role = critic(model_path)
    batch = valued(role, make_batch())
    role._value_loss = lambda own: TokenLoss(own.values.sum())
    with pytest.raises(
        TrainingError, match=r"its value_loss must return one number for each"
    ):
        role.update(shard_of(batch))
