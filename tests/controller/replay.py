"""The loop over trajectories that are stored already: the schedule hands them out again, everything
else is real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.algorithms import AlgorithmSpec, make_algorithm
from agentrl.config import StageConfig
from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints import CheckpointCopies, Checkpoints, Manifest
from agentrl.controller.cluster.role_group import RoleGroup
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.controller.loop import train
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.recording.skipped_steps import SkippedSteps
from agentrl.controller.schedule import Schedule
from agentrl.controller.stage.stage_run import StageRun
from agentrl.controller.state import TrainState
from agentrl.metrics import JsonlSink, PhaseTimer
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.store import Detail, EventLog, JsonlWriter, RunDirectory, TrajectoryWriter
from agentrl.training import ActorSpec, OptimSpec, RewardLearnerSpec
from agentrl.types import TrajectoryGroup
from tests.controller.tiny import made_groups

GROUPS = 6


class Replay(Schedule):
    """``Schedule`` of given batches; their tokens were sampled by version 0, so all but the first
    are stale.
    """

    max_staleness = 99
    on_stale = "drop"

    def __init__(
        self, batches: Sequence[list[TrajectoryGroup]], recorder: Recorder | None = None
    ) -> None:
        self._batches = batches
        self._recorder = recorder

    def start(self, state: TrainState) -> None:
        """Nothing generates."""

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        groups = self._batches[step - 1]
        if self._recorder is not None:
            for group in groups:
                request = GroupRequest(
                    group.group_index, group.task, len(group.trajectories)
                )
                self._recorder.record_outcome(GroupOutcome(request, group))
        return groups

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Nobody asks."""

    def publish(self, state: TrainState, *, changed: Collection[str]) -> TrainState:
        return state.published(changed)

    def evaluate(self, requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        raise NotImplementedError

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        return RolloutState(0, (), 0, 0)

    def take_counts(self) -> dict[str, int]:
        return {}

    def take_failures(self) -> tuple[Incident, ...]:
        return ()

    def close(self) -> None:
        """Nothing was started."""


class Silent:
    """``StepDisplay`` of a test."""

    def step(self, step: int, values: Any, note: str = "") -> None: ...

    def status(self, text: str) -> None: ...

    def alert(self, text: str) -> None: ...


def learn(
    group: RoleGroup,
    model: Path,
    run_dir: Path,
    *,
    num_steps: int,
    micro_batch_tokens: int = 120,
    batches: Sequence[list[TrajectoryGroup]] | None = None,
    settings: dict[str, Any] | None = None,
    mini_batch_groups: int = 3,
    deterministic: bool = False,
    reward_model: bool = False,
    algorithm_name: str = "grpo",
    beside: Mapping[str, RoleSpec] | None = None,
    others: Sequence[str] = (),
    policies: Mapping[str, str] | None = None,
    restored: tuple[Path, Manifest] | None = None,
    detail: Detail | None = None,
    num_passes: int = 1,
    checkpoint_every: int | None = None,
    copy_to: str | None = None,
    elsewhere: Mapping[str, RoleGroup] | None = None,
    change: Callable[[AlgorithmSpec], AlgorithmSpec] = lambda algorithm: algorithm,
) -> list[dict[str, Any]]:
    """Trains on the same groups whatever the group of workers is; the rows of metrics. With a
    ``detail`` the groups are stored, with annotations; ``change`` makes another algorithm of it;
    ``policies`` are trained beside ``main``, by the names of their actors on the ranks; roles of
    ``beside`` may lie ``elsewhere``."""
    name = "reward_model" if reward_model else algorithm_name
    algorithm = make_algorithm(name, settings or {})
    algorithm = change(replace(algorithm, num_epochs=num_passes))
    optim = OptimSpec(lr=3e-3)
    if reward_model:
        group.setup({"reward_model": RewardLearnerSpec(str(model), algorithm, optim)})
        roles = {"main": {"reward_model": RoleHandle(group, "reward_model")}}
    else:
        spec = ActorSpec(
            str(model),
            algorithm,
            optim,
            deterministic=deterministic,
            detail=detail or "basic",
        )
        actors = {"main": "actor", **(policies or {})}
        specs = {**dict.fromkeys(actors.values(), spec), **(beside or {})}
        names = (*specs, *others, "reference")
        places = {name: (elsewhere or {}).get(name, group) for name in names}
        for own in set(places.values()):
            own.setup({name: one for name, one in specs.items() if places[name] is own})
        roles = {
            policy: {"actor": RoleHandle(group, name)} for policy, name in actors.items()
        }
        roles["main"] |= {name: RoleHandle(places[name], name) for name in others}
        roles["main"]["reference"] = RoleHandle(
            places["reference"], "reference", trains=False
        )
    directory = RunDirectory.create(run_dir, config="run: {}\n")
    sink = JsonlSink(JsonlWriter(directory.metrics_path))
    events = EventLog(directory)
    with TrajectoryWriter(directory) as writer:
        timer = PhaseTimer()
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=sink, view=Silent(), timer=timer
        )
        run = StageRun(
            StageConfig(
                name="rl",
                run={"seed": 3},
                train={
                    "steps": num_steps,
                    "batch_prompts": GROUPS,
                    "mini_batch_prompts": mini_batch_groups,
                    "micro_batch_tokens": micro_batch_tokens,
                },
                rollout={"group_size": 4},
                checkpoint={"every": checkpoint_every, "asynchronous": True},
                store={"detail": detail or "basic"},
            ),
            algorithm=algorithm,
            schedule=Replay(
                batches or [made_groups(GROUPS * n, GROUPS) for n in range(num_steps)],
                recorder if detail else None,
            ),
            roles=roles,
            restored=restored,
            checkpoints=Checkpoints(directory.checkpoints_folder / "rl", keep_last=1),
            evaluator=None,
            recorder=recorder,
            skipped=SkippedSteps(
                directory.skipped_steps_folder / "rl", "rl", num_steps, events
            ),
            model_folder=directory.models_folder / "rl",
            copies=copy_to and CheckpointCopies(copy_to, directory, "rl"),
        )
        train(run)
    sink.close()
    events.close()
    return [
        json.loads(line)
        for line in directory.metrics_path.read_text(encoding="utf-8").splitlines()
    ]
