"""Schedule factory: makes a stage's schedule of episodes, demonstrations or preference pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from agentrl.algorithms import FilterResult
from agentrl.config import StageConfig
from agentrl.controller.admission import RolloutState, draws_per_batch
from agentrl.controller.cluster.role_group import RoleGroup
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import RolloutPool
from agentrl.controller.group_rewards import comparable, keep_any_seat
from agentrl.controller.ledger import Ledger
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.rollout_service import RolloutService
from agentrl.controller.schedule import DemonstrationSchedule
from agentrl.controller.scored_pool import ScoredPool
from agentrl.controller.scoring import RewardScorer, SequenceScores
from agentrl.controller.stage.pair_evaluator import PairSet
from agentrl.controller.stored_schedule import StoredSchedule
from agentrl.engines import PauseMode
from agentrl.errors import DataError
from agentrl.rollouts.samplers.prompt_sampler import PromptSampler
from agentrl.run.build import StageRecipe, renderer_spec, task_sampler
from agentrl.run.context import longest_sequence
from agentrl.run.data.datasets import DataSet
from agentrl.run.data.row_tables import LocatedRow
from agentrl.run.data.stored_batches import StoredBatches
from agentrl.run.lifetime.session import RunContext
from agentrl.training.data.demonstrations import demonstration_group
from agentrl.training.data.preferences import preference_group
from agentrl.types import Task, TrajectoryGroup


def conversations(
    recipe: StageRecipe, ledger: Ledger, *, first_group_index: int, start: int
) -> DemonstrationSchedule:
    """Batches of given tokens: demonstrations, or preference pairs.

    Args:
        recipe: of the stage.
        ledger: the run's.
        first_group_index: of the stage's first row.
        start: the draw to go on from.
    """
    stage = recipe.stage
    pairs = recipe.algorithm.learns_from == "preferences"
    of_row = partial(
        preference_group if pairs else demonstration_group,
        renderer=renderer_spec(stage, recipe.model).build(),
        max_tokens=longest_sequence(stage, recipe.model),
    )

    def to_group(located: LocatedRow, draw: int) -> TrajectoryGroup:
        where, row = located
        try:
            return of_row(row, draw)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error

    return DemonstrationSchedule(
        DataSet.of_training(stage).endless_rows(start - first_group_index),
        to_group,
        batch_groups=stage.train.batch_prompts,
        ledger=ledger,
        next_group_index=start,
    )


def held_out_pairs(stage: StageConfig, model: Path) -> list[PairSet]:
    """The sets of ``eval.sets`` as preference pairs.

    Raises:
        DataError: a set cannot be read, is empty, or a row is no pair; the set is named.
    """
    renderer = renderer_spec(stage, model).build()
    max_tokens = longest_sequence(stage, model)
    sets = []
    for name in stage.eval.sets:
        data = DataSet.held_out(stage, name)
        try:
            pairs = [
                preference_group(row, n, renderer, max_tokens=max_tokens)
                for n, row in enumerate(data.rows())
            ]
        except DataError as error:
            raise DataError(
                f"{data.setting}='{data.reference}' of stage {stage.name!r}, which trains a reward "
                f"model, must hold preference pairs: {error}"
            ) from error
        sets.append(PairSet(name, tuple(pairs)))
    return sets


def rollouts(
    context: RunContext,
    recipe: StageRecipe,
    tasks: Sequence[Task],
    policies: Mapping[str, RoleHandle],
    recorder: Recorder,
    *,
    first_group_index: int,
    snapshot: RolloutState,
    playing: Mapping[int, Mapping[str, int]],
) -> RolloutService:
    """Batches of episodes that the stage's policy plays.

    Args:
        context: of the run.
        recipe: of the stage.
        tasks: the data set.
        policies: those whose weights play, by name.
        recorder: of the stage.
        first_group_index: the stage's first draw.
        snapshot: the draws to go on from.
        playing: draws that the rollout workers play already.
    """
    stage = recipe.stage
    sampler = task_sampler(stage, tasks)
    processes = context.processes
    pool = processes.rollouts
    scored = scored_pool(pool, processes.roles, stage)

    def send_weights(policy: str, version: int, mode: PauseMode) -> None:
        changes = version % stage.rollout.full_sync_every > 0
        processes.sync.publish(
            policy, policies[policy], pool, version, mode, changes=changes
        )

    # Batches and evaluations wait at the same service, so that its deadline covers the larger one.
    most_tasks = max(
        (item.num_tasks or 1000 for item in stage.eval.sets.values()), default=0
    )
    trained = draws_per_batch(stage) * stage.rollouts_per_group
    evaluated = most_tasks * stage.eval.samples
    return RolloutService(
        stage,
        scored or pool,
        PromptSampler(
            tasks,
            sampler,
            name=stage.data.sampler.name,
            first_group_index=first_group_index,
            # The data set has compared the ids already.
            check_ids=False,
        ),
        context.ledger,
        snapshot,
        send_weights=send_weights,
        keep_group=partial(_keep_group, recipe),
        recorder=recorder,
        wait_s=rollout_deadline_s(stage, max(trained, evaluated)),
        stop=context.stop,
        on_batch=processes.train_in_turn if stage.sleeps else lambda: None,
        numbers=processes.take_numbers if stage.sleeps else dict,
        on_close=scored.close if scored else lambda: None,
        playing=playing,
        on_wait=processes.check_ranks,
    )


def stored_groups(
    context: RunContext,
    recipe: StageRecipe,
    batches: StoredBatches,
    recorder: Recorder,
    *,
    first_group_index: int,
) -> StoredSchedule:
    """The batches that an earlier run trained, whose images this run keeps too."""

    def groups_of(step: int) -> list[TrajectoryGroup]:
        groups = batches.groups_of(step)
        images = {
            name for group in groups for one in group.trajectories for name in one.images()
        }
        for name in images:
            context.directory.write_blob(batches.run.read_blob(name))
        return groups

    return StoredSchedule(
        groups_of,
        context.ledger,
        keep_group=partial(_keep_group, recipe),
        recorder=recorder,
        stage=recipe.stage,
        first_group_index=first_group_index,
    )


def _keep_group(recipe: StageRecipe, played: TrajectoryGroup) -> FilterResult:
    """Whether a group may be trained on."""
    if len(played.finished) < recipe.stage.rollout.min_group_size:
        return FilterResult(False, "min_group_size")
    return keep_any_seat(played, partial(comparable, recipe.algorithm))


def scored_pool(
    pool: RolloutPool, groups: Mapping[str, RoleGroup], stage: StageConfig
) -> ScoredPool | None:
    """The pool with a reward model that scores the stage's episodes; None where ``reward.model``
    asks for none.

    Args:
        pool: where they are played.
        groups: the group of each role.
        stage: whole.
    """
    own = stage.reward.model
    if not own.given:
        return None
    scores = sequence_scores(groups["reward_model"], stage)
    scorer = RewardScorer(scores, weight=own.weight, one_by_one=stage.run.deterministic)
    return ScoredPool(pool, scorer.score, max_retries=stage.rollout.max_retries)


def sequence_scores(group: RoleGroup, stage: StageConfig) -> SequenceScores:
    """Scores by the reward model that ``group`` hosts."""
    model = RoleHandle(group, "reward_model")
    return SequenceScores(model, stage.train.logprob_micro_batch_tokens)


def rollout_deadline_s(stage: StageConfig, num_episodes: int) -> float:
    """How long a wait for groups may take: every episode's own deadline, wave after wave, with its
    retries.

    A wave is what runs at one time; episodes that wait for a sandbox do not spend their own
    deadline meanwhile.
    """
    rollout = stage.rollout
    waves = math.ceil(
        num_episodes
        / min(rollout.max_running, stage.sandbox.max_running or rollout.max_running)
    )
    return waves * rollout.total_s + 60.0
