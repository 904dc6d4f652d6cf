"""A tiny real model in a folder, groups of trajectories made for it, and what builds an engine of
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from agentrl.algorithms import make_algorithm
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import RolloutPool, RolloutWorkerSpec
from agentrl.controller.cluster.weight_publisher import ColocatedSync, WeightSync
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.engines import EnginePlace, EnginePlan, PauseMode
from agentrl.engines.torch import TorchEngineSpec
from agentrl.rollouts import RolloutSpec
from agentrl.training import ActorSpec, OptimSpec
from agentrl.types import (
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.weight_sync import WeightsReport
from tests.rollouts.bytewise import MODEL_VOCAB, rollout_spec
from tests.tiny_models import write_qwen3

TASKS = [Task(str(n), ({"role": "user", "content": f"{n}?"},)) for n in range(50)]


def write_model(folder: Path) -> Path:
    return write_qwen3(folder, vocab_size=MODEL_VOCAB)


def actor_spec(model: Path, **settings: Any) -> ActorSpec:
    return ActorSpec(str(model), make_algorithm("grpo", {}), OptimSpec(lr=1e-3), **settings)


def engine_spec(model: Path, **settings: Any) -> EnginePlan:
    sizes = {"context_tokens": 160, "max_running": 8, "num_threads": 1} | settings
    return EnginePlan(TorchEngineSpec(), EnginePlace(str(model), **sizes))


def episodes(**settings: Any) -> RolloutSpec:
    """Episodes of one turn of few tokens, whatever the model says."""
    return rollout_spec(
        **{"max_turn_tokens": 12, "max_response_tokens": 60, "context_tokens": 160}
        | settings
    )


def roles(model: Path) -> dict[str, RoleSpec]:
    return {"actor": actor_spec(model)}


def rollouts(model: Path) -> RolloutWorkerSpec:
    return RolloutWorkerSpec(engine_spec(model), episodes())


class Cluster:
    """A role group, a rollout pool and what brings weights from the one to the other."""

    def __init__(
        self, group: Any, pool: RolloutPool, sync: WeightSync | None = None
    ) -> None:
        self.group = group
        self.pool = pool
        self.sync = sync or ColocatedSync()
        self.actor = RoleHandle(group, "actor")

    def setup(self, model: Path) -> None:
        self.group.setup(roles(model))
        self.pool.setup(rollouts(model))

    def publish(self, version: int, mode: PauseMode = "retract") -> list[WeightsReport]:
        return self.sync.publish("main", self.actor, self.pool, version, mode)

    def close(self) -> None:
        self.pool.close()
        self.group.close()


def local_cluster() -> Cluster:
    group = LocalRoleGroup(threads=1)
    return Cluster(group, group.rollouts)


def made_groups(
    group_index: int, number: int, *, siblings: int = 4
) -> list[TrajectoryGroup]:
    """Groups as a rollout leaves them, of random tokens: several turns, samples of all lengths, a
    branching one.
    """
    rng = np.random.default_rng(group_index)
    return [_group(group_index + n, rng, siblings) for n in range(number)]


def _group(group_index: int, rng: np.random.Generator, siblings: int) -> TrajectoryGroup:
    task = TASKS[group_index % len(TASKS)]
    made = tuple(
        _trajectory(task, group_index, rollout_index, rng)
        for rollout_index in range(siblings)
    )
    return TrajectoryGroup(group_index, task, made)


def _trajectory(
    task: Task, group_index: int, rollout_index: int, rng: np.random.Generator
) -> Trajectory:
    turns = []
    for index in range(int(rng.integers(1, 4))):
        branches = index == 2
        opening = SegmentKind.PROMPT if index == 0 else SegmentKind.OBSERVATION
        ids, sampled = (rng.integers(0, 256, int(rng.integers(2, 20))) for _ in range(2))
        logprobs = rng.uniform(-6, -4, sampled.size).astype(np.float32)
        turns.append(
            Turn(
                index=index,
                parent=None if index == 0 else 0 if branches else index - 1,
                context=(Segment(opening, ids.astype(np.int32)),),
                completion=(
                    Segment(SegmentKind.POLICY, sampled.astype(np.int32), logprobs, 0),
                ),
                text="",
                message={"role": "assistant", "content": ""},
                sampling=SamplingParams(64, temperature=0.9),
            )
        )
    reward = float(rng.normal())
    return Trajectory(
        task,
        group_index,
        rollout_index,
        0,
        "train",
        tuple(turns),
        Status("terminated"),
        reward=reward,
    )
