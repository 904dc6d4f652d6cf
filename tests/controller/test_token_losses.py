"""The numbers of each token are those that made the step's: their weighted losses sum to the logged
loss, and their means are the step's statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agentrl.algorithms import AlgorithmSpec, PolicyInputs, Rewards, TokenLoss
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.errors import TrainingError
from agentrl.store import Annotation, AnnotationColumn, RunDirectory, TrajectoryReader
from agentrl.training import ReferenceSpec
from tests.controller.replay import learn
from tests.controller.tiny import made_groups

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


Steps = tuple[list[dict[str, Any]], TrajectoryReader]


def stored_steps(model: Path, folder: Path, **settings: Any) -> Steps:
    """Rows of metrics of a stage over real tokens, a tiny real model, and what it stored."""
    group = LocalRoleGroup(threads=1)
    try:
        given = {"num_steps": 2, "detail": "full", "mini_batch_groups": 6} | settings
        rows = learn(group, model, folder / "run", **given)
    finally:
        group.close()
    return rows, TrajectoryReader(RunDirectory.open(folder / "run"))


@pytest.fixture(scope="module")
def usual(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return stored_steps(model, tmp_path_factory.mktemp("usual"), deterministic=True)


@pytest.fixture(scope="module")
def not_recomputed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    settings = {"old_logprobs": "rollout"}
    return stored_steps(model, tmp_path_factory.mktemp("not_recomputed"), settings=settings)


def column(annotations: list[Annotation], name: str) -> F32:
    return np.concatenate([one.arrays[name] for one in annotations])


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batch_tokens": 2000, "mini_batch_groups": 2},  # one packed row
        # about one sample each; of six groups the second mini-batch is smaller
        {"micro_batch_tokens": 81, "mini_batch_groups": 4},
        {"num_passes": 2, "mini_batch_groups": 3},
        {"settings": {"reduction": "trajectory_mean", "kl_coef": 0.5}},
        {
            "settings": {
                "reduction": "constant",
                "constant_tokens": 50,
                "rollout_correction": {"level": "token"},
                "kl_coef": 0.5,
            }
        },
        {"settings": {"clip_dual": 1.5}, "num_passes": 3},
    ],
    ids=str,
)
def test_the_weighted_losses_of_the_tokens_sum_to_the_logged_loss(
    model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if settings.get("settings", {}).get("kl_coef"):
        settings = settings | {"beside": {"reference": ReferenceSpec(str(model))}}
    passes = settings.get("num_passes", 1)
    assert_sums(
        stored_steps(model, tmp_path, **settings),
        "policy/loss" if passes == 1 else "policy/loss_last_pass",
    )


@pytest.mark.slow
def test_so_they_do_by_default_and_with_the_samplers_logprobs(
    usual: Steps, not_recomputed: Steps
) -> None:
    for steps in (usual, not_recomputed):
        assert_sums(steps, "policy/loss")


def assert_sums(steps: Steps, name: str) -> None:
    rows, reader = steps
    for row in rows:
        annotations = list(reader.annotations(step=int(row["step"])))
        assert len(annotations) == 24
        weight = column(annotations, "loss_weight").astype(np.float64)
        loss = column(annotations, "token_loss")
        assert (weight * loss).sum() == pytest.approx(row[name], abs=1e-6)
        assert abs(loss).max() > 1e-3


def test_statistics_of_the_step_are_those_of_its_tokens(
    model: Path, tmp_path: Path
) -> None:
    settings = {
        "settings": {"rollout_correction": {"level": "token", "cap": 1.5}, "kl_coef": 0.1}
    }
    beside = {"beside": {"reference": ReferenceSpec(str(model))}}
    rows, reader = stored_steps(model, tmp_path, **settings, **beside)
    for row in rows:
        annotations = list(reader.annotations(step=int(row["step"])))
        stored = [reader.get(one.trajectory_id) for one in annotations]
        sampled = np.concatenate(
            [
                segment.logprobs
                for one in stored
                for segment in one.trajectory.policy_segments()
                if segment.logprobs is not None
            ]
        )
        old, ratio = (column(annotations, name) for name in ("old_logprobs", "ratio"))
        assert row["mismatch/logp_abs/mean"] == pytest.approx(
            abs(old - sampled).mean(), abs=1e-5
        )
        assert row["mismatch/logp_abs/max"] == pytest.approx(
            abs(old - sampled).max(), abs=1e-5
        )
        assert row["policy/ratio"] == pytest.approx(ratio.mean(), abs=1e-6)
        entropy = column(annotations, "entropy")
        assert row["policy/entropy"] == pytest.approx(entropy.mean(), abs=1e-5)
        correction = column(annotations, "correction")
        np.testing.assert_allclose(
            correction, np.minimum(np.exp(old - sampled), 1.5), rtol=1e-5
        )
        difference = (column(annotations, "ref_logprobs") - old).astype(np.float64)
        kl = np.expm1(difference) - difference
        assert row["policy/kl_ref"] == pytest.approx(kl.mean(), abs=1e-5)
        advantages = column(annotations, "advantages")
        loss = -ratio * advantages * correction + 0.1 * kl
        np.testing.assert_allclose(column(annotations, "token_loss"), loss, atol=1e-5)
        assert (column(annotations, "loss_reason") == 0).all()


def test_clipped_tokens_are_those_that_were_counted(model: Path, tmp_path: Path) -> None:
    bounds = {"clip_low": 1e-3, "clip_high": 1e-3, "clip_dual": 1.002}
    rows, reader = stored_steps(model, tmp_path, num_steps=1, num_passes=2, settings=bounds)
    annotations = list(reader.annotations(step=1))
    assert {one.pass_index for one in annotations} == {1}
    clipped, ratio, advantages = (
        column(annotations, name) for name in ("clipped", "ratio", "advantages")
    )
    # the first pass clips nothing: its weights are those of old_logprobs
    for number, name in ((1, "low"), (2, "high"), (3, "dual")):
        share = rows[0][f"policy/clip_frac_{name}"]
        assert (clipped == number).mean() == pytest.approx(2 * share, abs=1e-9)
    assert set(clipped.tolist()) == {0, 1, 2, 3}
    assert (ratio[clipped == 1] < 1 - 1e-3).all()
    assert (advantages[clipped == 2] > 0).all()


def test_logprobs_that_are_not_recomputed_are_the_updates_own(
    usual: Steps, not_recomputed: Steps
) -> None:
    recomputed, own = (
        list(reader.annotations(step=1)) for _, reader in (usual, not_recomputed)
    )
    assert {one.values["old_logprobs_from"] for one in recomputed} == {"recomputed"}
    assert {one.values["old_logprobs_from"] for one in own} == {"update"}
    by_id = {one.trajectory_id: one.arrays["old_logprobs"] for one in recomputed}
    for one in own:
        np.testing.assert_allclose(
            one.arrays["old_logprobs"], by_id[one.trajectory_id], atol=1e-5
        )


def test_tokens_of_a_trajectory_that_is_left_out_say_so(
    model: Path, tmp_path: Path
) -> None:
    def without_the_first(algorithm: AlgorithmSpec) -> AlgorithmSpec:
        def select(rewards: Rewards) -> F64:
            return (np.arange(rewards.reward.size) % 4 != 0).astype(np.float64)

        return replace(algorithm, select=select)

    _, reader = stored_steps(model, tmp_path, num_steps=1, change=without_the_first)
    reasons = {
        one.trajectory_id: set(one.arrays["loss_reason"].tolist())
        for one in reader.annotations()
    }
    left_out = {name for name, found in reasons.items() if found == {3}}
    assert left_out == {name for name in reasons if name.endswith("-0-0")}
    assert all(found == {0} for name, found in reasons.items() if name not in left_out)


@pytest.mark.slow
def test_an_adapted_kl_in_the_reward_moves(model: Path, tmp_path: Path) -> None:
    settings = {"kl_coef": 0.1, "kl_target": 1e-9, "kl_horizon": 1}
    beside = {"beside": {"reference": ReferenceSpec(str(model))}}
    rows, _ = stored_steps(
        model,
        tmp_path,
        num_steps=4,
        algorithm_name="reinforce_plus_plus",
        settings=settings,
        **beside,
    )
    # the first step's policy is the reference; the estimates of the others lie far from the target
    kls = [row["policy/kl_ref"] for row in rows]
    assert [abs(kl) > 1e-7 for kl in kls] == [False, True, True, True]
    factors = [1.0, 0.8, *(1.2 if kl > 0 else 0.8 for kl in kls[1:-1])]
    coefs = [row["policy/kl_coef"] for row in rows]
    assert coefs == pytest.approx(list(0.1 * np.cumprod(factors)), rel=1e-6)


def test_an_algorithm_adds_columns_of_its_own(model: Path, tmp_path: Path) -> None:
    def with_surprise(algorithm: AlgorithmSpec) -> AlgorithmSpec:
        assert algorithm.policy_loss is not None

        def policy_loss(inputs: PolicyInputs) -> TokenLoss:
            outcome = grpo_loss(inputs)
            own = {"surprise": -inputs.logprobs, "thrice": 3 * outcome.loss.detach()}
            return replace(outcome, columns={**outcome.columns, **own})

        grpo_loss = algorithm.policy_loss
        surprise = AnnotationColumn(
            "surprise", "token", "nats", help="How unlikely it was."
        )
        return replace(algorithm, policy_loss=policy_loss, columns=(surprise,))

    _, reader = stored_steps(model, tmp_path, num_steps=1, change=with_surprise)
    annotations = list(reader.annotations())
    surprise, old = (column(annotations, name) for name in ("surprise", "old_logprobs"))
    np.testing.assert_allclose(surprise, -old, atol=1e-5)
    np.testing.assert_allclose(
        column(annotations, "thrice"), 3 * column(annotations, "token_loss"), atol=1e-6
    )
    assert reader.columns()["surprise"].unit == "nats"
    assert reader.columns()["thrice"] == AnnotationColumn("thrice", "token")


def test_a_column_of_another_length_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    def with_too_few(algorithm: AlgorithmSpec) -> AlgorithmSpec:
        assert algorithm.policy_loss is not None
        grpo_loss = algorithm.policy_loss

        def policy_loss(inputs: PolicyInputs) -> TokenLoss:
            return replace(grpo_loss(inputs), columns={"few": inputs.logprobs[1:]})

        return replace(algorithm, policy_loss=policy_loss)

    with pytest.raises(
        TrainingError, match=r"column 'few' .* an entry for each of the \d+ t"
    ):
        stored_steps(model, tmp_path, num_steps=1, change=with_too_few)


@pytest.mark.slow
def test_no_detail_changes_a_number(model: Path, tmp_path: Path, usual: Steps) -> None:
    found: dict[Any, Steps] = {
        detail: stored_steps(model, tmp_path / detail, detail=detail, deterministic=True)
        for detail in ("basic", "tokens")
    }
    found["full"] = usual
    plain, _ = found["basic"]
    tokens = {
        "old_logprobs",
        "advantages",
        "loss_weight",
        "loss_reason",
        "ratio",
        "clipped",
        "token_loss",
        # of the second step: the made-up logprobs are far from the trainer's
        "correction",
    }
    stored = {"basic": set(), "tokens": tokens, "full": tokens | {"entropy"}}
    for detail, (rows, reader) in found.items():
        for row, expected in zip(rows, plain, strict=True):
            same = {
                name: value for name, value in row.items() if not name.startswith(TIMES)
            }
            assert same == {name: expected[name] for name in same}
        names = {name for one in reader.annotations() for name in one.arrays}
        assert names == stored[detail]


TIMES = ("time", "perf/")


def test_the_groups_branch() -> None:
    groups = [one for group in made_groups(0, 12) for one in group.trajectories]
    assert any(len(one.samples()) > 1 for one in groups)
