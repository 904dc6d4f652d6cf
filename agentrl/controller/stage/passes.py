"""Passes: groups become a policy's batch with credit, and the batch an update of its learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from agentrl.algorithms import AlgorithmSpec
from agentrl.config import StageConfig
from agentrl.controller.batch_plan import PlannedBatch, Shards
from agentrl.controller.cluster.role_group import RoleGroup, at_once
from agentrl.controller.cluster.role_handle import RoleHandle
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
from agentrl.controller.state import TrainState, metric_prefix
from agentrl.errors import TrainingError
from agentrl.rollouts import make_batch
from agentrl.training import Actor, Critic, Layout, LearningRole, ModelInfo, Reference
from agentrl.training.roles.own_role import own_pass
from agentrl.types import (
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
)
"""Passes before the update: whether an algorithm needs one, the role, and its method. None of them,
and no custom role's, needs another's columns, so that those of different groups run at once."""


@dataclass(eq=False)
class Passes:
    """What a step does with the groups of a policy.

    Args:
        policy: its name.
        stage: whole.
        algorithm: what is learned.
        schedule: says how old a token may be.
        roles: the policy's, by name. The first that learns is its model: the one that is published,
            whose sizes set the partition, and whose metrics are prefixed by no role.
        recorder: is told of what the algorithm finds odd.
        skipped: keeps the batches of steps that are skipped for their gradients.
    """

    policy: str
    stage: StageConfig
    algorithm: AlgorithmSpec
    schedule: Schedule
    roles: Mapping[str, RoleHandle]
    recorder: Recorder
    skipped: SkippedSteps

    def __post_init__(self) -> None:
        self.learners = [role for role in self.roles.values() if role.trains]
        self.model = self.learners[0]
        self.oldest_version = 0
        """The oldest version whose tokens the step trains."""
        self._step = 0
        self._concerned = False
        self._learned: LearnedTokens
        # a role that is not built is named here
        facts: list[ModelInfo] = [
            learner.call(LearningRole.facts) for learner in self.learners
        ]
        self._length_scale = facts[0].length_scale
        self._routing = facts[0].routing
        self._share_prefixes = all(one.shares_prefixes for one in facts)
        self._passes: list[tuple[str, Callable[..., Any]]] = [
            (name, own_pass(role.pass_))
            for name, role in self.stage.roles.items()
            if name in self.roles and role.pass_ is not None
        ]
        self._passes += [row[1:] for row in _PASSES if row[0](self.algorithm)]
        if "reference" not in self.roles:
            # The policy without its adapter is the reference.
            self._passes = [
                ("actor", Actor.reference_logprobs) if name == "reference" else (name, own)
                for name, own in self._passes
            ]

    def assemble(
        self, groups: Sequence[TrajectoryGroup], state: TrainState
    ) -> PlannedBatch:
        """Groups to a batch with credit and a partition."""
        stage = self.stage
        self._step = state.step + 1
        version = state.versions[self.policy]
        self.oldest_version = version - self.schedule.max_staleness
        groups, group_rows = seat_groups(groups, partial(comparable, self.algorithm))
        if stage.debug.shuffle_rewards:
            groups = _shuffled(
                groups, seed_for(stage.run.seed, "shuffle_rewards", state.step)
            )
        if self.schedule.on_stale != "mask_tokens":
            self._assert_fresh(groups, state)
        rewards = rewards_of(groups, seed_for(stage.run.seed, "credit", state.step))
        concern = None if self._concerned else self.algorithm.concern
        if concern is not None and (told := concern(rewards)):
            self._concerned = True
            self.recorder.warn(
                "algorithm_concern", f"step {self._step}: {told}", step=self._step
            )
        credit = checked_credit(
            self.algorithm.credit(rewards, state.algorithm),
            rewards,
            self.algorithm.told("credit"),
        )
        trained = self.algorithm.trains
        if stage.debug.train_on_tool_tokens:
            trained = trained | {SegmentKind.OBSERVATION, SegmentKind.TEMPLATE}
        batch = make_batch(
            groups,
            credit=credit.trajectory.astype(np.float32),
            turn_credit=credit.turn.astype(np.float32),
            weight=weights_of(self.algorithm, groups, rewards),
            group_rows=group_rows,
            trained=trained,
            oldest_version=self.oldest_version,
            routing=self._routing if stage.replays_routing else None,
        )
        if batch.media.size:
            # ranks read them, maybe before the store has come to their trajectories
            self.recorder.writer.keep_images(
                one for group in groups for one in group.finished
            )
        train = stage.train
        planned = PlannedBatch.plan(
            batch,
            self.algorithm,
            Layout(self.model.data_parallel, train.micro_batch_tokens, self._length_scale),
            mini_batch_groups=train.mini_batch_prompts,
            forward_tokens=train.logprob_micro_batch_tokens,
            seed=seed_for(stage.run.seed, "shuffle", state.step),
            state=state.algorithm,
            policy_version=version,
            share_prefixes=self._share_prefixes,
            others=[role.data_parallel for role in self.roles.values()],
        )
        finished = [one for group in groups for one in group.finished]
        agents = tuple(one.turns[0].agent if one.turns else MAIN_AGENT for one in finished)
        return replace(planned, agents=agents, policy=self.policy)

    def forward(self, batch: PlannedBatch) -> PlannedBatch:
        """The batch with the columns of every pass that the algorithm needs before the update."""
        batch = self._with_columns(batch, self._passes)
        if self.algorithm.needs.advantages:
            # they are made of those columns, with moments over all ranks
            batch = self._with_columns(batch, [("actor", Actor.advantages)])
        self._learned = LearnedTokens(
            batch,
            num_passes=self.algorithm.num_epochs,
            oldest_version=self.oldest_version,
            detail=self.stage.store.detail,
        )
        return batch

    def _with_columns(
        self, batch: PlannedBatch, passes: Sequence[tuple[str, Callable[..., Any]]]
    ) -> PlannedBatch:
        samples = batch.forward()
        begun = [
            self.roles[role].begin_columns(own, batch, samples) for role, own in passes
        ]
        for columns in at_once(begun):
            batch = replace(batch, batch=batch.batch.join(columns))
        return batch

    def update(self, batch: PlannedBatch, mini_batch: Shards) -> Stats:
        """One optimizer step of every learner, of those in different groups at once; metrics of
        those beside the model are prefixed by their names. While a critic warms up it learns alone.
        A step that is skipped for its gradient leaves no metrics but its count, and once the run
        ends for them no more are taken.

        Raises:
            StoreError: the batch of a skipped step cannot be written.
        """
        stats = Stats()
        by_group: dict[RoleGroup, list[RoleHandle]] = {}
        for learner in self.learners[1:] if self.warms_up else self.learners:
            by_group.setdefault(learner.group, []).append(learner)
        # of each group one at a time
        for wave in zip_longest(*by_group.values()):
            if self.skipped.ended:
                break
            learners = [learner for learner in wave if learner is not None]
            found = at_once(
                [
                    one.begin_update(LearningRole.update, batch, mini_batch)
                    for one in learners
                ]
            )
            for learner, own in zip(learners, found, strict=True):
                stats += self._taken(learner, batch, mini_batch, own)
        return stats

    def _taken(
        self, learner: RoleHandle, batch: PlannedBatch, mini_batch: Shards, own: UpdateStats
    ) -> Stats:
        """The metrics of a learner's step, whose columns are kept."""
        parts = mini_batch(learner.data_parallel)
        prefix = f"{learner.name}/"
        if learner is self.model:
            prefix = metric_prefix(self.policy)
        skipped = self.skipped.note(
            learner, batch.batch, parts, own, step=self._step, prefix=prefix
        )
        own = UpdateStats({}, {}) if skipped else own
        if not self.warms_up:  # the policy learned nothing of these tokens
            self._learned.add(learner.name, parts, own.columns, own, skipped=skipped)
        return Stats({prefix + name: stat for name, stat in own.items()})

    @property
    def warms_up(self) -> bool:
        """Whether the critic learns alone in this step."""
        return self._step <= self.algorithm.critic_warmup_steps

    @property
    def note(self) -> str:
        """What the display's line adds of this step."""
        if not self.warms_up:
            return ""
        steps = self.algorithm.critic_warmup_steps
        return f"the critic alone was trained (warm-up, {self._step} of {steps})"

    def take_learned(self) -> LearnedTokens:
        """What the step has learned of its tokens; let go of once it is recorded."""
        learned = self._learned
        del self._learned
        return learned

    def trained_tokens(self, batch: PlannedBatch) -> int:
        """Those that the model learns from."""
        return 0 if self.warms_up else int(np.count_nonzero(batch.batch.loss_mask))

    def has_signal(self, batch: PlannedBatch) -> bool:
        """Whether a batch says of any token that it was better or worse; what is imitated need
        not, also by an auxiliary loss. A critic or a teacher may say so where all rewards are
        equal."""
        return bool(batch.teaching_groups())

    def _assert_fresh(self, groups: Sequence[TrajectoryGroup], state: TrainState) -> None:
        """No trained token is staler than the schedule allows."""
        oldest = self.oldest_version
        for trajectory in (t for group in groups for t in group.finished):
            sampled_by = min(trajectory.policy_versions, default=oldest)
            if sampled_by < oldest:
                raise TrainingError(
                    f"trajectory {trajectory.id} was sampled by policy version {sampled_by}, "
                    f"the schedule allows {oldest} at the least in step {state.step + 1}"
                )


def _shuffled(groups: Sequence[TrajectoryGroup], seed: int) -> list[TrajectoryGroup]:
    """The same groups with the rewards of their trajectories in other places."""
    rewards = [trajectory.reward for group in groups for trajectory in group.rewarded]
    order = iter(np.random.Generator(np.random.Philox(seed)).permutation(len(rewards)))

    def moved(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=rewards[next(order)])

    return [group.with_rewarded(moved) for group in groups]
