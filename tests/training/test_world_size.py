"""Two ranks over gloo against one: losses, gradients, weights and checkpoints agree, fillers
included.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.training import DistSpec, OptimSpec
from agentrl.training.data.partition import partition
from agentrl.types import SegmentKind, Stats
from tests.training.harness import layout, make_actor, make_batch, update
from tests.training.rank import MUON, run
from tests.training.ranks import run_ranks

REPOSITORY = Path(__file__).parents[2]
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def one(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return [run(model_path, tmp_path_factory.mktemp("one"), DistSpec())]


@pytest.fixture(scope="module")
def two_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(model_path: str, two_folder: Path) -> Results:
    run_ranks("tests.training.rank", 2, model_path, str(two_folder))
    return [
        torch.load(two_folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)
    ]


def merged(results: Results, name: str) -> list[Stats]:
    """Each step's statistics over all ranks."""
    return [
        reduce(lambda a, b: a + b, parts, Stats())
        for parts in zip(*(r["stats"][name] for r in results), strict=True)
    ]


@pytest.mark.invariant
@pytest.mark.parametrize("batch", ["plain", "filler", "siblings", "idle"])
def test_loss_and_gradient_do_not_depend_on_the_world_size(
    one: Results, two: Results, batch: str
) -> None:
    (alone,), (together,) = merged(one, batch), merged(two, batch)
    assert together["policy/loss"].mean == pytest.approx(
        alone["policy/loss"].mean, abs=1e-6
    )
    assert together["policy/nll"].count == alone["policy/nll"].count
    for name, gradient in one[0]["gradients"][batch].items():
        assert (gradient - two[0]["gradients"][batch][name]).abs().max() < 1e-6, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "filler", "idle"])
def test_numbers_of_each_token_do_not_depend_on_the_world_size(
    one: Results, two: Results, name: str
) -> None:
    alone = one[0]["columns"][name]
    assert alone.keys() == {"token_loss", "logprobs", "entropy"}
    for column, values in alone.items():
        # a rank's columns are 0 at the other's samples
        parts = [rank["columns"][name].get(column, np.zeros_like(values)) for rank in two]
        assert not np.logical_and(*(part != 0 for part in parts)).any()
        np.testing.assert_allclose(sum(parts), values, atol=1e-5)
    # of the mean over tokens each weighs alike
    losses = [stats["policy/loss"].mean for stats in merged(two, name)]
    trained = alone["token_loss"] != 0
    mean = alone["token_loss"][trained].astype(np.float64).mean()
    assert losses == pytest.approx([mean], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_four_steps_give_the_same_losses_and_weights(
    one: Results, two: Results, optimizer: str
) -> None:
    alone, together = merged(one, optimizer), merged(two, optimizer)
    assert [s["policy/loss"].mean for s in together] == pytest.approx(
        [s["policy/loss"].mean for s in alone], abs=1e-6
    )
    assert [s["optim/grad_norm"].mean for s in together] == pytest.approx(
        [s["optim/grad_norm"].mean for s in alone], rel=1e-4
    )
    assert alone[-1]["policy/loss"].mean < alone[0]["policy/loss"].mean
    for name, weight in one[0][optimizer].items():
        assert (weight - two[0][optimizer][name]).abs().max() < 1e-5, name


def test_the_filler_batch_has_a_filler() -> None:
    batch = make_batch([30, 16, 15], rollouts=3)
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(2, 30)
    )
    assert () in plan.coordinates[0].micro_batches


def test_numbers_of_the_whole_step_count_once(two: Results) -> None:
    (stats,) = merged(two, "plain")
    assert (
        stats["policy/loss"].count,
        stats["optim/grad_norm"].count,
        stats["optim/lr"].count,
    ) == (1, 1, 1)


def test_every_rank_sees_the_same_whole_weights_and_checksums(two: Results) -> None:
    first, second = two
    assert first["checksum"] == second["checksum"]
    assert all(
        torch.equal(first["muon"][name], second["muon"][name]) for name in first["muon"]
    )


def test_no_rank_takes_a_step_whose_gradient_is_not_finite(
    one: Results, two: Results
) -> None:
    for results in (one, two):
        (stats,) = merged(results, "not finite")
        assert stats["optim/not_finite"].sum == 1
        assert [rank["steps"] for rank in results] == [4] * len(results)


def test_what_is_published_after_a_skipped_update_has_the_checksums_of_the_shards(
    one: Results, two: Results
) -> None:
    for ranks in (one, two):
        assert ranks[0]["stats"]["skipped"][0]["optim/skipped"].sum == 1.0
        for rank in ranks:
            assert (
                rank["published after skipped"] == rank["after skipped"] == rank["checksum"]
            )


def test_checksums_of_shards_are_those_of_the_whole(
    two: Results, two_folder: Path, model_path: str
) -> None:
    actor = make_actor(model_path, "sft", optim=MUON)
    actor.load(two_folder / "muon")
    assert actor.checksum("bfloat16") == two[0]["checksum"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_of_two_ranks_goes_on_in_one(
    two: Results, two_folder: Path, model_path: str, optimizer: str
) -> None:
    optim = MUON if optimizer == "muon" else OptimSpec(lr=1e-3)
    batch = make_batch(kind=SegmentKind.TARGET)
    uninterrupted = make_actor(model_path, "sft", optim=optim)
    resumed = make_actor(model_path, "sft", optim=optim)
    for _ in range(4):
        update(uninterrupted, batch, 30)
    resumed.load(two_folder / optimizer)
    assert resumed.steps == 4
    loss = update(resumed, batch, 30)["policy/loss"].mean
    assert loss == pytest.approx(
        update(uninterrupted, batch, 30)["policy/loss"].mean, abs=1e-5
    )


def test_two_ranks_export_one_whole_model(two: Results, two_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(two_folder / "export", dtype=torch.float32)
    assert all(torch.equal(p, two[0]["muon"][name]) for name, p in model.named_parameters())


def test_logprobs_of_a_shard_are_those_of_the_whole(one: Results, two: Results) -> None:
    batch = make_batch(kind=SegmentKind.TARGET)

    def column(results: Results) -> np.ndarray:
        whole = np.zeros(batch.num_tokens, np.float32)
        for answer in (result["logprobs"] for result in results):
            rows = [
                np.arange(batch.cu_seqlens[s], batch.cu_seqlens[s + 1])
                for s in answer["samples"]
            ]
            whole[np.concatenate(rows)] = answer["column"]
        return whole

    np.testing.assert_allclose(column(two), column(one), atol=1e-5)
