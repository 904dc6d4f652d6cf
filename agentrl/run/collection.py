"""Collection: plays tasks without training into a run directory, which a later call completes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from agentrl.config import RunConfig, StageConfig, load_config
from agentrl.config.dump import to_yaml
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.errors import ConfigError, DataError, EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.run.build import LiveObjects
from agentrl.run.data.datasets import load_tasks, rows_hash
from agentrl.run.data.prompt_limit import LeftOut, left_out_tasks
from agentrl.run.engine import plays_by_messages
from agentrl.run.lifetime.record import run_record
from agentrl.run.model_folder import given_model
from agentrl.run.trainer import Trainer
from agentrl.store import (
    EventLog,
    RunDirectory,
    TrajectoryReader,
    TrajectorySummary,
    TrajectoryWriter,
    write_text,
)
from agentrl.types import Task

_SEAL_EVERY = 256
"""Episodes between two shards."""
_STEP = 0


def collect(
    config: RunConfig,
    out: Path,
    *,
    num_tasks: int | None = None,
    samples: int | None = None,
    played: Callable[[int, int], None] = lambda done, total: None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[TrajectorySummary]:
    """Plays the tasks of ``data.train`` and keeps every episode in a run directory.

    Draw n is task n in the order of the data. A directory that holds a part of them already is
    completed: draws whose episodes have not all finished are played again, from the same seeds, and
        of those the ones that had not finished
    are kept. So the data set has each finished episode once, however often it was interrupted.
    Tasks whose prompts are longer than ``data.max_prompt_tokens`` are not played.

    Args:
        config: of one stage alone (``named_policy``).
        out: the run directory.
        num_tasks: only the first so many; by default all.
        samples: episodes a task; by default ``rollout.group_size``.
        played: told how many tasks are done, of how many.
        tell: told what is left out.

    Returns:
        The newest attempt at every episode, by draw and sibling.

    Raises:
        ConfigError: there is no ``data.train``, or ``out`` holds something else, such as what other
            settings made.
        DataError: the tasks cannot be read.
        EngineError: every episode failed.
    """
    (stage,) = config.resolved_stages()
    samples = samples or stage.rollout.group_size
    if stage.data.train is None:
        raise ConfigError("data.train is required, whose tasks are played; got none")
    base_dir = Path(config.run.base_dir or ".").resolve()
    tasks = load_tasks(
        stage.data.train,
        stage.data.args,
        base_dir=base_dir,
        seed=config.run.seed,
        setting="data.train",
    )
    directory = _directory(config, out, tasks, samples)
    chosen = tasks[:num_tasks]
    left_out = _left_out(stage, chosen, base_dir)
    if left_out is not None:
        tell(str(left_out))
    skipped = frozenset(() if left_out is None else left_out.ids)
    played_tasks = {
        group_index: task for group_index, task in enumerate(chosen) if task.id not in skipped
    }
    if left_out is not None and not played_tasks:
        raise DataError(f"{left_out}; no task is left: raise data.max_prompt_tokens")
    with TrajectoryWriter(directory) as writer:  # what an earlier one left unsealed is sealed now
        finished = _finished(directory)
        missing = [
            group_index for group_index in played_tasks if len(finished[group_index]) < samples
        ]
        if missing:
            requests = (
                GroupRequest(group_index, chosen[group_index], samples) for group_index in missing
            )
            placed = config.replace(run=config.run.replace(dir=str(out)))
            with Trainer(placed) as trainer:
                _keep(
                    trainer.play(requests),
                    finished,
                    writer,
                    directory,
                    lambda n: played(n, len(played_tasks)),
                    len(played_tasks) - len(missing),
                    trainer.take_failures,
                )
    newest = {
        (s.draw, s.sibling): s
        for s in TrajectoryReader(directory).summaries()
        if s.draw < len(chosen)
    }
    collected = [newest[key] for key in sorted(newest)]
    if collected and all(summary.reward is None for summary in collected):
        first = collected[0]
        raise EngineError(
            f"every one of the {len(collected)} episodes ended as "
            f"{first.status}({first.status_reason}); see {directory.events_path}",
            retryable=False,
        )
    return collected


def _left_out(stage: StageConfig, tasks: Sequence[Task], base_dir: Path) -> LeftOut | None:
    """Tasks whose prompts are too long; None where there are none, or a server has the
    tokenizer.
    """
    if stage.model.path is None or plays_by_messages(stage):
        return None
    model = given_model(stage.model.path, base_dir)
    found = left_out_tasks(stage, LiveObjects(), tasks, base_dir=base_dir, model=model)
    return found if found.ids else None


def _keep(
    outcomes: Iterable[GroupOutcome],
    finished: Mapping[int, Collection[int]],
    writer: TrajectoryWriter,
    directory: RunDirectory,
    done: Callable[[int], None],
    already: int,
    incidents: Callable[[], Sequence[Incident]],
) -> None:
    """Stores what comes and had not finished before, in shards; failures are told in
    ``events.jsonl`` too."""
    unsealed = 0
    events = EventLog(directory)
    try:
        for number, outcome in enumerate(outcomes, already + 1):
            for trajectory in (*outcome.retried, *outcome.group.trajectories):
                if trajectory.rollout_index in finished[trajectory.group_index]:
                    continue
                writer.write(trajectory, _STEP)
                unsealed += 1
                if trajectory.status.kind == "failed":
                    detail = trajectory.status.detail or str(trajectory.status)
                    boundary = trajectory.status.reason
                    events.log(
                        "trajectory_failed",
                        detail,
                        boundary=boundary,
                        level="warning",
                        trajectory=trajectory.id,
                    )
            for incident in incidents():
                events.log(incident.event, str(incident), boundary="engine", level="warning")
            if unsealed >= _SEAL_EVERY:
                writer.seal(_STEP)
                unsealed = 0
            done(number)
        writer.seal(_STEP)
    finally:
        events.close()


def _finished(directory: RunDirectory) -> defaultdict[int, set[int]]:
    """Siblings that have finished, by draw."""
    siblings: defaultdict[int, set[int]] = defaultdict(set)
    for summary in TrajectoryReader(directory).summaries():
        if summary.reward is not None:
            siblings[summary.draw].add(summary.sibling)
    return siblings


def _directory(config: RunConfig, out: Path, tasks: Sequence[Task], samples: int) -> RunDirectory:
    """The run directory: a new one, or one that the same settings made.

    Raises:
        ConfigError: it holds something else.
    """
    text = to_yaml(config)
    data = {"train": rows_hash(tasks)}
    if not (out / "run.json").is_file():
        record = run_record(seed=config.run.seed, data=data, parent=config.model.path, sandbox={})
        directory = RunDirectory.create(out, {**record, "collection": {"samples": samples}})
        write_text(directory.config_path, text)
        return directory
    directory = RunDirectory.open(out)
    record = directory.read_record()
    made = {
        "settings": (to_yaml(load_config(directory.config_path, trains=False)), text),
        "tasks": (record.get("data"), data),
        "--samples": (record.get("collection"), {"samples": samples}),
    }
    for what, (before, now) in made.items():
        if before != now:
            raise ConfigError(
                f"--out {out} holds episodes of other {what}, and a data set has one kind alone; "
                f"name another folder, or bring back those in {directory.config_path.name}"
            )
    return directory
