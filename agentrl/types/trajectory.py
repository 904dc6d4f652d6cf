"""Trajectory: the turns of an episode, and the groups in which trajectories are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrl.types.arrays import I32
from agentrl.types.blob import Blob, Image
from agentrl.types.completion import FinishReason, SamplingParams, StaleKV
from agentrl.types.env import MAIN_AGENT, MAIN_POLICY, Task
from agentrl.types.messages import CallRecord, Message, images_in
from agentrl.types.segment import Segment, SegmentKind, concat_ids

Purpose = Literal["train", "baseline", "eval"]
StatusKind = Literal["terminated", "truncated", "failed", "cancelled"]

_INTERRUPTIONS = frozenset({"straggler", "drain"})
"""Reasons to end an episode that are none of the policy's doing."""

SEATS = "seats"
"""The key of ``Trajectory.info`` with the seats of an episode of several agents."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What one agent of several got of an episode.

    Args:
        train: whether its tokens are trained.
        reward: the weighted sum of its parts.
        rewards: the rubric's parts for it, and ``step`` for the sum of its step rewards.
    """

    train: bool
    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """How an episode ended: ``truncated`` and ``cancelled`` have a reason, ``failed`` a
    boundary.
    """

    kind: StatusKind
    reason: str = ""
    detail: str = ""

    @property
    def finished(self) -> bool:
        """Whether the trajectory is trained: true for terminated and truncated ones only."""
        return self.kind in ("terminated", "truncated")

    @property
    def interrupted(self) -> bool:
        """Whether what ended a truncated trajectory was none of the policy's doing."""
        return self.kind == "truncated" and self.reason in _INTERRUPTIONS

    def __str__(self) -> str:
        return f"{self.kind}({self.reason})" if self.reason else self.kind


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One model call and its effects, which holds only what it adds to its parent's sequence.

    Args:
        index: position among the trajectory's turns.
        parent: the turn whose sequence this one extends; None starts a new sequence with its own
            PROMPT.
        context: segments after the parent's and before the completion.
        completion: POLICY segments as sampled, or TARGET ones to imitate; empty for engines without
            ids.
        text: the completion's text, cut at a stop string.
        message: the assistant's message as parsed.
        images: those of ``context``, one for each of its media.
        observed: messages that led to this turn, from ``reset`` or the previous step.
        calls: each call and problem with its result.
        finish_reason: how the completion ended.
        sampling: its sampling parameters; None for turns that no engine generated.
        rewards: the turn's own share of the reward, by part; ``step`` is the environment's. Each is
            weighted once the episode is scored.
        state_key: hash of the state before the action: of ``observed_info["state"]``, else of the
            conversation.
        agent: the name of the agent whose turn it is.
        stale_kv: the rule under which KV of an older version was used.
        cached_tokens: prompt tokens whose KV was reused.
        timings: seconds by stage; ``step_at_s`` and ``wait_at_s`` are seconds after ``started_at``.
        info: the environment's own data on the step, JSON.
        started_at: when its generation was asked for, in seconds since the epoch; 0 where unknown.
        observed_info: the environment's own data on the observation, JSON.
        state: the environment's after the step (``Env.snapshot``), as JSON.
        files: those of the sandbox that the step changed, by path; None where one was deleted.
        offered_tools: the tools on offer as JSON, in OpenAI's shape; None where there were none,
            or nobody kept them.
    """

    index: int
    parent: int | None
    context: tuple[Segment, ...]
    completion: tuple[Segment, ...]
    text: str
    message: Message
    observed: tuple[Message, ...] = ()
    images: tuple[Image, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    finish_reason: FinishReason = "stop"
    sampling: SamplingParams | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    state_key: str = ""
    agent: str = MAIN_AGENT
    stale_kv: StaleKV = "never"
    cached_tokens: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    observed_info: Mapping[str, Any] = field(default_factory=dict)
    state: Blob | None = None
    files: Mapping[str, Blob | None] = field(default_factory=dict)
    offered_tools: Blob | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that this turn adds, in order."""
        return self.context + self.completion


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One unbroken training sequence: the path of a leaf turn.

    Args:
        turns: indices of the turns on the path, root first.
        owned: those that are trained here; the others are context, trained in an earlier sample.
        segments: the path's segments.
        segment_turns: for each segment, the turn that added it.
    """

    turns: tuple[int, ...]
    owned: frozenset[int]
    segments: tuple[Segment, ...]
    segment_turns: tuple[int, ...]

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One episode.

    Args:
        task: the problem.
        group_index: index of its group in the data order.
        rollout_index: index within the group.
        attempt: grows with each retry after an infrastructure failure.
        purpose: training, a greedy baseline, or evaluation.
        turns: in order of the calls.
        status: how it ended.
        rewards: the rubric's parts, and ``step`` for the sum of step rewards; of several agents,
            those of ``main``, or of the first trained one to act.
        reward: their weighted sum; None for a failed or cancelled trajectory.
        label: the evaluation's name (``code/before/greedy``); empty in training.
        timings: seconds by stage.
        info: JSON, such as ``restarts``: counts of new sequences by cause (docs/rollouts.md).
        stage: the stage of the run in which it was played; empty outside of a run.
        env: the name of what it was played in: the environment's class or function, or the agent's
            program.
        group_size: the rollouts of its group that had to finish.
        started_at, ended_at: seconds since the epoch; 0 where nobody measured.
        reasons: why the rubric's parts have their values (``Score.why``), JSON.
        last_observed: what the environment said when it ended the episode.
        last_info: its own data on that, JSON.
        first_state: its state after ``reset`` (``Env.snapshot``), as JSON.
    """

    task: Task
    group_index: int
    rollout_index: int
    attempt: int
    purpose: Purpose
    turns: tuple[Turn, ...]
    status: Status
    rewards: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None
    label: str = ""
    timings: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    stage: str = ""
    env: str = ""
    group_size: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    reasons: Mapping[str, Any] = field(default_factory=dict)
    last_observed: tuple[Message, ...] = ()
    last_info: Mapping[str, Any] = field(default_factory=dict)
    first_state: Blob | None = None

    @property
    def last_state(self) -> Blob | None:
        """The environment's state at the end."""
        return self.turns[-1].state if self.turns else self.first_state

    @property
    def id(self) -> str:
        """``group_index-rollout_index-attempt``, in an evaluation after its stage and label; equal
        ids, equal episode.
        """
        own = f"{self.group_index}-{self.rollout_index}-{self.attempt}"
        places = (self.stage, self.label) if self.label else ()
        return "/".join([*filter(None, places), own])

    @property
    def failure(self) -> str:
        """Why it failed, with the user's line where there is one."""
        detail = self.status.detail or "no reason was given"
        place = str(self.info.get("raised_at", ""))
        return f"{detail}, at {place}" if place not in detail else detail

    @property
    def failure_kind(self) -> str:
        """What makes two failures the same: the user's line that raised, or else what is told of
        them.
        """
        return str(self.info.get("raised_at") or self.status.detail)

    @property
    def seats(self) -> Mapping[str, Seat]:
        """What each agent that acted got, by name; empty for an episode of a single one."""
        return {name: Seat(**own) for name, own in self.info.get(SEATS, {}).items()}

    def of_seat(self, agent: str) -> Trajectory:
        """The episode as one of its agents lived it: its turns and its reward alone."""
        seat = self.seats.get(agent)
        if seat is None:
            return self
        own = [turn for turn in self.turns if turn.agent == agent]
        places = {turn.index: place for place, turn in enumerate(own)}
        turns = tuple(
            replace(
                turn,
                index=places[turn.index],
                parent=None if turn.parent is None else places[turn.parent],
            )
            for turn in own
        )
        info = {name: value for name, value in self.info.items() if name != SEATS}
        return replace(
            self, turns=turns, reward=seat.reward, rewards=seat.rewards, info=info
        )

    def path(self, index: int) -> tuple[int, ...]:
        """The turns from the root of ``index``'s sequence to it."""
        path = [index]
        while (parent := self.turns[path[-1]].parent) is not None:
            path.append(parent)
        return tuple(reversed(path))

    def sequence(self, index: int) -> I32:
        """All ids of a turn's sequence: exactly those that the engine was given and sampled in that
        call.
        """
        return concat_ids(
            segment for turn in self.path(index) for segment in self.turns[turn].segments
        )

    def samples(self) -> tuple[Sample, ...]:
        """The leaves' sequences; the first path with a turn owns it (docs/tokens.md)."""
        parents = {turn.parent for turn in self.turns}
        seen: set[int] = set()
        samples = []
        for leaf in (turn.index for turn in self.turns if turn.index not in parents):
            path = self.path(leaf)
            pairs = [
                (segment, turn) for turn in path for segment in self.turns[turn].segments
            ]
            if pairs:
                segments, segment_turns = zip(*pairs, strict=True)
                samples.append(
                    Sample(path, frozenset(path) - seen, segments, segment_turns)
                )
                seen.update(path)
        return tuple(samples)

    def images(self) -> Mapping[str, Image]:
        """Every image of its task, observations and tool results, by ``sha256``."""
        found = [*images_in(self.task.messages), *images_in(self.last_observed)]
        for turn in self.turns:
            found += [*turn.images, *images_in(turn.observed)]
            found += (
                image for call in turn.calls if call.result for image in call.result.images
            )
        return {image.sha256: image for image in found}

    def blobs(self) -> Iterator[Blob]:
        """Its states, files and tools on offer, in order; what stayed as it was comes again."""
        if self.first_state is not None:
            yield self.first_state
        for turn in self.turns:
            if turn.state is not None:
                yield turn.state
            yield from (file for file in turn.files.values() if file is not None)
            if turn.offered_tools is not None:
                yield turn.offered_tools

    def without_experts(self) -> Trajectory:
        """The same trajectory without the experts of its tokens; itself where it has none."""
        if all(
            segment.routed_experts is None
            for turn in self.turns
            for segment in turn.segments
        ):
            return self

        def bare(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
            return tuple(segment.with_experts(None) for segment in segments)

        turns = (
            replace(turn, context=bare(turn.context), completion=bare(turn.completion))
            for turn in self.turns
        )
        return replace(self, turns=tuple(turns))

    def policy_segments(self) -> tuple[Segment, ...]:
        """Every sampled segment, once, in turn order."""
        return tuple(
            s
            for turn in self.turns
            for s in turn.completion
            if s.kind is SegmentKind.POLICY
        )

    @property
    def num_policy_tokens(self) -> int:
        """The number of sampled tokens."""
        return sum(len(segment) for segment in self.policy_segments())

    @property
    def policy_versions(self) -> tuple[int, ...]:
        """The versions that sampled its tokens, in order of sampling."""
        return tuple(
            s.policy_version for s in self.policy_segments() if s.policy_version is not None
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryGroup:
    """The rollouts of one task, with equal environment seeds; ``policy`` is trained by them."""

    group_index: int
    task: Task
    trajectories: tuple[Trajectory, ...]
    policy: str = MAIN_POLICY

    def by_seat(self) -> tuple[TrajectoryGroup, ...]:
        """A group for each trained agent, of the rollouts in which it acted, as it lived them; the
        group itself where episodes have a single agent.
        """
        rewarded = self.rewarded
        if not any(SEATS in one.info for one in rewarded):
            return (self,)
        # an episode in which a single agent acted has no seats
        seats = [
            {turn.agent: True for turn in one.turns}
            | {name: seat.train for name, seat in one.seats.items()}
            for one in rewarded
        ]
        trained = {name for own in seats for name, train in own.items() if train}
        return tuple(
            replace(
                self,
                trajectories=tuple(
                    one.of_seat(name)
                    for one, own in zip(rewarded, seats, strict=True)
                    if name in own
                ),
            )
            for name in sorted(trained)
        )

    def with_rewarded(self, change: Callable[[Trajectory], Trajectory]) -> TrajectoryGroup:
        """The group with each of its ``rewarded`` rollouts changed, in order."""
        rewarded = self.rewarded
        changed = tuple(change(t) if t in rewarded else t for t in self.trajectories)
        return replace(self, trajectories=changed)

    @property
    def rewarded(self) -> tuple[Trajectory, ...]:
        """Finished rollouts, the greedy baseline included; failed and cancelled ones have no
        reward.
        """
        return tuple(
            t for t in self.trajectories if t.status.finished and t.reward is not None
        )

    @property
    def finished(self) -> tuple[Trajectory, ...]:
        """Finished rollouts that may be trained; no other enters a statistic or a loss."""
        return tuple(t for t in self.rewarded if t.purpose != "baseline")

    @property
    def baseline(self) -> Trajectory | None:
        """The greedy rollout that the others are compared with; None without a finished one."""
        return next((t for t in self.rewarded if t.purpose == "baseline"), None)
