"""What happens before the first step: the machine is probed, the run directory made, the model
built.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl.agent_server import AgentProgramSpec
from agentrl.config import RunConfig, StageConfig
from agentrl.config.algorithm_rules import check_warmup
from agentrl.controller.checkpoints import Checkpoints, Manifest
from agentrl.controller.checkpoints.checkpoint_copies import SETTING as COPY_TO
from agentrl.controller.ledger import Ledger
from agentrl.envs import EnvSpec
from agentrl.envs.check import first_step
from agentrl.errors import ConfigError, DataError, EnvError
from agentrl.run.build import LiveObjects, player_spec, training_loop
from agentrl.run.data.datasets import DataSet, bind_named, call_named, rows_hash
from agentrl.run.data.stored_batches import StoredBatches
from agentrl.run.data.task_table import TaskStream, TaskTable
from agentrl.run.engine import engine_plan
from agentrl.run.lifetime.record import new_run
from agentrl.sandbox import GUARANTEES
from agentrl.store import RunDirectory, keep_lines, record_resume
from agentrl.store.disk import replacing_folder
from agentrl.store.model_folder import given_model, pinned, with_commit
from agentrl.store.remote_folder import RemoteFolder
from agentrl.types import Task, load_object, place_of_object, raised_at, users_traceback
from agentrl.types.user_code.place import exited
from agentrl.types.user_code.wall import EXIT_CODE


def make_directory(
    config: RunConfig,
    stages: Sequence[StageConfig],
    live: LiveObjects,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> RunDirectory:
    """Probes what the rollouts need and plays one step in each environment, then makes the run
    directory with its record.

    Args:
        config: the whole configuration.
        stages: those that run, with the steps asked for.
        live: what was given from Python.
        sources: ``LoadedConfig.sources``.

    Raises:
        MachineError: the sandbox that is required is not to be had here.
        ConfigError: ``run.dir`` holds a run or other files, the sandbox's host holds fewer than
            may run at one time, a critic's warm-up takes all steps of a stage, what
            ``check_named`` refuses, or an environment cannot be made or breaks its contract.
        DataError: a data set cannot be used, or the model's folder does not exist.
    """
    assert config.run.dir is not None, "load_config fills it in"
    RunDirectory.check_new(config.run.dir)
    parent = config.model.path
    if parent is not None:
        parent = with_commit(parent, given_model(parent, config.base_dir))
    sandbox: Mapping[str, Any] = {}
    envs: list[tuple[StageConfig, EnvSpec]] = []
    check_named(config, stages)
    for stage in stages:
        if not stage.plays or stage.replays:
            continue
        # an engine that is not to be had is refused before anything is made
        engine_plan(stage, Path(config.run.dir))
        driver = player_spec(stage, live)
        if isinstance(driver, AgentProgramSpec):
            driver.check()
            continue
        envs.append((stage, driver))
        if driver.sandbox is not None:
            report = driver.sandbox.check()
            driver.sandbox.resolved().check_room(stage.sandboxes_a_host)
            sandbox = {
                "backend": report.backend,
                "guarantees": {name: name in report.held for name in GUARANTEES},
                "notes": report.notes,
            }
    tables = data_tables(stages)
    for stage in (stage for stage in stages if not stage.replays):
        # a prompt that is too long is known later alone: there may be fewer steps, never more
        most = count_steps(stage, tables.get(f"{stage.name}/train", ()))
        check_warmup(stage.make_algorithm(), most)
    for stage, env in envs:
        _play_contract(stage, env, tables[f"{stage.name}/train"][0])
    return new_run(
        config.run.dir,
        config,
        parent,
        data={name: rows_hash(tasks) for name, tasks in tables.items()},
        sandbox=sandbox,
        stages=whole_stages(config, stages),
        sources=dict(sources),
    )


def check_named(config: RunConfig, stages: Sequence[StageConfig]) -> None:
    """Refuses what settings name and what is opened only once the run directory is made.

    Raises:
        ConfigError: ``model.build`` or ``train.loop`` names no such function, nothing here reads
            the URL of ``checkpoint.copy_to``, or ``run.replay`` names no run that has a stage's
            steps.
        DataError: that run lacks something that training needs.
    """
    own = config.model
    if own.build is not None:
        folder = config.base_dir
        bind_named(
            "model.build", own.build, folder, config.run.seed, own.build_args, folder
        )
    for stage in stages:
        training_loop(stage)
        if stage.checkpoint.copy_to is not None:
            RemoteFolder(stage.checkpoint.copy_to, COPY_TO)
        if stage.replays:
            StoredBatches.of_stage(stage)


def count_steps(stage: StageConfig, tasks: Sequence[Task]) -> int:
    """The steps of a stage; ``train.epochs`` are so many of its tasks, or of its rows to imitate or
    compare.

    Raises:
        ConfigError: it has epochs, and its rows may be endless.
    """
    if stage.train.steps is not None:
        return stage.train.steps
    if not stage.plays:
        tasks = DataSet.of_training(stage).counted() or ()
    if isinstance(tasks, TaskStream) or not tasks:
        raise ConfigError(
            f"train.steps of stage {stage.name!r} must be set, since its rows may be endless, got "
            "nothing; set it"
        )
    return math.ceil((stage.train.epochs or 1) * len(tasks) / stage.train.batch_prompts)


def whole_stages(config: RunConfig, stages: Sequence[StageConfig]) -> list[StageConfig]:
    """Every stage of ``config``, also those skipped, with the steps that ``stages`` have."""
    train = {stage.name: stage.train for stage in stages}
    whole = config.resolved_stages(include_skipped=True)
    return [s.replace(train=train[s.name]) if s.name in train else s for s in whole]


def start_model(config: RunConfig, directory: RunDirectory) -> Path:
    """The folder of the model that the run starts from; one that ``model.build`` makes is made
    once.

    Raises:
        DataError: the function raised, or made no model; the model named does not exist.
    """
    own = config.model
    if own.path is not None:
        parent = directory.read_record().get("parent")
        return given_model(pinned(own.path, parent), config.base_dir)
    folder = directory.models_folder / "start"
    # A folder that is there is whole: it is moved into its place when everything is written.
    if folder.is_dir():
        return folder
    assert own.build is not None, (
        "the configuration's rules ask for model.path or model.build"
    )
    with replacing_folder(folder) as part:
        call_named(
            "model.build", own.build, config.base_dir, config.run.seed, own.build_args, part
        )
        if not (part / "config.json").is_file():
            raise DataError(
                f"model.build='{own.build}' wrote no config.json into the folder that it was given"
            )
    return folder


def last_manifest(directory: RunDirectory, stage: StageConfig) -> Manifest | None:
    """The newest checkpoint's manifest of a stage."""
    found = Checkpoints(directory.checkpoints_folder / stage.name, keep_last=0).latest()
    return found[1] if found else None


