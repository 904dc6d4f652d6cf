"""Groups wait for their scores beside the intake, never in its way, and a checkpoint holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.ledger import ledger_rows
from agentrl.controller.scored_pool import ScoredPool
from agentrl.errors import RewardError
from agentrl.rollouts import GroupOutcome
from agentrl.training import DistSpec
from agentrl.types import Trajectory
from tests.controller.hand_pool import DEADLINE_S, Future, HandPool, MakeWorld, bounds
from tests.kit.waiting import until


class Held:
    """A scorer that answers when the test lets it; every reward becomes 5."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self._calls = threading.Semaphore(0)
        self._answers = threading.Semaphore(0)

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[GroupOutcome]:
        self.asked.append([one.request.group_index for one in outcomes])
        self._calls.release()
        assert self._answers.acquire(timeout=DEADLINE_S)
        return [with_reward(one) for one in outcomes]

    def wait_for_call(self) -> None:
        assert self._calls.acquire(timeout=DEADLINE_S)

    def answer(self, times: int = 1) -> None:
        self._answers.release(times)


@pytest.fixture
def held() -> Iterator[Held]:
    scorer = Held()
    yield scorer
    # before the worlds are closed, which wait for its calls
    scorer.answer(times=99)


def with_reward(outcome: GroupOutcome) -> GroupOutcome:
    return replace(
        outcome, group=outcome.group.with_rewarded(lambda t: replace(t, reward=5.0))
    )


def test_a_reward_model_that_is_held_does_not_stop_the_intake(
    world: MakeWorld, held: Held
) -> None:
    w = world(bounds(2, 1, max_resample_ratio=1.0), score=held)
    batch = w.next_groups()
    assert w.pool.wait_for(2) == [0, 1]
    w.pool.finish(0)
    held.wait_for_call()
    w.pool.finish(1, ["failed"])
    assert w.pool.wait_for(1) == [2]  # in place of the failed one
    assert [one.request.group_index for one in w.taken_in] == [1]
    w.pool.finish(2)
    held.answer(2)
    assert [(g.group_index, g.finished[0].reward) for g in batch.get()] == [
        (0, 5.0),
        (2, 5.0),
    ]
    assert held.asked == [[0], [2]]


def test_what_waits_for_scores_is_bounded_by_the_admission_and_counted(
    world: MakeWorld, held: Held
) -> None:
    w = world(bounds(2, 1, max_staleness=1), score=held)
    assert w.pool.wait_for(4) == [0, 1, 2, 3]
    w.pool.finish(0)
    held.wait_for_call()
    for group_index in (1, 2, 3):
        w.pool.finish(group_index)
    until(lambda: len(w.service.snapshot().running) == 4)
    # the second snapshot comes after a look at what may be issued
    assert w.service.snapshot().next_group_index == 4
    held.answer(2)
    until(lambda: len(w.taken_in) == 4)
    assert held.asked == [[0], [1, 2, 3]]
    assert [one.unscored for one in w.taken_in] == [4, 3, 3, 3]


def test_a_checkpoint_holds_what_waits_for_its_score_and_a_resume_scores_it(
    world: MakeWorld, held: Held
) -> None:
    w = world(bounds(1, 2), score=held)
    w.pool.wait_for(1)
    w.pool.finish(0)
    held.wait_for_call()
    until(lambda: len(w.service.snapshot().running) == 1)
    state = w.service.snapshot()
    assert (state.outstanding, state.groups) == ((0,), ())
    (saved,) = state.running
    assert [one.reward for one in saved.rollouts if isinstance(one, Trajectory)] == [
        1.0,
        1.0,
    ]

    again = world(
        bounds(1, 2), score=with_rewards, restored=replace(state, ledger_offset=0)
    )
    batch = again.next_groups()
    again.pool.wait_for(1)
    request = again.pool.open["", 0]
    assert request.saved is not None
    assert request.saved.rollouts == saved.rollouts  # so that nothing of it is played again
    again.pool.finish(0)
    assert [t.reward for group in batch.get() for t in group.finished] == [5.0, 5.0]


def with_rewards(outcomes: Sequence[GroupOutcome]) -> Sequence[GroupOutcome]:
    return [with_reward(one) for one in outcomes]


