"""Stage run: takes, trains, records, evaluates and keeps one stage for the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import numpy as np

from agentrl.algorithms import AlgorithmSpec
from agentrl.config import StageConfig
from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.checkpoints import CheckpointCopies, Checkpoints, Manifest
from agentrl.controller.checkpoints.checkpointing import Checkpointing
from agentrl.controller.cluster.role_group import RoleGroup
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.evaluator import Evaluator
from agentrl.controller.failures import check_failures
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.recording.skipped_steps import SkippedSteps
from agentrl.controller.schedule import Schedule
from agentrl.controller.stage.evaluation import StageEvaluation
from agentrl.controller.stage.passes import Passes
from agentrl.controller.state import TrainState
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import (
    CheckpointError,
    ConfigError,
    EpisodesFailedError,
    RunInterruptedError,
    WeightMismatchError,
)
from agentrl.store.disk import replacing_folder
from agentrl.training import LearningRole
from agentrl.types import Stats, TrajectoryGroup
from agentrl.types.env import MAIN_POLICY


@dataclass(eq=False)
class StageRun:
    """What the loop of ``controller.loop.train`` works with.

    Args:
        stage: whole, with its number of steps.
        algorithm: what is learned.
        schedule: what overlaps.
        roles: of each policy that is trained, by their names; also those that do not learn.
        checkpoints: of this stage.
        evaluator: evaluates the model; None where nothing is held out.
        recorder: store, metrics and display.
        skipped: keeps the batches of steps that are skipped for their gradients.
        model_folder: where the finished model is exported to.
        restored: a checkpoint to go on from.
        stop: asks the stage to end with a checkpoint.
        copies: of the checkpoints, elsewhere; None makes none.
    """

    stage: StageConfig
    _: KW_ONLY
    algorithm: AlgorithmSpec
    schedule: Schedule
    roles: Mapping[str, Mapping[str, RoleHandle]]
    checkpoints: Checkpoints
    evaluator: Evaluator | None
    recorder: Recorder
    skipped: SkippedSteps
    model_folder: Path
    restored: tuple[Path, Manifest] | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    copies: CheckpointCopies | None = None

    def __post_init__(self) -> None:
        stage = self.stage
        self.learners = [
            role for roles in self.roles.values() for role in roles.values() if role.trains
        ]
        _check_names(stage.name, self.learners)
        self.timer = self.recorder.timer
        self.recorder.writer.declare(self.algorithm.columns)
        self.passes = {
            policy: Passes(
                policy,
                stage,
                self.algorithm,
                self.schedule,
                roles,
                self.recorder,
                self.skipped,
            )
            for policy, roles in self.roles.items()
        }
        self.checkpointing = Checkpointing(
            stage.name,
            self.checkpoints,
            self.learners,
            self.schedule,
            self.recorder,
            copies=self.copies,
            evaluating=self.restored[1].evaluating if self.restored else "",
        )
        self.evaluation = StageEvaluation(
            stage, self.evaluator, self.recorder, self.checkpointing
        )
        self._start: Mapping[str, object] = {}
        """Checksums of the weights that each policy starts from."""

    def restore(self) -> TrainState:
        """The state of the checkpoint to go on from, its tensors loaded; step 0 without one.

        Raises:
            CheckpointError: it is corrupt.
            StoreError: it is of another model or optimizer.
        """
        # No checkpoint is loaded yet: `finish` compares with what the stage started from.
        self._start = self._checksums()
        if self.restored is None:
            versions = dict.fromkeys(self.roles, 0)
            return TrainState(versions=versions, algorithm=self.algorithm.initial_state)
        folder, manifest = self.restored
        try:
            for learner in self.learners:
                learner.call(LearningRole.load, folder / learner.name)
        except CheckpointError as error:
            raise CheckpointError(
                f"checkpoint {folder} cannot be loaded: {error}; delete it, and the one before is "
                "resumed from",
                folder,
            ) from error
        return manifest.state

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
            episodes = self.recorder.take_episodes(groups, self.schedule.waiting())
            again = {t.group_index for t in episodes} | {
                group.group_index for group in groups
            }
            check_failures(episodes, self.stage, state.step + 1)
        except (EpisodesFailedError, RunInterruptedError):
            self.checkpointing.keep(state, again)
            raise
        return groups

    def assemble(
        self, groups: Sequence[TrajectoryGroup], state: TrainState
    ) -> dict[str, PlannedBatch]:
        """The batch of each policy; none of one that no group of the step trains."""
        by_policy: dict[str, list[TrajectoryGroup]] = {}
        for group in groups:
            by_policy.setdefault(group.policy, []).append(group)
        return {
            name: self.passes[name].assemble(own, state) for name, own in by_policy.items()
        }

    def publish(self, state: TrainState, batches: Mapping[str, PlannedBatch]) -> TrainState:
        """Publishes the weights of the policies that the step trained.

        Raises:
            WeightMismatchError: a server's probe or a tensor differs; the step is kept in a
                checkpoint.
        """
        changed = [name for name in batches if not self.passes[name].warms_up]
        try:
            return self.schedule.publish(state, changed=changed)
        except WeightMismatchError:
            self.checkpointing.keep(state.published(changed))
            raise

    def has_signal(self, batches: Mapping[str, PlannedBatch]) -> bool:
        """Whether anything could be learned of a step's batches."""
        if self.algorithm.learns_from != "rollouts":
            return True
        return any(self.passes[name].has_signal(batch) for name, batch in batches.items())

    def record(
        self,
        state: TrainState,
        groups: Sequence[TrajectoryGroup],
        batches: Mapping[str, PlannedBatch],
        stats: Stats,
    ) -> None:
        """Annotations, metrics and the display's line of a step."""
        for group in self._groups:
            self.timer.put_ranks(group.take_times())
        self.checkpointing.settle(wait=False)
        self.recorder.record_failures(self.schedule.take_failures())
        counts = Counter({**self.schedule.take_counts(), **self.skipped.take_counts()})
        for name, batch in batches.items():
            passes = self.passes[name]
            counts["count/trained_tokens"] += passes.trained_tokens(batch)
            if self.schedule.on_stale == "mask_tokens":
                versions = batch.batch.policy_versions
                masked = np.count_nonzero(
                    (versions >= 0) & (versions < passes.oldest_version)
                )
                counts["async/masked_tokens"] += int(masked)
        self.recorder.record_step(
            state,
            groups,
            {name: self.passes[name].take_learned() for name in batches},
            stats,
            {**counts, **self.schedule.take_rates(), **self._idle_fracs()},
            has_signal=self.has_signal(batches),
            note="; ".join(filter(None, (self.passes[name].note for name in batches))),
        )

    def checkpoint_if_due(self, state: TrainState) -> None:
        """Keeps a checkpoint every so many steps, after the last, and where the run ends.

        Raises:
            RunInterruptedError: it was asked to.
            TrainingError: too many gradients in a row were not finite.
        """
        own = self.stage.checkpoint
        ends = state.step == self.stage.last_step or self.stop.by or self.skipped.ended
        if ends or (own.every is not None and state.step % own.every == 0):
            self.checkpointing.keep(state, beside=own.asynchronous and not ends)
        # Both of these end the run, so the checkpoint comes first.
        self.skipped.check()
        self.stop.check()

    def finish(self, state: TrainState) -> TrainState:
        """Exports the model as an ordinary Hugging Face folder that exists whole or not at all; the
        models of further learners lie in folders of their names within.

        Raises:
            RunInterruptedError: the run was asked to end.
        """
        self.stop.check()
        for policy, checksum in self._checksums().items():
            if self._start[policy] == checksum:
                model = self.passes[policy].model.name
                self.recorder.warn(
                    "weights_unchanged",
                    f"stage {self.stage.name} ends with the very weights that it began with: in "
                    f"{state.step} steps its {model} learned nothing; see optim/lr and "
                    "optim/grad_norm, and how many steps had no signal",
                )
        main = self.passes[MAIN_POLICY].model
        with self.timer.phase("checkpoint"), replacing_folder(self.model_folder) as part:
            for learner in self.learners:
                folder = part if learner is main else part / learner.name
                learner.call(LearningRole.export, folder)
        self.checkpointing.tell_copy(wait=True)
        return state

    def _idle_fracs(self) -> dict[str, float]:
        """How long the ranks of each pool were idle; nothing where one holds all roles."""
        groups = self._groups
        if len(groups) == 1:
            return {}
        return {f"time/idle_frac/{group.name}": group.take_idle_frac() for group in groups}

    @property
    def _groups(self) -> set[RoleGroup]:
        return {role.group for roles in self.roles.values() for role in roles.values()}

    def _checksums(self) -> dict[str, object]:
        return {
            policy: own.model.call(LearningRole.checksum)
            for policy, own in self.passes.items()
        }


def _check_names(stage: str, learners: Sequence[RoleHandle]) -> None:
    """Raises where two learners would write one folder of a checkpoint."""
    names = [learner.name for learner in learners]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"stage {stage!r} must train one learner or more of different names, got "
            f"{', '.join(names) or 'none'}; name each role once"
        )
