"""One stage of a run: its specs built, its parts put together, the loop run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.algorithms import AlgorithmSpec, GroupSummary, Keep
from agentrl.controller.actor import ActorHandle
from agentrl.controller.checkpoints import Checkpoints
from agentrl.controller.draws import DrawOrder
from agentrl.controller.evaluation import Evaluator
from agentrl.controller.group import WorkerGroup
from agentrl.controller.ledger import Ledger
from agentrl.controller.loop import train
from agentrl.controller.recorder import Recorder
from agentrl.controller.schedule import CapacitySchedule, DemonstrationSchedule, Schedule
from agentrl.controller.service import Admission, RolloutService, Snapshot
from agentrl.controller.stage import StageRun, StageSettings
from agentrl.controller.worker import WorkerSpec
from agentrl.errors import AgentRLError, ConfigError
from agentrl.metrics import RL_COLUMNS, SFT_COLUMNS, PhaseTimer, Sink, StepDisplay
from agentrl.rollouts import demonstration_group
from agentrl.run.build import LiveObjects, engine_spec, eval_plan, optim_spec, renderer_spec, rollout_spec
from agentrl.run.config import StageConfig
from agentrl.run.data import endless_rows, load_tasks
from agentrl.run.preparation import last_manifest
from agentrl.store import EventLog, RunDirectory, TrajectoryWriter
from agentrl.training import ActorSpec, ReferenceSpec
from agentrl.types import SegmentKind, Task, TrajectoryGroup

__all__ = [
    "RunParts",
    "StageOutcome",
    "finished_stage",
    "learns_from_demonstrations",
    "rollout_deadline_s",
    "run_stage",
    "worker_spec",
]


@dataclass(frozen=True, slots=True)
class RunParts:
    """What all stages of a run share."""

    directory: RunDirectory
    base_dir: Path
    group: WorkerGroup
    live: LiveObjects
    ledger: Ledger
    writer: TrajectoryWriter
    events: EventLog
    sink: Sink
    display: StepDisplay
    timer: PhaseTimer


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage came to: where the next one's draws begin, its evaluations, its steps."""

    next_draw: int
    results: Mapping[str, Any]
    steps: int


def learns_from_demonstrations(algorithm: AlgorithmSpec) -> bool:
    """Whether it imitates given tokens instead of learning from rollouts."""
    return SegmentKind.TARGET in algorithm.trains


def worker_spec(
    stage: StageConfig, algorithm: AlgorithmSpec, live: LiveObjects, *, base_dir: Path, model: Path, num_steps: int
) -> WorkerSpec:
    """What every rank hosts during a stage."""
    updates = num_steps * stage.train.updates_per_batch
    updates *= math.ceil(stage.train.batch_prompts / stage.train.mini_batch_prompts)
    actor = ActorSpec(
        model_path=str(model),
        algorithm=algorithm,
        optim=optim_spec(stage, total_steps=updates),
        dtype=stage.model.dtype,
        gradient_checkpointing=stage.train.gradient_checkpointing,
        deterministic=stage.run.deterministic,
    )
    if learns_from_demonstrations(algorithm):
        return WorkerSpec(actor)
    rollout = rollout_spec(stage, live, base_dir=base_dir, model=model)
    reference = ReferenceSpec(str(model), stage.model.dtype) if algorithm.needs.reference else None
    return WorkerSpec(actor, reference, engine_spec(stage, model), rollout)


def run_stage(parts: RunParts, stage: StageConfig, *, model: Path, first_draw: int, resume: bool) -> StageOutcome:
    """Trains one stage to its end, from its newest checkpoint where there is one to resume.

    Args:
        parts: what all stages share.
        stage: whole.
        model: the weights that it starts from.
        first_draw: its first draw; draws are unique in a run.
        resume: go on from the newest checkpoint.
    """
    algorithm = stage.make_algorithm()
    folder = parts.directory.checkpoints_folder / stage.name
    checkpoints = Checkpoints(folder, keep_last=stage.checkpoint.keep_last)
    restored = checkpoints.latest() if resume else None
    manifest = restored[1] if restored else None
    imitates = learns_from_demonstrations(algorithm)
    tasks = [] if imitates else _tasks(stage, parts.base_dir)
    num_steps = _num_steps(stage, None if imitates else len(tasks))
    title = f"{stage.name} ({algorithm.name})"
    done = manifest.step if manifest else 0
    parts.display.stage(title, num_steps, columns=SFT_COLUMNS if imitates else RL_COLUMNS, done=done)
    spec = worker_spec(stage, algorithm, parts.live, base_dir=parts.base_dir, model=model, num_steps=num_steps)
    with parts.timer.phase("setup"):
        parts.group.setup(spec)
    recorder = Recorder(
        stage.name,
        writer=parts.writer,
        events=parts.events,
        sink=parts.sink,
        view=parts.display,
        timer=parts.timer,
        step=done,
        results=manifest.results if manifest else None,
    )
    snapshot = manifest.rollouts if manifest else Snapshot(first_draw, (), 0, parts.ledger.offset)
    if imitates:
        schedule: Schedule = _demonstrations(parts, stage, model, snapshot.next_draw)
    else:
        schedule = _rollouts(parts, stage, algorithm, tasks, recorder, first_draw, snapshot, num_steps)
    run = StageRun(
        _settings(stage, num_steps),
        algorithm=algorithm,
        schedule=schedule,
        actor=ActorHandle(parts.group),
        checkpoints=checkpoints,
        evaluator=None if imitates else Evaluator(eval_plan(stage, parts.live, parts.base_dir)),
        recorder=recorder,
        model_folder=parts.directory.models_folder / stage.name,
        restored=restored,
    )
    try:
        train(run)
    except BaseException as error:
        _close_after(error, schedule)
        raise
    next_draw = first_draw if imitates else schedule.snapshot().next_draw
    schedule.close()
    return StageOutcome(next_draw, recorder.results(), num_steps)


