"""Backlog: seeded schedules with ``rollout.on_stale: wait``, told event by event: nothing is lost,
nothing is trained too late, and nothing stands still.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from agentrl.config import StageConfig
from agentrl.controller.admission import RolloutState
from agentrl.controller.backlog import Backlog, in_time
from agentrl.rollouts import GroupState
from agentrl.types import Segment, SegmentKind, Status, Task, Trajectory, TrajectoryGroup, Turn
from tests.controller.hand_pool import bounds

TASK = Task("0")
PROMPT = (Segment(SegmentKind.PROMPT, np.asarray([0], np.int32)),)
TOKENS = {
    version: Segment(
        SegmentKind.POLICY, np.asarray([1], np.int32), np.asarray([-1.0], np.float32), version
    )
    for version in range(200)
}


def group_of(draw: int, policy: str, versions: list[int]) -> TrajectoryGroup:
    """A group of one trajectory, with a token of each version."""
    tokens = tuple(TOKENS[version] for version in versions)
    turn = Turn(0, None, PROMPT, tokens, "", {"role": "assistant", "content": ""})
    one = Trajectory(TASK, draw, 0, 0, "train", (turn,), Status("terminated"), reward=1.0)
    return TrajectoryGroup(draw, TASK, (one,), policy)


@dataclass
class Play:
    """A stage played by chance: which of the things that may happen happens next is drawn.

    Args:
        stage: whole.
        random: the seeded chance.
        policies: whose groups are issued in turn.
        lost: chances of a finished group to be filtered, or to have failed.
        slow: chance of a group to run until nothing else can happen.
        idle: chance of a batch that publishes nothing.
    """

    stage: StageConfig
    random: random.Random
    policies: tuple[str, ...] = ("main",)
    lost: float = 0.0
    slow: float = 0.1
    idle: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    fate: dict[int, str] = field(default_factory=dict)
    issued_in: dict[int, int] = field(default_factory=dict)
    step: int = 0

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.policies, 0)
        self.in_training: list[TrajectoryGroup] | None = None
        self.evaluating = False
        self.slow_draws: set[int] = set()
        self.backlog = Backlog(self.stage, RolloutState(0, (), 0, 0))
        self.backlog.start(0, dict(self.versions))

    @property
    def over(self) -> bool:
        return self.step == self.stage.last_step and self.in_training is None

    def policy(self, draw: int) -> str:
        return self.policies[draw % len(self.policies)]

    def happen(self) -> None:
        """One event of those that may happen; fails where none may."""
        events = []
        if self.backlog.has_room() and not self.evaluating:
            events.append(self.issue)
        if self.backlog.running:
            events += [self.end, self.sample]
        if self.in_training is not None:
            events.append(self.publish)
        elif self.evaluating:
            events.append(self.end_evaluation)
        elif self.backlog.may_close() and not self.over:
            events.append(self.take)
        assert events, f"step {self.step}: nothing can happen any more"
        self.random.choice(events)()

    def issue(self) -> None:
        draw, _ = self.backlog.next_draw()
        saved = self.backlog.saved.pop(draw, None)
        self.backlog.run(draw, self.policy(draw), saved.versions if saved else None)
        if saved is None:
            self.tokens[draw] = []
        self.issued_in.setdefault(draw, self.step)
        if self.random.random() < self.slow:
            self.slow_draws.add(draw)

    def sample(self) -> None:
        """A group that runs samples a token by the weights that are served, or by those that were
        before, where the controller has not heard of the publish yet."""
        draw = self.random.choice(sorted(self.backlog.running))
        self.tokens[draw].append(self.versions[self.policy(draw)])

    def end(self) -> None:
        """A group that runs comes to its end; a slow one only where nothing else can happen."""
        quick = sorted(self.backlog.running.keys() - self.slow_draws)
        if not quick and self.others_can_happen:
            return
        draw = self.random.choice(quick or sorted(self.backlog.running))
        assert self.backlog.end(draw) == ""
        if self.random.random() < self.lost:
            self.fate[draw] = "filtered"
            return
        versions = self.tokens[draw] or [self.versions[self.policy(draw)]]
        assert self.backlog.keep(group_of(draw, self.policy(draw), versions))

    @property
    def others_can_happen(self) -> bool:
        """Whether anything but an episode's end may happen."""
        if self.in_training is not None or self.evaluating:
            return True
        return self.backlog.has_room() or (self.backlog.may_close() and not self.over)

    def take(self) -> None:
        self.step += 1
        size = self.stage.train.batch_prompts
        left = self.backlog.may_close()
        batch = self.backlog.take(self.step)
        assert left
        assert len(batch) == size or not self.backlog.running
        self.in_training = batch
        for group in batch:
            (one,) = group.trajectories
            behind = self.versions[group.policy] - min(one.policy_versions)
            assert behind <= self.stage.rollout.max_staleness, (group.group_index, behind)
            self.fate[group.group_index] = f"trained {self.step}"

    def publish(self) -> None:
        assert self.in_training is not None
        changed = {group.policy for group in self.in_training}
        if self.random.random() >= self.idle:
            for policy in changed:
                self.versions[policy] += 1
        self.in_training = None
        assert self.backlog.publish(dict(self.versions)) == []
        self.evaluating = self.random.random() < 0.2

    def end_evaluation(self) -> None:
        self.evaluating = False

    def resume(self) -> None:
        """A checkpoint between two steps, and a run that goes on from it: groups that wait, that
        run with a state or without one."""
        backlog = self.backlog
        states = []
        for draw, versions in backlog.running.items():
            if self.random.random() < 0.5:
                states.append(GroupState(draw, (), versions=versions))
        state = RolloutState(
            backlog.next_group_index,
            tuple(sorted({*backlog.going_on, *backlog.again})),
            backlog.spent,
            0,
            tuple(backlog.groups),
            tuple(states),
        )
        self.backlog = Backlog(self.stage, state)
        self.backlog.start(self.step, dict(self.versions))
        for group in state.groups:
            assert self.backlog.keep(group)


def stage_of(chance: random.Random, staleness: int) -> StageConfig:
    return bounds(
        chance.choice([1, 2, 3, 5]),
        1,
        last_step=chance.choice([3, 8, 15]),
        max_staleness=staleness,
        max_resample_ratio=chance.choice([0.0, 0.5, 4.0]),
    )


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_nothing_is_lost_too_old_or_stuck(seed: int, staleness: int) -> None:
    chance = random.Random(f"{seed}-{staleness}")
    play = Play(
        stage_of(chance, staleness),
        chance,
        chance.choice([("main",), ("main", "guard")]),
        lost=chance.choice([0.0, 0.2, 0.6]),
        slow=chance.choice([0.0, 0.1, 0.5]),
        idle=chance.choice([0.0, 0.3]),
    )
    while not play.over:
        play.happen()
        if play.in_training is None and not play.evaluating and chance.random() < 0.02:
            play.resume()
    unnamed = play.issued_in.keys() - play.fate.keys()
    last = play.stage.last_step
    assert not {draw for draw in unnamed if play.issued_in[draw] < last - staleness - 1}
    assert len({*play.backlog.running, *(g.group_index for g in play.backlog.groups)}) == len(
        unnamed
    )
