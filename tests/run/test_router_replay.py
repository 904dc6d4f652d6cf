"""``train.router_replay`` in whole runs: experts reach the trainer from an engine in bfloat16, over
Ray, and from a store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types.arrays import recorded
from tests.run import tiny_task
from tests.run.tiny_run import CONFIG, metrics, train
from tests.run.tiny_task import demonstrations

pytestmark = pytest.mark.slow

HERE = Path(__file__)
MIXTURE = (
    f"model.build={HERE}:build_mixture",
    "run.deterministic=false",
    "rollout.dtype=bfloat16",
    "train.router_replay=rollout",
    "stages.warmup.steps=2",
    "stages.rl.steps=2",
    "stages.rl.eval.sets={}",
)


def build_mixture(folder: Path, seed: int, layers: int = 2) -> None:
    """The task's model with experts."""
    sizes = {
        "hidden": 32,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "ff": 48,
        "layers": layers,
    }
    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=40,
        vocab_size=300,
        experts=8,
        **sizes,
    )


def build_deeper(folder: Path, seed: int) -> None:
    """One of more layers."""
    build_mixture(folder, seed, layers=3)


def steps(run: Path) -> list[dict[str, Any]]:
    return [row for row in metrics(run) if row["stage"] == "rl" and "mismatch/k3_kl" in row]


def unrecorded(run: Path) -> list[float]:
    return [row["moe/unrecorded_frac"] for row in steps(run)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("mixture"), *MIXTURE, "store.detail=full")


def test_all_tokens_of_a_run_have_their_experts_and_are_stored_with_them(run: Path) -> None:
    assert unrecorded(run) == [0.0, 0.0]
    reader = TrajectoryReader(RunDirectory.open(run))
    stored = [
        reader.get(one.id).trajectory for one in reader.summaries() if one.stage == "rl"
    ]
    segments = [part for one in stored for turn in one.turns for part in turn.segments]
    assert len(segments) > 20
    records = [part.routed_experts for part in segments]
    assert {one.shape[1:] for one in records if one is not None} == {(2, 2)}
    # none but the last token of a trajectory lacks them
    missing = [
        len(part) if one is None else np.count_nonzero(~recorded(one))
        for part, one in zip(segments, records, strict=True)
    ]
    assert sum(missing) == len(stored)


def test_they_come_from_rollout_workers_over_ray(run: Path, tmp_path: Path) -> None:
    own = (
        "placement.mode=ray",
        "placement.rollout_workers=1",
        f"model.path={run}/models/warmup",
    )
    assert unrecorded(train(tmp_path, *MIXTURE, *own)) == [0.0, 0.0]


def test_a_stored_run_replays_what_it_kept_and_counts_the_rest(
    run: Path, tmp_path: Path
) -> None:
    own = ("model.build=null", f"model.path={run}/models/warmup")
    again = train(tmp_path, *MIXTURE, *own, f"run.replay={run}", name="again")
    assert unrecorded(again) == [0.0, 0.0]
    # this run keeps no experts
    bare = train(tmp_path, *MIXTURE, *own, name="bare")
    missed = train(tmp_path, *MIXTURE, *own, f"run.replay={bare}", name="missed")
    assert all(share > 0.9 for share in unrecorded(missed))


def test_what_has_no_experts_of_its_own_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"router_replay='rollout' needs a mixture of experts"
    ):
        train(
            tmp_path,
            *MIXTURE,
            f"model.build={tiny_task.__file__}:build_model",
            name="dense",
        )
    own = (f"model.build={HERE}:build_deeper", f"run.replay={run}", "stages.rl.steps=1")
    with pytest.raises(DataError, match="has the experts of another model"):
        train(tmp_path, *MIXTURE, *own, text=CONFIG, name="deeper")