def finished_manifest(directory: RunDirectory, stage: StageConfig) -> Manifest | None:
    """That of a stage that is finished; None where it is not, or more steps are asked for than
    there were to make.
    """
    manifest = last_manifest(directory, stage)
    if manifest is None or not (directory.models_folder / stage.name).is_dir():
        return None
    return manifest if manifest.state.step >= (stage.train.steps or 0) else None


def roll_back(
    directory: RunDirectory,
    stages: Sequence[StageConfig],
    ledger: Ledger,
    told: Mapping[str, tuple[int, Collection[str]]],
) -> None:
    """Takes a run back to its newest checkpoint: later ledger rows are rolled back, later metrics
    taken out, later annotations void; ``TrackedRun.known`` is written down.
    """
    offset = 0
    steps = {stage.name: -1 for stage in stages}
    for stage in stages:
        manifest = last_manifest(directory, stage)
        if manifest is not None:
            # Stages run one after another, so the last checkpoint found is the run's newest.
            offset = manifest.rollouts.ledger_offset
            steps[stage.name] = manifest.state.step
    ledger.restore(offset)
    record_resume(directory, steps, told)
    for path in filter(Path.exists, (directory.metrics_path, directory.phases_path)):
        keep_lines(path, lambda row: int(row["step"]) <= steps.get(str(row["stage"]), -1))


def _play_contract(stage: StageConfig, env: EnvSpec, task: Task) -> None:
    """Finds an environment that no episode could be played in, before anything is made.

    Raises:
        ConfigError: it cannot be made, its ``reset`` raised, it broke a rule, or it took longer
            than an episode may; with the user's file and line.
    """
    trial = first_step(env, task, seed=stage.run.seed)
    try:
        asyncio.run(asyncio.wait_for(trial, stage.rollout.episode_timeout_s))
    except (EnvError, TimeoutError) as error:
        factory = env.factory
        made = load_object(factory, env.base_dir) if isinstance(factory, str) else factory
        what = str(error) or f"{env.name} took longer than rollout.episode_timeout_s"
        place = raised_at(error) or place_of_object(made)
        what += "" if place in what else f" ({place})"
        failed = ConfigError(
            f"stage {stage.name}: tried on task {task.id!r} before the first step, {what}\n"
            f"{users_traceback(error)}".rstrip()
        )
        failed.exit_code = EXIT_CODE if exited(error) else failed.exit_code
        raise failed from error


def data_tables(stages: Iterable[StageConfig]) -> dict[str, TaskTable | TaskStream]:
    """The tasks of each stage that plays episodes, and of each of its held-out sets; a stage that
    replays stored ones reads neither.
    """
    sets = {}
    for stage in (stage for stage in stages if stage.plays and not stage.replays):
        sets[f"{stage.name}/train"] = DataSet.of_training(stage)
        for name in stage.eval.sets:
            sets[f"{stage.name}/eval/{name}"] = DataSet.held_out(stage, name)
    return {name: data.tasks() for name, data in sets.items()}
