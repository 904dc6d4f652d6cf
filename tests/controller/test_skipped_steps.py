"""A gradient that is not finite: its step is skipped, counted and kept, and the third in a row ends
the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms import AlgorithmSpec, PolicyInputs, TokenLoss, make_algorithm
from agentrl.controller.checkpoints import Checkpoints
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.recording.skipped_steps import read_shard
from agentrl.errors import TrainingError
from agentrl.store import Detail, RunDirectory, TrajectoryReader, read_jsonl
from agentrl.training import Actor, ActorSpec, DistSpec, OptimSpec
from tests.controller.replay import learn


def breaking(updates: Collection[int]) -> Callable[[AlgorithmSpec], AlgorithmSpec]:
    """Makes the loss infinite in the given optimizer steps; each has one micro-batch."""
    count = 0

    def change(algorithm: AlgorithmSpec) -> AlgorithmSpec:
        assert algorithm.policy_loss is not None
        sound = algorithm.policy_loss

        def policy_loss(inputs: PolicyInputs) -> TokenLoss:
            nonlocal count
            count += 1
            outcome = sound(inputs)
            return replace(
                outcome, loss=outcome.loss * (np.inf if count in updates else 1.0)
            )

        return replace(algorithm, policy_loss=policy_loss)

    return change


def train(
    model: Path, run_dir: Path, num_steps: int, updates: Collection[int], **settings: Any
) -> list[dict[str, Any]]:
    group = LocalRoleGroup(threads=1)
    try:
        return learn(
            group,
            model,
            run_dir,
            num_steps=num_steps,
            change=breaking(updates),
            **{"micro_batch_tokens": 10_000, "mini_batch_groups": 6} | settings,
        )
    finally:
        group.close()


def kept(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "skipped_steps" / "rl").glob("*"))


def test_a_skipped_step_is_counted_and_kept_and_the_run_goes_on(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = train(model, tmp_path / "run", 3, {2})
    assert [row.get("optim/not_finite") for row in rows] == [None, 1.0, None]
    assert ["policy/loss" in row for row in rows] == [True, False, True]
    assert not any(row.get("nonfinite") for row in rows)
    assert kept(tmp_path / "run") == ["step=000002-actor-1"]
    (told,) = [
        vars(one) for one in caplog.records if getattr(one, "event", "") == "step_skipped"
    ]
    assert (told["step"], told["role"], told["in_a_row"]) == (2, "actor", 1)
    assert told["path"].endswith("step=000002-actor-1")
    (event,) = read_jsonl(tmp_path / "run" / "events.jsonl")
    assert (event["event"], event["boundary"], event["norm"]) == (
        "step_skipped",
        "training",
        "nan",
    )


def test_a_kept_step_gives_the_gradient_that_the_run_met(
    model: Path, tmp_path: Path
) -> None:
    # the second step is kept for the first one's weights; a sound loss shows them
    train(model, tmp_path / "broken", 2, {2})
    rows = train(model, tmp_path / "sound", 2, ())
    folder = tmp_path / "broken" / "skipped_steps" / "rl" / "step=000002-actor-1"
    shard = read_shard(folder / "batch.npz")
    group = LocalRoleGroup(threads=1)
    try:
        spec = ActorSpec(
            str(folder / "model"), make_algorithm("grpo", {}), OptimSpec(lr=3e-3)
        )
        stats = Actor(spec, DistSpec()).update(shard)
    finally:
        group.close()
    for name in ("policy/loss", "optim/grad_norm"):
        assert stats[name].mean == pytest.approx(rows[1][name], rel=1e-5), name


def test_the_script_is_short(model: Path, tmp_path: Path) -> None:
    train(model, tmp_path / "run", 1, {1})
    (script,) = (tmp_path / "run").rglob("repeat.py")
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 25


@pytest.mark.slow
def test_the_third_in_a_row_ends_the_run_with_a_checkpoint(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        TrainingError,
        match=r"gradients of 3 optimizer steps in a row of actor .* step 4 has norm .*repeat\.py",
    ):
        train(model, tmp_path / "run", 9, {2, 3, 4})
    folder = tmp_path / "run"
    assert kept(folder) == [f"step={step:06d}-actor-1" for step in (2, 3, 4)]
    # their weights are the same, and lie with the first of them
    assert len(list((folder / "skipped_steps").rglob("model"))) == 1
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    assert [row.get("optim/not_finite") for row in rows] == [None, 1.0, 1.0, 1.0]
    found = Checkpoints(folder / "checkpoints" / "rl", keep_last=1).latest()
    assert found is not None
    assert found[1].state.step == 4


def test_no_mini_batch_is_trained_after_the_third_in_a_row(
    model: Path, tmp_path: Path
) -> None:
    # of six mini-batches two are trained, three are skipped, and the last one is left alone
    with pytest.raises(TrainingError, match="3 optimizer steps in a row"):
        train(model, tmp_path / "run", 2, {3, 4, 5}, mini_batch_groups=1)
    assert len(kept(tmp_path / "run")) == 3
    (row,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert row["optim/not_finite"] == 3.0


@pytest.mark.slow
def test_two_in_a_row_twice_do_not_end_the_run(model: Path, tmp_path: Path) -> None:
    rows = train(model, tmp_path / "run", 6, {1, 2, 4, 5})
    assert len(rows) == 6
    # the models of the two newest are kept, and so are all batches
    folders = tmp_path / "run" / "skipped_steps" / "rl"
    assert sorted(path.parent.name for path in folders.glob("*/model")) == [
        "step=000001-actor-1",
        "step=000004-actor-1",
    ]


def test_models_of_older_skipped_steps_are_removed(model: Path, tmp_path: Path) -> None:
    train(model, tmp_path / "run", 6, {1, 3, 5})
    folders = tmp_path / "run" / "skipped_steps" / "rl"
    assert len(list(folders.glob("*/batch.npz"))) == 3
    assert sorted(path.parent.name for path in folders.glob("*/model")) == [
        "step=000003-actor-1",
        "step=000005-actor-1",
    ]


@pytest.mark.parametrize("num_passes", [1, 2])
def test_tokens_of_a_skipped_mini_batch_have_no_weight_in_the_steps_loss(
    model: Path, tmp_path: Path, num_passes: int
) -> None:
    detail: Detail = "tokens"
    # two mini-batches a pass; the last but one of the step is skipped
    skipped = {2 * num_passes - 1}
    (row,) = train(
        model,
        tmp_path / "run",
        1,
        skipped,
        mini_batch_groups=3,
        detail=detail,
        num_passes=num_passes,
    )
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "run"))
    total, with_weight = 0.0, 0
    for entry in reader.summaries():
        arrays = reader.get(entry.id).annotation.arrays
        total += float(np.nansum(arrays["loss_weight"] * arrays["token_loss"]))
        with_weight += bool(arrays["loss_weight"].any())
    logged = row["policy/loss" if num_passes == 1 else "policy/loss_last_pass"]
    assert total == pytest.approx(logged, abs=1e-5)
    assert with_weight == 12