def _close_after(error: BaseException, schedule: Schedule) -> None:
    """Closes what a broken stage started; what fails then is told with the error that came first."""
    try:
        schedule.close()
    except AgentRLError as second:
        error.add_note(f"and closing the stage failed: {second}")


def _tasks(stage: StageConfig, base_dir: Path) -> list[Task]:
    assert stage.data.train is not None, "the configuration's rules ask for data.train"
    return load_tasks(stage.data.train, stage.data.args, base_dir=base_dir, seed=stage.run.seed, setting="data.train")


def _num_steps(stage: StageConfig, num_tasks: int | None) -> int:
    if stage.train.steps is not None:
        return stage.train.steps
    if num_tasks is None:
        raise ConfigError(
            f"train.steps of stage {stage.name!r} must be set, since demonstrations may be endless, got nothing; set it"
        )
    return math.ceil((stage.train.epochs or 1) * num_tasks / stage.train.batch_prompts)


def _settings(stage: StageConfig, num_steps: int) -> StageSettings:
    return StageSettings(
        name=stage.name,
        num_steps=num_steps,
        mini_batch_groups=stage.train.mini_batch_prompts,
        micro_batch_tokens=stage.train.micro_batch_tokens,
        logprob_micro_batch_tokens=stage.train.logprob_micro_batch_tokens,
        checkpoint_every=stage.checkpoint.every,
        seed=stage.run.seed,
        shuffle_rewards=stage.reward.shuffle,
        tool_tokens=stage.train.tool_tokens,
    )


def _demonstrations(parts: RunParts, stage: StageConfig, model: Path, start: int) -> DemonstrationSchedule:
    assert stage.data.train is not None, "the configuration's rules ask for data.train"
    renderer = renderer_spec(stage, parts.base_dir, model).build()
    rows = endless_rows(
        stage.data.train,
        stage.data.args,
        base_dir=parts.base_dir,
        seed=stage.run.seed,
        setting="data.train",
        skip=start,
    )
    return DemonstrationSchedule(
        rows,
        lambda row, draw: demonstration_group(row, draw, renderer, max_tokens=stage.context_tokens),
        batch_groups=stage.train.batch_prompts,
        ledger=parts.ledger,
        start=start,
    )


def _rollouts(
    parts: RunParts,
    stage: StageConfig,
    algorithm: AlgorithmSpec,
    tasks: list[Task],
    recorder: Recorder,
    first_draw: int,
    snapshot: Snapshot,
    num_steps: int,
) -> CapacitySchedule:
    rollout = stage.rollout
    order = DrawOrder(tasks, seed=stage.run.seed, shuffle=stage.data.shuffle, first_draw=first_draw)
    admission = Admission(
        batch_groups=stage.train.batch_prompts,
        group_size=rollout.group_size,
        last_step=num_steps,
        max_refill=rollout.max_refill,
        in_draw_order=stage.run.deterministic,
    )

    def keep_group(group: TrajectoryGroup) -> Keep:
        rewards = np.asarray([trajectory.reward for trajectory in group.finished], dtype=np.float64)
        if rewards.size < rollout.min_siblings:
            return Keep(False, "min_siblings")
        return algorithm.keep_group(GroupSummary(group.draw, rewards))

    def open_service(step: int) -> RolloutService:
        return RolloutService(parts.group, order, parts.ledger, admission, keep_group, recorder.outcome, snapshot, step)

    examined = max((item.num_tasks or 1000 for item in stage.eval.sets.values()), default=0) * stage.eval.samples
    wait_s = rollout_deadline_s(stage, max(admission.draws_per_batch * rollout.group_size, examined))
    return CapacitySchedule(parts.group, open_service, wait_s=wait_s)


def finished_stage(parts: RunParts, stage: StageConfig) -> StageOutcome | None:
    """What a stage came to that an earlier attempt of the run finished; None where it did not."""
    manifest = last_manifest(parts.directory, stage)
    if manifest is None or not (parts.directory.models_folder / stage.name).is_dir():
        return None
    if stage.train.steps is not None and manifest.step < stage.train.steps:
        return None  # more steps are asked for than that attempt was to make
    imitates = learns_from_demonstrations(stage.make_algorithm())
    return StageOutcome(0 if imitates else manifest.rollouts.next_draw, manifest.results, manifest.step)


def rollout_deadline_s(stage: StageConfig, num_episodes: int) -> float:
    """How long a wait for groups may take: every episode's own deadline, wave after wave, with its retries."""
    rollout = stage.rollout
    waves = math.ceil(num_episodes / rollout.max_running)
    return waves * (rollout.retries + 1) * rollout.episode_timeout_s + 60.0
