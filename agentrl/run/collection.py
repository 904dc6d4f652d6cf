"""Collection: plays tasks without training into a run directory, which a later call completes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from agentrl.config import RunConfig, StageConfig, load_config, to_yaml
from agentrl.controller.failures import check_some_finished
from agentrl.errors import ConfigError
from agentrl.rollouts import GroupRequest
from agentrl.run.build import LiveObjects
from agentrl.run.data.datasets import DataSet, rows_hash
from agentrl.run.data.prompt_limit import left_out_tasks
from agentrl.run.engine import plays_by_messages
from agentrl.run.lifetime.record import new_run
from agentrl.run.play.hosted_player import HostedPlayer
from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.store import (
    EventLog,
    Heartbeat,
    RunDirectory,
    TrajectoryReader,
    TrajectorySummary,
    TrajectoryWriter,
)
from agentrl.store.model_folder import given_model
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
    of those the ones that had not finished are kept. So the data set has each finished episode
    once, however often it was interrupted. Tasks whose prompts are longer than
    ``data.max_prompt_tokens`` are not played.

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
        EpisodesFailedError: every episode failed.
        HeldError: another process collects into ``out``.
    """
    (stage,) = config.resolved_stages()
    samples = samples or stage.rollout.group_size
    if stage.data.train is None:
        raise ConfigError("data.train is required, whose tasks are played; got none")
    if stage.data.stream and num_tasks is None:
        raise ConfigError(
            "data.stream=true has no end; say how many tasks to play, got none"
        )
    tasks = DataSet.of_training(stage).tasks()
    directory = _directory(config, out, tasks, samples)
    chosen = tasks[:num_tasks]
    draws = _draws(stage, chosen, tell)
    # The writer seals what an earlier call left unsealed, before it is looked for.
    detail = stage.store.detail
    with (
        directory.held(),
        Heartbeat(directory),
        TrajectoryWriter(directory, detail=detail) as writer,
    ):
        if stage.model.path is not None and not plays_by_messages(stage):
            model = given_model(stage.model.path, stage.base_dir)
            keep_tokenizer(directory, stage.name, model)
        finished = _finished(directory)
        missing = [
            GroupRequest(group_index, task, samples, stage=stage.name)
            for group_index, task in draws.items()
            if len(finished[group_index]) < samples
        ]
        if missing:
            placed = config.replace(run=config.run.replace(dir=str(out)))
            already = len(draws) - len(missing)
            with HostedPlayer(placed) as player, closing(EventLog(directory)) as events:
                for done, _ in enumerate(
                    _stored(player, missing, finished, writer, events), already + 1
                ):
                    played(done, len(draws))
    stored = [
        s for s in TrajectoryReader(directory).summaries() if s.group_index < len(chosen)
    ]
    newest = {(summary.group_index, summary.rollout_index): summary for summary in stored}
    collected = [newest[key] for key in sorted(newest)]
    if all(summary.reward is None for summary in collected):
        ids = [summary.id for summary in collected]
        check_some_finished(
            [s.trajectory for s in TrajectoryReader(directory).get_many(ids)]
        )
    return collected


def _draws(
    stage: StageConfig, tasks: Sequence[Task], tell: Callable[[str], None]
) -> Mapping[int, Task]:
    """The tasks to play; those whose prompts are too long are told, unless a server has the
    tokenizer.
    """
    if stage.model.path is None or plays_by_messages(stage):
        return dict(enumerate(tasks))
    model = given_model(stage.model.path, stage.base_dir)
    left_out = left_out_tasks(stage, LiveObjects(), tasks, model)
    if left_out.ids:
        tell(str(left_out))
    positions = left_out.positions(tasks)
    return {index: task for index, task in enumerate(tasks) if index not in positions}


def _stored(
    player: HostedPlayer,
    requests: Sequence[GroupRequest],
    finished: Mapping[int, Collection[int]],
    writer: TrajectoryWriter,
    events: EventLog,
) -> Iterator[None]:
    """Plays groups and stores what had not finished before, in shards; failures are told in
    ``events.jsonl`` too. Yields after each group."""
    unsealed = 0
    for outcome in player.stream(requests):
        for trajectory in (*outcome.retried, *outcome.group.trajectories):
            # A group is played whole, from the same seeds: what had finished before comes again,
            # and is stored already.
            if trajectory.rollout_index in finished[trajectory.group_index]:
                continue
            writer.write(trajectory, _STEP)
            unsealed += 1
            if trajectory.status.kind == "failed":
                events.trajectory_failed(trajectory)
        for incident in player.take_failures():
            events.log(incident.event, str(incident), boundary="engine", level="warning")
        if unsealed >= _SEAL_EVERY:
            writer.seal(_STEP)
            unsealed = 0
        yield
    writer.seal(_STEP)


def _finished(directory: RunDirectory) -> defaultdict[int, set[int]]:
    """Siblings that have finished, by draw."""
    siblings: defaultdict[int, set[int]] = defaultdict(set)
    for summary in TrajectoryReader(directory).summaries():
        if summary.reward is not None:
            siblings[summary.group_index].add(summary.rollout_index)
    return siblings


def _directory(
    config: RunConfig, out: Path, tasks: Sequence[Task], samples: int
) -> RunDirectory:
    """The run directory: a new one, or one that the same settings made.

    Raises:
        ConfigError: it holds something else.
    """
    data = {"train": rows_hash(tasks)}
    collection = {"samples": samples}
    if not (out / "run.json").is_file():
        return new_run(out, config, config.model.path, data=data, collection=collection)
    directory = RunDirectory.open(out)
    record = directory.read_record()
    made = {
        "settings": (
            to_yaml(load_config(directory.config_path, trains=False)),
            to_yaml(config),
        ),
        "tasks": (record.get("data"), data),
        "--samples": (record.get("collection"), collection),
    }
    for what, (before, now) in made.items():
        if before != now:
            raise ConfigError(
                f"--out {out} holds episodes of other {what}, and a data set has one kind alone; "
                f"name another folder, or bring back those in {directory.config_path.name}"
            )
    return directory
