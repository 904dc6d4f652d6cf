"""A role that agentrl does not know is trained beside the policy: built, updated, kept, resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from agentrl.algorithms import make_algorithm
from agentrl.controller.checkpoints import Checkpoints
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.errors import ConfigError
from agentrl.training import DistSpec, LearningRole, OptimSpec
from agentrl.training.backends.backend import RoleModel, StatSum
from agentrl.training.data.packing import Packed
from agentrl.training.roles.learner import LearnerSpec
from agentrl.types import BatchShard, Collect, Dispatch, Stat, Stats, register
from tests.controller.replay import learn
from tests.controller.tiny import made_groups

LOGGER = "agentrl.controller.checkpoints.checkpointing"


@dataclass(frozen=True)
class CriticSpec(LearnerSpec):
    def build(self, place: DistSpec) -> Critic:
        return Critic(self, place)


class Critic(LearningRole):
    """Learns each trajectory's credit from its tokens, by least squares."""

    name = "critic"
    kind = "scores"

    def asked(self) -> RoleModel:
        return replace(super().asked(), head_seed=5)

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        loss = 0.0

        def of(packed: Packed, values: Tensor, stats: StatSum) -> Tensor:
            nonlocal loss
            credit = torch.from_numpy(
                shard.batch.credit[shard.batch.trajectory[packed.rows]]
            )
            error = ((values - credit) ** 2).sum()
            loss += error.item()
            return error / shard.batch.num_samples

        self.backend.run(self.packed(shard), of)
        return Stats({"loss": Stat.of([loss])}) + self.step()


OTHERS = ["critic"]


def train(
    model: Path, run_dir: Path, num_steps: int, **settings: Any
) -> list[dict[str, Any]]:
    group = LocalRoleGroup(threads=1)
    try:
        critic = CriticSpec(str(model), make_algorithm("sft"), OptimSpec(lr=1e-3))
        settings = {"beside": {"critic": critic}, "others": OTHERS} | settings
        return learn(group, model, run_dir, num_steps=num_steps, **settings)
    finally:
        group.close()


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(model, tmp_path_factory.mktemp("whole") / "run", 4)


def test_two_roles_learn_in_one_stage(
    whole: list[dict[str, Any]], model: Path, tmp_path: Path
) -> None:
    alone = train(model, tmp_path / "run", 4, beside={}, others=())
    for row, expected in zip(whole, alone, strict=True):
        assert row["policy/loss"] == expected["policy/loss"]  # the policy does not notice
        assert row["optim/lr"] == expected["optim/lr"] != row["critic/optim/lr"]
    losses = [row["critic/loss"] for row in whole]
    assert len(set(losses)) == 4
    assert not any(name.startswith("critic/") for name in alone[0])


@pytest.mark.slow
def test_a_checkpoint_has_a_folder_a_role_and_both_go_on_from_it(
    whole: list[dict[str, Any]],
    model: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", LOGGER):
        train(model, tmp_path / "first", 2, batches=batches(4))
    events = [vars(r) for r in caplog.records if r.name == LOGGER]
    assert [(told["event"], told["step"]) for told in events] == [("checkpoint_written", 2)]
    assert events[0]["seconds"] > 0
    restored = Checkpoints(tmp_path / "first" / "checkpoints" / "rl", keep_last=0).latest()
    assert restored is not None
    assert sorted(path.name for path in restored[0].iterdir() if path.is_dir()) == [
        "actor",
        "critic",
    ]
    exported = tmp_path / "first" / "models" / "rl"
    assert (exported / "config.json").is_file()
    scores = AutoModelForSequenceClassification.from_pretrained(exported / "critic")
    assert scores.config.num_labels == 1
    rows = train(model, tmp_path / "second", 4, batches=batches(4), restored=restored)
    names = ("policy/loss", "critic/loss", "optim/grad_norm", "critic/optim/grad_norm")
    assert [[row[name] for name in names] for row in rows] == [
        [row[name] for name in names] for row in whole[2:]
    ]


def batches(number: int) -> list[Any]:
    return [made_groups(6 * n, 6) for n in range(number)]


@pytest.mark.slow
def test_two_policies_learn_in_one_stage_each_of_its_own_groups(
    whole: list[dict[str, Any]], model: Path, tmp_path: Path
) -> None:
    steps = [
        [*own, *(replace(one, policy="guard") for one in made_groups(100 + 6 * n, 6))]
        for n, own in enumerate(batches(4))
    ]
    policies = {"guard": "guard.actor"}
    rows = train(
        model, tmp_path / "run", 4, batches=steps, policies=policies, beside={}, others=()
    )
    for row, alone in zip(rows, whole, strict=True):
        for name in (
            "policy/loss",
            "optim/grad_norm",
            "policy_version",
            "async/staleness/max",
        ):
            assert row[name] == alone[name]  # ``main`` does not notice
        assert row["guard/policy/loss"] != row["policy/loss"]
        assert row["guard/policy_version"] == row["step"]
        assert row["count/trained_trajectories"] == 2 * alone["count/trained_trajectories"]
    found = Checkpoints(tmp_path / "run" / "checkpoints" / "rl", keep_last=0).latest()
    assert found is not None
    assert found[1].state.versions == {"main": 4, "guard": 4}
    assert (found[0] / "guard.actor").is_dir()
    assert (tmp_path / "run" / "models" / "rl" / "guard.actor" / "config.json").is_file()


@pytest.mark.slow
def test_a_policy_that_no_group_trains_keeps_its_version(
    model: Path, tmp_path: Path
) -> None:
    rows = train(
        model, tmp_path / "run", 1, policies={"guard": "guard.actor"}, beside={}, others=()
    )
    assert (rows[0]["policy_version"], rows[0]["guard/policy_version"]) == (1, 0)


def test_learners_of_one_name_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stage 'rl' must train .* of different names, got actor, actor"
    ):
        train(model, tmp_path / "run", 1, policies={"guard": "actor"}, beside={}, others=())


def test_a_learner_that_no_rank_has_built_is_refused_by_name(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="role 'critic' is not built in this stage, which has actor"
    ):
        train(model, tmp_path / "run", 1, beside={})