def test_a_group_that_is_cancelled_while_it_waits_comes_back_at_once(
    world: MakeWorld, held: Held
) -> None:
    w = world(bounds(1, 1, oversample=2), score=held)
    batch = w.next_groups()
    w.pool.wait_for(3)
    w.pool.finish(0)
    held.wait_for_call()
    w.pool.finish(1)
    assert w.scored is not None
    until(lambda: len(w.scored.in_flight()) == 2)
    held.answer()
    assert batch.group_indices() == [0]  # what runs and what waits is surplus now
    until(lambda: len(w.taken_in) == 3)
    ends = {one.request.group_index: one for one in w.taken_in}
    assert [str(t.status) for t in ends[1].group.trajectories] == ["cancelled(surplus)"]
    assert [t.reward for t in ends[1].played.trajectories] == [1.0]
    assert w.pool.cancelled == [2]  # it alone was still played
    w.ledger.sync()
    rows = [row for row in ledger_rows(w.ledger._path) if row["group_index"] == 1]
    assert [row["to"] for row in rows] == ["running", "finished", "dropped"]


def test_a_failed_call_is_made_again_for_each_group_and_fails_those_alone_that_cause_it(
    world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[list[int]] = []
    first, both = threading.Event(), threading.Event()

    def score(outcomes: Sequence[GroupOutcome]) -> Sequence[GroupOutcome]:
        indices = [one.request.group_index for one in outcomes]
        if indices == [2]:
            first.set()
            assert both.wait(DEADLINE_S)
            return with_rewards(outcomes)
        calls.append(indices)
        if 1 in indices:
            raise RewardError("no memory")
        return with_rewards(outcomes)

    w = world(bounds(3, 1, max_retries=2), score=score)
    w.pool.wait_for(3)
    w.pool.finish(2)
    assert first.wait(DEADLINE_S)
    w.pool.finish(0)
    w.pool.finish(1)
    until(lambda: not w.pool.open and len(w.service.snapshot().running) == 3)
    both.set()
    until(lambda: len(w.taken_in) == 3)
    ends = {one.request.group_index: one.group.trajectories[0] for one in w.taken_in}
    assert [ends[n].reward for n in (0, 1, 2)] == [5.0, None, 5.0]
    assert str(ends[1].status) == "failed(reward)"
    assert ends[1].status.detail == "trajectory 1-0-0 got no score: no memory"
    assert calls == [[0, 1], [0], [1], [1]]
    told = [one for one in caplog.records if getattr(one, "event", "") == "scoring_retried"]
    assert [one.levelname for one in told] == ["WARNING"] * 3
    assert w.ledger.counts()["failed"] == 1


def test_a_reward_model_that_is_lost_ends_the_wait_for_a_batch(world: MakeWorld) -> None:
    def score(outcomes: Sequence[GroupOutcome]) -> Sequence[GroupOutcome]:
        raise RewardError("its ranks are gone", retryable=False)

    w = world(bounds(1, 1), score=score)
    batch = w.next_groups()
    w.pool.wait_for(1)
    w.pool.finish(0)
    with pytest.raises(RewardError, match="its ranks are gone"):
        batch.get()


def test_the_end_of_a_stage_ends_the_thread_also_while_it_scores(
    world: MakeWorld, held: Held
) -> None:
    before = set(threading.enumerate())
    w = world(bounds(1, 1), score=held)
    w.pool.wait_for(1)
    w.pool.finish(0)
    held.wait_for_call()
    closing = Future(w.service.close)
    until(lambda: len(w.taken_in) == 1)  # the group that was scored is cancelled
    held.answer()
    closing.get()
    assert "scoring" not in {thread.name for thread in set(threading.enumerate()) - before}
    assert w.ledger.counts() == {"dropped": 1}


def test_a_pool_that_nothing_was_scored_in_has_no_thread_to_end(held: Held) -> None:
    with ScoredPool(HandPool(), held, max_retries=0) as pool:
        assert pool.collect(0.0) == []


@dataclass(frozen=True)
class Steps:
    """A role whose calls a test holds."""

    calls: list[str]
    holds: Mapping[str, Callable[[], object]]

    def build(self, place: DistSpec) -> Steps:
        return self

    def step(self, name: str) -> None:
        self.calls.append(name)
        self.holds.get(name, lambda: None)()


def test_a_score_waits_for_one_call_of_the_ranks_and_not_for_the_update() -> None:
    group = LocalRoleGroup(threads=1)
    calls: list[str] = []
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go.wait(DEADLINE_S)

    group.setup({"role": Steps(calls, {"update 1": hold})})

    def update() -> None:
        for number in (1, 2, 3):
            group.call("role", "step", args=(f"update {number}",))

    try:
        trainer = Future(update)
        assert inside.wait(DEADLINE_S)
        scorer = Future(lambda: group.call("role", "step", args=("score",)))
        until(lambda: len(group._calling._asked) == 2)
        go.set()
        trainer.get()
        scorer.get()
        assert calls == ["update 1", "score", "update 2", "update 3"]
    finally:
        group.close()
