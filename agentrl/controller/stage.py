"""Stage run: assembles, trains, records, evaluates and keeps one stage for the loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.algorithms import AlgorithmSpec
from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.checkpoints import CheckpointCopies, Checkpoints, Manifest
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.evaluator import Evaluator
from agentrl.controller.failures import FailureBound
from agentrl.controller.group_rewards import (
    checked_credit,
    comparable,
    rewards_of,
    seat_groups,
    weights_of,
)
from agentrl.controller.recording.learned_tokens import LearnedTokens
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.recording.skipped_steps import SkippedSteps
from agentrl.controller.schedule import Schedule
from agentrl.controller.state import TrainState
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import (
    ConfigError,
    EpisodesFailedError,
    RunInterruptedError,
    StoreError,
    TrainingError,
    WeightMismatchError,
)
from agentrl.rollouts import make_batch
from agentrl.store import Detail
from agentrl.store.atomic import replacing_folder
from agentrl.training import Actor, Critic, Layout, LearningRole, ModelInfo, Reference
from agentrl.training.fsdp.checkpoint_files import is_written
from agentrl.types import (
    BatchShard,
    SegmentKind,
    Stats,
    Trajectory,
    TrajectoryGroup,
    UpdateStats,
    seed_for,
)
from agentrl.types.env import MAIN_AGENT

_PASSES: tuple[tuple[Callable[[AlgorithmSpec], bool], str, Callable[..., Any]], ...] = (
    (lambda spec: spec.recomputes_old_logprobs, "actor", Actor.logprobs),
    (lambda spec: spec.needs.reference, "reference", Reference.logprobs),
    (lambda spec: spec.needs.critic, "critic", Critic.values),
    (lambda spec: spec.needs.advantages, "actor", Actor.advantages),  # moments over all ranks
)
"""Passes before the update, in order: whether an algorithm needs one, the role, and its method."""

logger = logging.getLogger(__name__)

WITHOUT_SIGNAL = "steps_without_signal"
"""The running total of steps in which nothing could be learned."""


@dataclass(frozen=True, slots=True)
class StageSettings:
    """Numbers of a stage that the loop needs.

    Args:
        name: prefix of metrics, folder of checkpoints.
        num_steps: batches to train.
        mini_batch_groups: groups of one optimizer step.
        micro_batch_tokens: tokens of one forward and backward of a rank.
        logprob_micro_batch_tokens: tokens of one forward without gradients.
        eval_every: steps between evaluations; None for the ends only.
        eval_before: also before the first step.
        checkpoint_every: steps between checkpoints; None keeps the last step's alone.
        checkpoint_beside: those are written beside the steps that follow.
        seed: ``run.seed``.
        failures: how many episodes of a batch may fail.
        detail: what annotations keep of each token (``store.detail``).
        shuffle_rewards: a control: rewards change places within the batch.
        train_on_tool_tokens: a control: tool and template tokens after the prompt are trained as if
            sampled.
    """

    name: str
    num_steps: int
    mini_batch_groups: int
    micro_batch_tokens: int
    logprob_micro_batch_tokens: int
    checkpoint_every: int | None
    seed: int
    failures: FailureBound
    checkpoint_beside: bool = True
    detail: Detail = "tokens"
    shuffle_rewards: bool = False
    train_on_tool_tokens: bool = False
    eval_every: int | None = None
    eval_before: bool = False


@dataclass(eq=False)
class _Pending:
    """A checkpoint that is being written."""

    folder: Path
    manifest: Manifest
    start: float
    waiting: list[RoleHandle]
    """Learners that have not told yet what became of it."""
    error: StoreError | None = None


@dataclass(eq=False)
class StageRun:
    """What the loop of ``controller.loop.train`` works with.

    Args:
        settings: numbers.
        algorithm: what is learned.
        schedule: what overlaps.
        learners: the roles that are trained. The first is the model that the stage is about: its
            sizes set the partition, and its metrics have no prefix.
        checkpoints: of this stage.
        evaluator: evaluates the model; None where nothing is held out.
        recorder: store, metrics and display.
        skipped: keeps the batches of steps that are skipped for their gradients.
        model_folder: where the finished model is exported to.
        restored: a checkpoint to go on from.
        stop: asks the stage to end with a checkpoint.
        copies: of the checkpoints, elsewhere; None makes none.
    """

    settings: StageSettings
    _: KW_ONLY
    algorithm: AlgorithmSpec
    schedule: Schedule
    learners: Sequence[RoleHandle]
    checkpoints: Checkpoints
    evaluator: Evaluator | None
    recorder: Recorder
    skipped: SkippedSteps
    model_folder: Path
    restored: tuple[Path, Manifest] | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    copies: CheckpointCopies | None = None

    def __post_init__(self) -> None:
        _check_names(self.settings.name, self.learners)
        self.num_steps = self.settings.num_steps
        self.timer = self.recorder.timer
        self._first = self.learners[0]
        self.recorder.writer.declare(self.algorithm.columns)
        self._learned: LearnedTokens | None = None
        self._oldest_version = 0
        self._step = 0
        self._concerned = False
        self._start: Mapping[str, int] = {}
        """Checksums of the weights that the stage starts from."""
        self._pending: _Pending | None = None
        self._interrupted = self.restored[1].evaluating if self.restored else ""
        """The evaluation that started and did not end."""
        # a role that is not built is named here
        facts: list[ModelInfo] = [learner.call(LearningRole.facts) for learner in self.learners]
        self._length_scale = facts[0].length_scale
        self._share_prefixes = all(one.shares_prefixes for one in facts)

    def restore(self) -> TrainState:
        """The state of the checkpoint to go on from, its tensors loaded; step 0 without one."""
        self._start = self._first.call(LearningRole.checksum)
        if self.restored is None:
            return TrainState(algorithm=self.algorithm.initial_state)
        folder, manifest = self.restored
        for learner in self.learners:
            learner.call(LearningRole.load, folder / learner.name)
        return TrainState(
            manifest.step, manifest.policy_version, manifest.algorithm, manifest.progress
        )

    def next_groups(self, state: TrainState) -> list[TrajectoryGroup]:
        """The batch of the next step, once it may be trained.

        Raises:
            RunInterruptedError: the run was asked to end; a checkpoint holds the state and what was
                in flight.
            EpisodesFailedError: too many of its episodes failed of one cause; the checkpoint plays
                them again.
        """
        again: set[int] = set()
        try:
            self.stop.check()
            groups = self.schedule.next_groups(state.step + 1)
            episodes = self.recorder.take_episodes(groups)
            again = {t.group_index for t in episodes} | {group.group_index for group in groups}
            self.settings.failures.check(episodes, step=state.step + 1, stage=self.settings.name)
        except (EpisodesFailedError, RunInterruptedError):
            self._checkpoint(state, again)
            raise
        return groups

    def assemble(self, groups: Sequence[TrajectoryGroup], state: TrainState) -> PlannedBatch | None:
        """Groups to a batch with credit and a partition; None where there is nothing to train."""
        if not groups:
            return None
        self._step = state.step + 1
        self._oldest_version = state.policy_version - self.schedule.max_staleness
        groups, group_rows = seat_groups(groups, partial(comparable, self.algorithm))
        if self.settings.shuffle_rewards:
            groups = _shuffled(groups, seed_for(self.settings.seed, "shuffle_rewards", state.step))
        if self.schedule.on_stale == "drop":
            self._assert_fresh(groups, state)
        rewards = rewards_of(groups, seed_for(self.settings.seed, "credit", state.step))
        concern = None if self._concerned else self.algorithm.concern
        if concern is not None and (told := concern(rewards)):
            self._concerned = True
            self.recorder.warn("algorithm_concern", f"step {self._step}: {told}", step=self._step)
        credit = checked_credit(
            self.algorithm.credit(rewards, state.algorithm), rewards, self.algorithm.told("credit")
        )
        trained = self.algorithm.trains
        if self.settings.train_on_tool_tokens:
            trained = trained | {SegmentKind.OBSERVATION, SegmentKind.TEMPLATE}
        batch = make_batch(
            groups,
            credit=credit.trajectory.astype(np.float32),
            turn_credit=credit.turn.astype(np.float32),
            weight=weights_of(self.algorithm, groups, rewards),
            group_rows=group_rows,
            trained=trained,
            oldest_version=self._oldest_version,
        )
        planned = PlannedBatch.plan(
            batch,
            self.algorithm,
            Layout(self._first.group.mesh.dp, self.settings.micro_batch_tokens, self._length_scale),
            mini_batch_groups=self.settings.mini_batch_groups,
            forward_tokens=self.settings.logprob_micro_batch_tokens,
            seed=seed_for(self.settings.seed, "shuffle", state.step),
            state=state.algorithm,
            policy_version=state.policy_version,
            share_prefixes=self._share_prefixes,
        )
        finished = [one for group in groups for one in group.finished]
        agents = tuple(one.turns[0].agent if one.turns else MAIN_AGENT for one in finished)
        return replace(planned, agents=agents)

    def forward(self, batch: PlannedBatch) -> PlannedBatch:
        """The batch with the columns of every pass that the algorithm needs before the update."""
        for is_needed, role, method in _PASSES:
            if is_needed(self.algorithm):
                columns = RoleHandle(self._first.group, role).columns(method, batch)
                batch = replace(batch, batch=batch.batch.join(columns))
        return batch

    def update(self, batch: PlannedBatch, mini_batch: Sequence[BatchShard]) -> Stats:
        """One optimizer step of every learner; metrics of those after the first are prefixed by
        their names. While a critic warms up it learns alone. A step that is skipped for its
        gradient leaves no metrics but its count, and once the run ends for them no more are taken.

        Raises:
            StoreError: the batch of a skipped step cannot be written.
        """
        stats = Stats()
        warms_up = self._warms_up
        for learner in self.learners[1:] if warms_up else self.learners:
            if self.skipped.ended:
                break
            own = learner.update(LearningRole.update, batch, mini_batch)
            prefix = "" if learner is self._first else f"{learner.name}/"
            skipped = self.skipped.note(
                learner, batch.batch, mini_batch, own, step=self._step, prefix=prefix
            )
            own = UpdateStats({}, {}) if skipped else own
            if not warms_up:  # the policy learned nothing of these tokens
                learned = self._learned_of(batch)
                learned.add(learner.name, mini_batch, own.columns, own, skipped=skipped)
            stats += Stats({prefix + name: stat for name, stat in own.items()})
        return stats

    @property
    def _warms_up(self) -> bool:
        """Whether the critic learns alone in this step."""
        return self._step <= self.algorithm.critic_warmup_steps

    def _learned_of(self, batch: PlannedBatch) -> LearnedTokens:
        """What the step learns of its tokens, from its first update on."""
        if self._learned is None or self._learned.planned is not batch:
            self._learned = LearnedTokens(
                batch,
                num_passes=self.algorithm.num_epochs,
                oldest_version=self._oldest_version,
                detail=self.settings.detail,
            )
        return self._learned

    def _assert_fresh(self, groups: Sequence[TrajectoryGroup], state: TrainState) -> None:
        """No trained token is staler than the schedule allows."""
        oldest = state.policy_version - self.schedule.max_staleness
        for trajectory in (t for group in groups for t in group.finished):
            sampled_by = min(trajectory.policy_versions, default=oldest)
            if sampled_by < oldest:
                raise TrainingError(
                    f"trajectory {trajectory.id} was sampled by policy version {sampled_by}, "
                    f"the schedule allows {oldest} at the least in step {state.step + 1}"
                )

    def counts(self, batch: PlannedBatch | None) -> dict[str, float]:
        """What a step adds to the running totals."""
        counts = {} if self._has_signal(batch) else {WITHOUT_SIGNAL: 1.0}
        if batch is None:
            return {"skipped_steps": 1.0, **counts}
        return {
            **counts,
            "trajectories": float(batch.batch.num_trajectories),
            "tokens": float(batch.batch.num_tokens),
            "trained_tokens": float(self._trained_tokens(batch)),
        }

    def _trained_tokens(self, batch: PlannedBatch) -> int:
        """Those that the first learner learns from."""
        return 0 if self._warms_up else int(np.count_nonzero(batch.batch.loss_mask))

    def record(
        self,
        state: TrainState,
        groups: Sequence[TrajectoryGroup],
        batch: PlannedBatch | None,
        stats: Stats,
    ) -> None:
        """Annotations, metrics and the display's line of a step."""
        self._settle(wait=False)
        self.recorder.record_failures(self.schedule.take_failures())
        counts = {**self.schedule.take_counts(), **self.skipped.take_counts()}
        if batch is not None and self.schedule.on_stale == "mask_tokens":
            versions = batch.batch.policy_versions
            masked = np.count_nonzero((versions >= 0) & (versions < self._oldest_version))
            counts["async/masked_tokens"] = int(masked)
        note = ""
        if batch is not None:
            counts["count/trained_tokens"] = self._trained_tokens(batch)
            if self._warms_up:
                steps = self.algorithm.critic_warmup_steps
                note = f"the critic alone was trained (warm-up, {self._step} of {steps})"
        packed = batch.batch if batch else None
        self.recorder.record_step(
            state,
            groups,
            packed,
            stats,
            counts,
            has_signal=self._has_signal(batch),
            note=note,
            learned=self._learned_of(batch) if batch else None,
        )
        self._learned = None

    def _has_signal(self, batch: PlannedBatch | None) -> bool:
        """Whether a batch says of any token that it was better or worse; what is imitated need
        not, also by an auxiliary loss. A critic or a teacher may say so where all rewards are
        equal."""
        if self.algorithm.learns_from != "rollouts":
            return True
        if batch is None:
            return False
        packed = batch.batch
        if any(tokens.any() for tokens in batch.auxiliary.values()):
            return True
        if packed.advantages is not None:
            return bool(packed.advantages.any())
        return bool(packed.credit.any() or packed.turn_credit.any())

    def evaluate_at_start(self, state: TrainState) -> None:
        """Evaluates the weights that the stage starts from, or makes up for an evaluation that was
        interrupted."""
        if when := self._interrupted:
            done = [name for name, own in self.recorder.results.items() if when in own]
            self._evaluate(when, state, done)
        elif self.settings.eval_before and self.restored is None:
            self._evaluate("before", state)

    def evaluate_if_due(self, state: TrainState) -> None:
        """Evaluates the model every so many steps, and after the last."""
        if state.step == self.num_steps:
            self._evaluate("after", state)
        elif _is_due(state, self.settings.eval_every):
            self._evaluate(f"step={state.step:06d}", state)

    def publish(self, state: TrainState, *, changed: bool) -> TrainState:
        """Publishes the step's weights.

        Raises:
            WeightMismatchError: a server's probe or a tensor differs; the step is kept in a
                checkpoint.
        """
        try:
            return self.schedule.publish(state, changed=changed and not self._warms_up)
        except WeightMismatchError:
            self._checkpoint(state.published())
            raise

    def checkpoint_if_due(self, state: TrainState) -> None:
        """Keeps a checkpoint every so many steps, after the last, and where the run ends.

        Raises:
            RunInterruptedError: it was asked to.
            TrainingError: too many gradients in a row were not finite.
        """
        ends = state.step == self.num_steps or self.stop.by or self.skipped.ended
        if ends or _is_due(state, self.settings.checkpoint_every):
            beside = self.settings.checkpoint_beside and not ends
            self._checkpoint(state, beside=beside)
        self.skipped.check()
        self.stop.check()

    def _checkpoint(
        self, state: TrainState, again: Collection[int] = (), *, beside: bool = False
    ) -> None:
        """Keeps a checkpoint of a state whose weights the learner has; draws of ``again`` are
        played once more.

        Args:
            beside: it is written beside what follows, which goes on where that fails.
        """
        with self.timer.phase("checkpoint"):
            self._settle(wait=True)
            start = time.monotonic()
            snapshot = self.schedule.snapshot(again)
            folder = self.checkpoints.begin(state.step)
            try:
                for learner in self.learners:
                    learner.call(LearningRole.begin_save, folder / learner.name)
                self.recorder.sync()
                self.recorder.record_unsaved(snapshot.running)
                evaluated_step, evaluated = self.recorder.last_evaluated
                manifest = Manifest(
                    stage=self.settings.name,
                    step=state.step,
                    policy_version=state.policy_version,
                    rollouts=snapshot,
                    algorithm=dict(state.algorithm),
                    progress=dict(state.totals),
                    results=deepcopy(self.recorder.results),
                    evaluated=evaluated if evaluated_step == state.step else {},
                    evaluating=self._interrupted,
                    uncounted=self.recorder.uncounted(),
                )
            except BaseException:
                self.checkpoints.abandon(folder)
                raise
            self._pending = _Pending(folder, manifest, start, list(self.learners))
            self._settle(wait=not beside, required=not beside)

    def _settle(self, *, wait: bool, required: bool = False) -> None:
        """Makes the checkpoint that is being written exist once it is written. Where it could not
        be, the one before stays, and that is told.

        Args:
            wait: until it is written.
            required: raise in place of telling.

        Raises:
            StoreError: it is required and cannot be written.
        """
        self._tell_copy(wait=False)
        pending = self._pending
        if pending is None:
            return
        while pending.waiting:
            result = pending.waiting[0].call(LearningRole.save_result, wait)
            if result is None:
                return
            pending.waiting.pop(0)
            pending.error = pending.error or result.error
        self._pending = None
        self._tell_copy(wait=True)  # of the one before, which may be deleted now
        try:
            if pending.error is not None:
                raise pending.error
            self.checkpoints.commit(pending.folder, pending.manifest)
        except StoreError as error:
            self.checkpoints.abandon(pending.folder)
            if required:
                raise
            self.recorder.record_failed_checkpoint(
                f"there is no checkpoint {pending.folder}", error
            )
            return
        except BaseException:
            self.checkpoints.abandon(pending.folder)
            raise
        fields = {
            "path": str(pending.folder),
            "seconds": time.monotonic() - pending.start,
            "stage": self.settings.name,
            "step": pending.manifest.step,
        }
        logger.info(
            "checkpoint %(path)s written in %(seconds).2f s",
            fields,
            extra={"event": "checkpoint_written", **fields},
        )
        self._begin_copy(pending.folder)

    def _begin_copy(self, folder: Path) -> None:
        if self.copies is not None:
            self.copies.begin(folder)

    def _tell_copy(self, *, wait: bool) -> None:
        """Tells of a copy that could not be made; the run goes on.

        Args:
            wait: until the one that is being made has come to its end.
        """
        if self.copies is not None and (failed := self.copies.failure(wait=wait)) is not None:
            self.recorder.record_failed_checkpoint(*failed)

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and for its copy, where the stage ends by
        an error. One whose ranks do not answer any more exists where all their files do."""
        pending = self._pending
        try:
            self._settle(wait=True)
        except TrainingError:
            if pending is None or not all(
                is_written(pending.folder / learner.name) for learner in self.learners
            ):
                raise
            self._pending = None
            self._tell_copy(wait=True)
            self.checkpoints.commit(pending.folder, pending.manifest)
            self._begin_copy(pending.folder)
        finally:
            self._tell_copy(wait=True)

    def finish(self, state: TrainState) -> TrainState:
        """Exports the model as an ordinary Hugging Face folder that exists whole or not at all; the
        models of further learners lie in folders of their names within.

        Raises:
            RunInterruptedError: the run was asked to end.
        """
        self.stop.check()
        if self._start == self._first.call(LearningRole.checksum):
            self.recorder.warn(
                "weights_unchanged",
                f"stage {self.settings.name} ends with the very weights that it began with: in "
                f"{state.step} steps its {self._first.name} learned nothing; see optim/lr and "
                "optim/grad_norm, and how many steps had no signal",
            )
        with self.timer.phase("checkpoint"), replacing_folder(self.model_folder) as part:
            for learner in self.learners:
                folder = part if learner is self._first else part / learner.name
                learner.call(LearningRole.export, folder)
        self._tell_copy(wait=True)
        return state

    def _evaluate(self, when: str, state: TrainState, done: Collection[str] = ()) -> None:
        """Evaluates the model; where the run is asked to end meanwhile, a resume makes up for the
        rest."""
        if self.evaluator is None:
            return
        self.recorder.evaluating(when, state.step)
        self._interrupted = when
        with self.timer.phase("eval"), suppress(RunInterruptedError):
            for result in self.evaluator.evaluate(when, done=done):
                self.recorder.record_evaluation(result, state)
            self._interrupted = ""
            self._settle(wait=True)
            if not done:
                self.checkpoints.check_metric(self.recorder.last_evaluated[1])


def _is_due(state: TrainState, every: int | None) -> bool:
    return every is not None and state.step % every == 0


def _check_names(stage: str, learners: Sequence[RoleHandle]) -> None:
    """Raises where two learners would write one folder of a checkpoint."""
    names = [learner.name for learner in learners]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"stage {stage!r} must train one learner or more of different names, got "
            f"{', '.join(names) or 'none'}; name each role once"
        )


def _shuffled(groups: Sequence[TrajectoryGroup], seed: int) -> list[TrajectoryGroup]:
    """The same groups with the rewards of their trajectories in other places."""
    rewards = [trajectory.reward for group in groups for trajectory in group.rewarded]
    order = iter(np.random.Generator(np.random.Philox(seed)).permutation(len(rewards)))

    def moved(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=rewards[next(order)])

    return [group.with_rewarded(moved) for group in groups]
