"""Admission: seeded schedules with ``rollout.on_stale: wait``, told event by event. Nothing is
lost, nothing is trained too late, and nothing stands still.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from agentrl.config import StageConfig
from agentrl.controller.admission import Backlog, RolloutState, in_time
from agentrl.errors import EngineError
from agentrl.rollouts import GroupState
from agentrl.types import (
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tests.controller.hand_pool import bounds

TASK = Task("0")
PROMPT = (Segment(SegmentKind.PROMPT, np.asarray([0], np.int32)),)
TOKENS = [
    Segment(
        SegmentKind.POLICY,
        np.asarray([1], np.int32),
        np.asarray([-1.0], np.float32),
        version,
    )
    for version in range(20)
]


def group_of(draw: int, policy: str, versions: list[int]) -> TrajectoryGroup:
    """A group of one trajectory, with a token of each version."""
    tokens = tuple(TOKENS[version] for version in versions)
    turn = Turn(0, None, PROMPT, tokens, "", {"role": "assistant", "content": ""})
    one = Trajectory(TASK, draw, 0, 0, "train", (turn,), Status("terminated"), reward=1.0)
    return TrajectoryGroup(draw, TASK, (one,), policy)


@dataclass
class Play:
    """A stage played by chance: of what may happen, what happens next is drawn.

    Args:
        stage: whole.
        random: the seeded chance.
        policies: whose groups are issued in turn.
        lost: chance of a group to be filtered, or to have failed.
        slow: chance of a group to run until nothing else can happen.
        idle: chance of a batch that publishes nothing.
    """

    stage: StageConfig
    random: random.Random
    policies: tuple[str, ...] = ("main",)
    lost: float = 0.0
    slow: float = 0.0
    idle: float = 0.0
    slow_draws: set[int] = field(default_factory=set)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    fate: dict[int, str] = field(default_factory=dict)
    too_old: list[int] = field(default_factory=list)
    step: int = 0
    evaluating: bool = False
    sent: bool = False

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.policies, 0)
        self.in_training: list[TrajectoryGroup] | None = None
        self.backlog = Backlog(self.stage, RolloutState(0, (), 0, 0))
        self.backlog.start(0, dict(self.versions))

    @property
    def over(self) -> bool:
        return self.step == self.stage.last_step and self.in_training is None

    @property
    def between_steps(self) -> bool:
        return self.in_training is None and not self.evaluating

    @property
    def choices(self) -> list[Callable[[], None]]:
        """What may happen beside the episodes that run."""
        if self.evaluating:
            return [self.end_evaluation]
        events: list[Callable[[], None]] = [self.issue] if self.backlog.has_room() else []
        if self.in_training is not None:
            events.append(self.make_room if self.sent else self.send_weights)
        elif self.backlog.may_close() and not self.over:
            events.append(self.take)
        return events

    def happen(self) -> None:
        """One of the events that may happen; fails where none may."""
        events = self.choices
        running = self.backlog.running.keys()
        if running - self.slow_draws or (running and not events):
            events += [self.end]
        if running and events:
            events += [self.sample, self.replay]
        assert events, f"step {self.step}: nothing can happen any more"
        self.random.choice(events)()

    def issue(self) -> None:
        draw, _ = self.backlog.next_draw()
        saved = self.backlog.saved.pop(draw, None)
        policy = self.policies[draw % len(self.policies)]
        self.backlog.run(draw, policy, saved.versions if saved else None)
        if saved is None:  # most sample at once, some wait for their engine
            first = self.random.random() < 0.9
            self.tokens[draw] = [self.versions[policy]] if first else []
        if self.random.random() < self.slow:
            self.slow_draws.add(draw)

    def sample(self) -> None:
        """A group that runs samples a token by the weights that its engine has."""
        draw = self.random.choice(sorted(self.backlog.running))
        self.tokens[draw].append(self.versions[self.policies[draw % len(self.policies)]])

    def replay(self) -> None:
        """The worker of a group dies: others play it from its beginning."""
        if self.random.random() < 0.02:
            self.tokens[self.random.choice(sorted(self.backlog.running))].clear()

    def end(self) -> None:
        running = self.backlog.running.keys()
        draw = self.random.choice(sorted(running - self.slow_draws) or sorted(running))
        assert self.backlog.end(draw) == ""
        if self.random.random() < self.lost:
            self.fate[draw] = "filtered"
            return
        policy = self.policies[draw % len(self.policies)]
        group = group_of(draw, policy, self.tokens[draw] or [self.versions[policy]])
        if not self.backlog.keep(group):
            self.too_old.append(draw)

    def take(self) -> None:
        self.step += 1
        self.in_training = self.backlog.take(self.step)
        assert (
            len(self.in_training) == self.stage.train.batch_prompts
            or not self.backlog.running
        )
        for group in self.in_training:
            assert self.fate.setdefault(group.group_index, "trained") == "trained"
            (one,) = group.trajectories
            behind = self.versions[group.policy] - min(one.policy_versions)
            assert behind <= self.stage.rollout.max_staleness, (
                self.step,
                group.group_index,
            )

    def send_weights(self) -> None:
        """The engines have the next weights; the controller does not know it yet."""
        assert self.in_training is not None
        self.sent = True
        if self.random.random() >= self.idle:
            for policy in {group.policy for group in self.in_training}:
                self.versions[policy] += 1
        assert self.backlog.begin_publish(dict(self.versions)) == []

    def make_room(self) -> None:
        self.sent = False
        self.in_training = None
        old = self.backlog.publish(dict(self.versions))
        self.too_old += [group.group_index for group in old]
        self.evaluating = self.random.random() < 0.2

    def end_evaluation(self) -> None:
        self.evaluating = False

    def resume(self, stage: StageConfig) -> None:
        """A checkpoint between two steps, and a run that goes on from it: with groups that wait,
        and with some that run, of which half have a state."""
        self.stage = stage
        before = self.backlog
        states = [
            GroupState(draw, (), versions=versions)
            for draw, versions in before.running.items()
            if self.random.random() < 0.5
        ]
        states += [before.saved[draw] for draw in before.again if draw in before.saved]
        outstanding = tuple(sorted({*before.going_on, *before.again}))
        waiting = tuple(before.groups)
        state = RolloutState(
            before.next_group_index, outstanding, before.spent, 0, waiting, tuple(states)
        )
        self.backlog = Backlog(stage, state)
        self.backlog.start(self.step, dict(self.versions))
        for group in waiting:
            if not self.backlog.keep(group):
                self.too_old.append(group.group_index)


def played(seed: int, staleness: int, *, resumed_with: int | None = None) -> Play:
    """A stage of chance, to its end; every second is resumed now and then, or all of them once with
    another bound."""
    chance = random.Random(f"{seed}-{staleness}")
    stage = bounds(
        chance.choice([1, 2, 3]),
        1,
        last_step=chance.choice([3, 12, 15]),
        max_staleness=staleness,
        max_resample_ratio=chance.choice([0.0, 0.5, 4.0]),
    )
    play = Play(
        stage,
        chance,
        chance.choice([("main",), ("main",), ("main", "guard")]),
        lost=chance.choice([0.0, 0.2, 0.6]),
        slow=chance.choice([0.0, 0.5, 0.8]),
        idle=chance.choice([0.0, 0.3]),
    )
    while not play.over:
        play.happen()
        if resumed_with is not None and play.step == 2 and play.between_steps:
            rollout = stage.rollout.replace(max_staleness=resumed_with)
            play.resume(stage.replace(rollout=rollout))
            resumed_with = None
        elif seed % 2 == 0 and play.between_steps and chance.random() < 0.2:
            play.resume(play.stage)
    return play


@pytest.mark.invariant
@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_every_group_is_trained_in_time_or_named(staleness: int) -> None:
    trained = 0
    for seed in range(120):
        play = played(seed, staleness)
        # more than is asked for: none that was issued is left, also in the last steps
        assert play.tokens.keys() == play.fate.keys(), seed
        assert play.too_old == [], seed
        trained += sum(fate == "trained" for fate in play.fate.values())
    assert trained > 2000


def test_a_lower_bound_of_a_resumed_run_gives_up_what_it_must_and_stands_still_nowhere() -> (
    None
):
    given_up = 0
    for seed in range(40):
        play = played(seed, 4, resumed_with=1)
        assert play.tokens.keys() == play.fate.keys() | set(play.too_old), seed
        given_up += len(play.too_old)
    assert given_up > 0


def test_what_stays_is_in_time_where_the_batches_to_come_hold_it() -> None:
    assert in_time([], 2)
    assert in_time([1, 1, 2, 2, 3], 2)
    assert not in_time([1, 1, 1], 2)  # three for the next batch of two
    assert not in_time([0, 4], 2)  # this batch must have taken it
    # none is due now, and yet the fifth of them comes too late: two batches hold four
    assert not in_time([2, 2, 2, 2, 2], 2)


@pytest.mark.invariant
def test_a_token_of_weights_that_were_never_published_is_refused() -> None:
    backlog = Backlog(bounds(2, 1, max_staleness=2), RolloutState(0, (), 0, 0))
    backlog.start(3, {"main": 5})
    said = (
        "group 7 has a token of policy version 6 of 'main', and none above 5 was published"
    )
    with pytest.raises(EngineError, match=said):
        backlog.keep(group_of(7, "main", [5, 6]))
    # an engine has new weights before the publish is over
    backlog.begin_publish({"main": 6})
    assert backlog.keep(group_of(7, "main", [5, 6]))
    with pytest.raises(EngineError, match="policy version 7"):
        backlog.keep(group_of(8, "main", [7]))


def test_a_batch_takes_first_what_must_be_trained_first() -> None:
    backlog = Backlog(bounds(2, 1, max_staleness=2), RolloutState(0, (), 0, 0))
    backlog.start(3, {"main": 5})
    for draw, version in enumerate([5, 4, 5, 3]):
        assert backlog.keep(group_of(draw, "main", [version, 5]))
    assert [group.group_index for group in backlog.take(4)] == [3, 1]
    assert [group.group_index for group in backlog.groups] == [0, 2]  # as they finished


def test_a_resumed_run_waits_for_the_old_groups_that_it_has_not_issued_yet() -> None:
    running = (GroupState(7, (), versions={"main": 4}),)
    state = RolloutState(9, (5, 7), 0, 0, (group_of(8, "main", [5]),), running)
    backlog = Backlog(bounds(1, 1, max_staleness=1), state)
    backlog.start(5, {"main": 5})
    assert backlog.keep(state.groups[0])
    assert not backlog.may_close()
    assert backlog.next_draw() == (7, True)  # the one with old tokens first
    backlog.run(7, "main", backlog.saved.pop(7).versions)
    assert not backlog.may_close()
    backlog.end(7)
    assert backlog.keep(group_of(7, "main", [4, 5]))
    assert backlog.may_close()
    assert [group.group_index for group in backlog.take(6)] == [7]
