"""Roles in several groups: their passes run at once, and their numbers are those of one group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms import AlgorithmSpec, make_algorithm
from agentrl.config.sections import PoolConfig
from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.checkpoints import Checkpoints
from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.role_group import (
    LocalRoleGroup,
    Pending,
    RoleGroup,
    at_once,
)
from agentrl.errors import TrainingError
from agentrl.rollouts.batching import make_batch
from agentrl.training import (
    Critic,
    CriticSpec,
    DistSpec,
    Layout,
    OptimSpec,
    Reference,
    ReferenceSpec,
)
from agentrl.types import BatchShard, Collect, Dispatch, register
from agentrl.types.arrays import Floats
from tests.controller.replay import learn
from tests.controller.tiny import made_groups
from tests.kit.waiting import until

PPO = {"kl_coef": 0.01}


def algorithm() -> AlgorithmSpec:
    return make_algorithm("ppo", PPO)


# --- calls of several groups


def test_a_failure_is_told_while_another_group_works_on() -> None:
    group = RoleGroup(MeshShape())
    looks = iter([False, True])

    def fails(timeout_s: float) -> None:
        if next(looks):
            raise TrainingError("rank 1 died", rank=1)

    with pytest.raises(TrainingError, match="rank 1 died"):
        at_once([Pending(group, lambda _: None, list), Pending(group, fails, list)])


def test_a_mini_batch_has_the_same_samples_for_every_number_of_ranks() -> None:
    groups = made_groups(0, 8)
    spec = algorithm()
    number = sum(len(group.trajectories) for group in groups)
    planned = PlannedBatch.plan(
        make_batch(groups, credit=np.zeros(number, np.float32), oldest_version=0),
        spec,
        Layout(1, 120, 300.0),
        mini_batch_groups=2,
        forward_tokens=120,
        seed=3,
        state={},
        policy_version=0,
        others=[2, 4, 1],
    )
    assert list(planned.partitions) == [1, 2, 4]
    mini_batches = list(planned.mini_batches(1))
    assert len(mini_batches) == 4
    for cut in (*mini_batches, planned.forward()):
        samples = [
            sorted(row for part in cut(size) for row in part.samples.tolist())
            for size in (1, 2, 4)
        ]
        assert samples[0] == samples[1] == samples[2]
        assert [len(cut(size)) for size in (1, 2, 4)] == [1, 2, 4]
        assert cut(2) is cut(2)


# --- whole runs


def rest(row: Mapping[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    return {
        name: value for name, value in row.items() if not name.startswith(("time", "perf/"))
    }


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in rest(row).items() if not isinstance(value, str)}


def others(model: Path) -> dict[str, Any]:
    critic = CriticSpec(str(model), algorithm(), OptimSpec(lr=1e-3), head_seed=5)
    return {"critic": critic, "reference": ReferenceSpec(str(model))}


def train(
    group: RoleGroup, model: Path, run_dir: Path, num_steps: int = 2, **settings: Any
) -> list[dict[str, Any]]:
    settings = {"beside": others(model)} | settings
    return learn(
        group,
        model,
        run_dir,
        num_steps=num_steps,
        algorithm_name="ppo",
        settings=PPO,
        others=["critic"],
        **settings,
    )


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with closing(LocalRoleGroup(threads=1)) as group:
        return train(group, model, tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.slow
def test_roles_in_a_second_group_have_the_numbers_of_one(
    whole: list[dict[str, Any]], model: Path, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        main, aside = (
            opened.enter_context(closing(LocalRoleGroup(threads=1, name=name)))
            for name in ("main", "aside")
        )
        rows = train(
            main, model, tmp_path / "run", elsewhere={"critic": aside, "reference": aside}
        )
    assert [rest(row) for row in rows] == [rest(row) for row in whole]
    for row, alone in zip(rows, whole, strict=True):
        assert 0 < row["time/idle_frac/main"] < 1
        assert 0 < row["time/idle_frac/aside"] < 1
        assert not any(name.startswith("time/idle_frac/") for name in alone)


class Meeting:
    """A role that enters a call once another one is in it."""

    folder: Path
    own: str
    other: str
    calls = 0

    def meet(self) -> None:
        self.calls += 1
        (self.folder / f"{self.own}-{self.calls}").touch()
        until((self.folder / f"{self.other}-{self.calls}").exists)


@dataclass(frozen=True, slots=True)
class MeetingCriticSpec(CriticSpec):
    folder: str = ""

    def build(self, place: DistSpec) -> Critic:
        role = MeetingCritic(self, place)
        role.folder, role.own, role.other = Path(self.folder), "critic", "reference"
        return role


class MeetingCritic(Critic, Meeting):
    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def values(self, shard: BatchShard) -> dict[str, Floats]:
        self.meet()
        return super().values(shard)


@dataclass(frozen=True, slots=True)
class MeetingReferenceSpec(ReferenceSpec):
    folder: str = ""

    def build(self, place: DistSpec) -> Reference:
        role = MeetingReference(self, place)
        role.folder, role.own, role.other = Path(self.folder), "reference", "critic"
        return role


class MeetingReference(Reference, Meeting):
    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, Floats]:
        self.meet()
        return super().logprobs(shard)


@pytest.fixture(scope="module")
def over_ray(ray_started: None) -> Iterator[Mapping[str, RoleGroup]]:
    """Groups of one rank, of another one, and of two."""
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup

    with ExitStack() as opened:
        yield {
            name: opened.enter_context(
                closing(RayRoleGroup(PoolConfig(world_size=n), name=name))
            )
            for name, n in {"main": 1, "critics": 1, "pair": 2}.items()
        }


@pytest.mark.slow
class TestOverRay:
    def test_passes_and_updates_of_different_groups_run_at_once(
        self,
        whole: list[dict[str, Any]],
        over_ray: Mapping[str, RoleGroup],
        model: Path,
        tmp_path: Path,
    ) -> None:
        folder = str(tmp_path)
        meeting = {
            "critic": MeetingCriticSpec(
                str(model), algorithm(), OptimSpec(lr=1e-3), head_seed=5, folder=folder
            ),
            "reference": MeetingReferenceSpec(str(model), folder=folder),
        }
        rows = train(
            over_ray["main"],
            model,
            tmp_path / "run",
            beside=meeting,
            elsewhere={"critic": over_ray["critics"]},
        )
        met = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
        assert met == ["critic-1", "critic-2", "reference-1", "reference-2"]
        assert [rest(row) for row in rows] == [rest(row) for row in whole]

    def test_groups_of_different_sizes_keep_restore_and_export(
        self,
        whole: list[dict[str, Any]],
        over_ray: Mapping[str, RoleGroup],
        model: Path,
        tmp_path: Path,
    ) -> None:
        places = {"critic": over_ray["pair"], "reference": over_ray["critics"]}
        main = over_ray["main"]
        batches = [made_groups(6 * n, 6) for n in range(2)]
        train(main, model, tmp_path / "first", 1, batches=batches, elsewhere=places)
        restored = Checkpoints(
            tmp_path / "first" / "checkpoints" / "rl", keep_last=0
        ).latest()
        assert restored is not None
        rows = train(
            main,
            model,
            tmp_path / "second",
            batches=batches,
            elsewhere=places,
            restored=restored,
        )
        (row,) = rows
        # the sums of two ranks' shards are in another order
        assert numbers(row) == pytest.approx(numbers(whole[1]), rel=1e-4, abs=1e-5)
        assert (tmp_path / "second" / "models" / "rl" / "critic" / "config.json").is_file()
