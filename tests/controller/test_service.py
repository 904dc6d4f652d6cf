"""Admission, intake and closing of batches, over a pool that finishes groups when a test says
so.
"""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.algorithms import FilterResult
from agentrl.controller.admission import RolloutState
from agentrl.controller.cluster.rollout_pool import collect_groups
from agentrl.controller.ledger import ledger_rows
from agentrl.controller.schedule import GroupRecorder
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import EngineError, RunInterruptedError, StoreError
from agentrl.rollouts import (
    KILLS_WORKER,
    GroupOutcome,
    GroupRequest,
    GroupState,
    NotResumable,
    cancelled_outcome,
)
from agentrl.types import TrajectoryGroup
from tests.controller.hand_pool import (
    DEADLINE_S,
    TASKS,
    Future,
    HandPool,
    MakeWorld,
    bounds,
    outcome,
    settled,
)
from tests.kit.waiting import until


def test_a_batch_of_groups_is_issued_and_no_more(world: MakeWorld) -> None:
    w = world(bounds(3, 2))
    assert w.pool.wait_for(3) == [0, 1, 2]
    assert settled(w.pool, [0, 1, 2])


def test_staleness_lets_more_batches_be_in_flight(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_staleness=1, max_resample_ratio=4.0))
    assert w.pool.wait_for(4) == [0, 1, 2, 3]
    assert settled(w.pool, [0, 1, 2, 3])


def test_a_batch_in_training_takes_its_place_until_it_is_published(
    world: MakeWorld,
) -> None:
    w = world(bounds(2, 1))
    batch = w.next_groups()
    for group_index in w.pool.wait_for(2):
        w.pool.finish(group_index)
    assert batch.group_indices() == [0, 1]
    assert settled(w.pool, [])
    w.service.make_room({"main": 0})
    assert w.pool.wait_for(2) == [2, 3]


def test_groups_close_in_the_order_in_which_they_finish(world: MakeWorld) -> None:
    w = world(bounds(2, 1))
    batch = w.next_groups()
    w.pool.wait_for(2)
    w.pool.finish(1)
    w.pool.finish(0)
    assert batch.group_indices() == [1, 0]


@pytest.mark.parametrize("seed", range(6))
def test_in_draw_order_any_order_of_finishing_gives_the_same_batches(
    world: MakeWorld, seed: int
) -> None:
    """Draws whose task is a multiple of 3 are dropped, so refills are part of it."""
    rng = random.Random(seed)

    def keep(group: TrajectoryGroup) -> FilterResult:
        return FilterResult(group.group_index % 3 != 0, "third")

    w = world(bounds(3, 1, max_resample_ratio=2.0, in_draw_order=True), keep=keep)
    batches = []
    for step in (1, 2, 3):
        batch = w.next_groups(step)
        while not batch.done:
            if group_indices := w.pool.group_indices():
                w.pool.finish(rng.choice(group_indices))
            time.sleep(0.001)
        batches.append(batch.group_indices())
        assert w.pool.group_indices() == []
        w.service.make_room({"main": 0})
    assert batches == [[1, 2, 4], [5, 7, 8], [10, 11, 13]]
    assert w.service.snapshot().outstanding == ()


def test_in_draw_order_nothing_is_issued_before_the_loop_waits(world: MakeWorld) -> None:
    w = world(bounds(3, 1, in_draw_order=True))
    assert settled(w.pool, [])


def test_a_dropped_group_is_refilled_up_to_its_share(world: MakeWorld) -> None:
    dropped = FilterResult(False, "zero_std")
    w = world(
        bounds(2, 2, max_resample_ratio=0.5),
        keep=lambda group: dropped if group.group_index != 2 else FilterResult(True),
    )
    batch = w.next_groups()
    w.pool.wait_for(2)
    w.pool.finish(0)
    assert w.pool.wait_for(2) == [1, 2]
    w.pool.finish(1)
    assert settled(w.pool, [2])  # 3 draws for this batch of 2, and no more
    w.pool.finish(2)
    assert batch.group_indices() == [2]  # the step goes on with what there is
    assert w.ledger.counts() == {"dropped": 4, "taken": 2}


def test_the_ledger_says_of_which_stage_a_group_is_and_why_it_was_dropped(
    world: MakeWorld, tmp_path: Path
) -> None:
    w = world(bounds(2, 2), keep=lambda group: FilterResult(False, "no_spread"))
    w.pool.wait_for(2)
    w.pool.finish(0)
    until(lambda: w.ledger.counts()["dropped"] == 2)
    until(lambda: w.told.dropped == [(["0-0-0", "0-1-0"], "no_spread")])
    w.ledger.sync()
    lines = (tmp_path / "ledger-0.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["group_index"] == 0]
    assert [(row["to"], row["rollout_indices"]) for row in rows] == [
        ("running", [0, 1]),
        ("finished", [0, 1]),
        ("dropped", [0, 1]),
    ]
    assert (rows[0]["stage"], rows[-1]["reason"]) == ("rl", "no_spread")


def test_an_episode_is_handed_on_before_its_group_and_has_a_reason_where_that_is_cancelled(
    world: MakeWorld,
) -> None:
    w = world(bounds(1, 2))
    w.pool.wait_for(1)
    request = w.pool.open["", 0]
    first = outcome(request).group.trajectories[0]
    w.pool.ended.append(first)
    until(lambda: [one.id for one in w.told.ended] == ["0-0-0"])
    assert (w.ledger.counts(), w.taken_in) == ({"running": 2}, [])

    stopped = replace(outcome(request, ["cancelled"] * 2), ended=(first,))
    w.pool.cancel = lambda keys: w.pool.give(stopped)  # type: ignore[method-assign]
    w.service.before_publish({"main": 1})
    until(lambda: w.told.dropped == [(["0-0-0"], "stale")])
    assert w.ledger.counts() == {"dropped": 1, "cancelled": 1}
    assert w.service.snapshot().groups == ()  # an episode of half a group is in no batch


def test_a_step_may_go_on_with_nothing(world: MakeWorld) -> None:
    w = world(bounds(1, 1), keep=lambda group: FilterResult(False, "zero_std"))
    batch = w.next_groups()
    w.pool.wait_for(1)
    w.pool.finish(0)
    assert batch.group_indices() == []


def test_the_refill_of_a_step_is_its_own(world: MakeWorld) -> None:
    w = world(
        bounds(1, 1, max_resample_ratio=1.0),
        keep=lambda group: FilterResult(group.group_index % 2 == 1, "even"),
    )
    for step in (1, 2, 3):
        batch = w.next_groups(step)
        (first,) = w.pool.wait_for(1)
        w.pool.finish(first)
        (second,) = w.pool.wait_for(1)
        w.pool.finish(second)
        assert batch.group_indices() == [2 * step - 1]
        w.service.make_room({"main": 0})


def test_failed_siblings_leave_their_group_in_the_ledger_too(world: MakeWorld) -> None:
    w = world(bounds(1, 3))
    batch = w.next_groups()
    w.pool.wait_for(1)
    w.pool.finish(0, ["failed", "truncated", "cancelled"])
    groups = batch.get()
    assert [t.rollout_index for t in groups[0].finished] == [1]
    assert w.ledger.counts() == {"failed": 1, "cancelled": 1, "taken": 1}
    w.service.mark_trained(groups, 1)
    assert w.ledger.counts() == {"failed": 1, "cancelled": 1, "trained": 1}


def test_a_group_that_kills_its_workers_is_dropped_with_its_task_and_the_ledger_balances(
    world: MakeWorld,
) -> None:
    w = world(bounds(1, 2, max_resample_ratio=1.0))
    batch = w.next_groups()
    w.pool.wait_for(1)
    asked = w.pool.open.pop(("", 0))
    before = outcome(asked).group.trajectories[1]
    one_ended = GroupState(0, (NotResumable(), before))
    w.pool.give(cancelled_outcome(asked, one_ended, KILLS_WORKER))
    w.pool.wait_for(1)
    w.pool.finish(1)
    assert batch.group_indices() == [1]
    w.ledger.sync()
    rows = [row for row in ledger_rows(w.ledger._path) if row["group_index"] == 0]
    assert [(row["to"], row["rollout_indices"], row.get("reason")) for row in rows] == [
        ("running", [0, 1], None),
        ("dropped", [0], "kills_worker"),
        ("finished", [1], None),
        ("dropped", [1], "kills_worker"),
    ]
    assert rows[1]["task"] == "0"
    assert w.ledger.counts() == {"dropped": 2, "taken": 2}


def test_evaluation_is_handed_out_in_order_and_never_buffered(world: MakeWorld) -> None:
    w = world(bounds(1, 1))
    w.pool.wait_for(1)
    requests = [
        GroupRequest(group_index, TASKS[group_index], 2, "eval", "code/after/sampled")
        for group_index in range(3)
    ]
    examined = Future(lambda: w.service.evaluate(requests))
    w.pool.wait_for(3, "code/after/sampled")
    for group_index in (2, 0, 1):
        w.pool.finish(group_index, label="code/after/sampled")
    assert [o.request.group_index for o in examined.get()] == [0, 1, 2]
    assert len(w.taken_in) == 3
    assert w.ledger.counts() == {"running": 1}


def test_no_draw_is_issued_while_an_evaluation_runs(world: MakeWorld) -> None:
    w = world(bounds(1, 1))
    w.pool.wait_for(1)
    examined = Future(
        lambda: w.service.evaluate([GroupRequest(0, TASKS[0], 1, "eval", "e")])
    )
    w.pool.wait_for(1, "e")
    batch = w.next_groups()
    w.pool.finish(0)
    assert batch.group_indices() == [0]
    w.service.make_room({"main": 0})
    assert settled(w.pool, [])
    w.pool.finish(0, label="e")
    assert len(examined.get()) == 1
    assert w.pool.wait_for(1) == [1]


def test_every_outcome_passes_the_intake_once(world: MakeWorld) -> None:
    w = world(bounds(2, 1), keep=lambda group: FilterResult(group.group_index == 1, "even"))
    batch = w.next_groups()
    for group_index in w.pool.wait_for(2):
        w.pool.finish(group_index)
    batch.get()
    assert sorted(o.request.group_index for o in w.taken_in) == [0, 1]


def test_an_error_of_the_service_reaches_the_loop_as_it_is(world: MakeWorld) -> None:
    class Full(GroupRecorder):
        def record_outcome(self, outcome: GroupOutcome) -> None:
            raise StoreError("the disk is full")

    w = world(bounds(1, 1), recorder=Full())
    batch = w.next_groups()
    w.pool.wait_for(1)
    w.pool.finish(0)
    with pytest.raises(StoreError, match="the disk is full"):
        batch.get()
    with pytest.raises(StoreError):  # and ever after
        w.service.next_groups(2)


def test_a_fault_of_ours_is_named_as_one(world: MakeWorld) -> None:
    w = world(bounds(1, 1), keep=lambda group: {}["no such key"])
    batch = w.next_groups()
    w.pool.wait_for(1)
    w.pool.finish(0)
    with pytest.raises(EngineError, match="the rollout service broke: KeyError"):
        batch.get()


@pytest.mark.invariant
def test_a_wait_that_is_too_long_says_what_it_waits_for(world: MakeWorld) -> None:
    w = world(bounds(2, 1), wait_s=0.01)
    w.pool.wait_for(2)
    with pytest.raises(
        EngineError,
        match=r"waited 0 s for finished groups: 2 groups are running, 0 are buffered",
    ):
        w.service.next_groups(1)


def test_a_snapshot_holds_what_is_not_trained_yet(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_staleness=1, max_resample_ratio=2.0))
    w.pool.wait_for(4)
    batch = w.next_groups()
    for group_index in (0, 1, 2):
        w.pool.finish(group_index)
    assert sorted(batch.group_indices())[0] == 0
    until(lambda: w.service.snapshot().groups)
    snapshot = w.service.snapshot()
    assert (snapshot.next_group_index, snapshot.outstanding) == (4, (3,))
    assert [group.group_index for group in snapshot.groups] == [2]


def test_a_restored_service_issues_the_outstanding_draws_first(world: MakeWorld) -> None:
    w = world(bounds(3, 1), restored=RolloutState(9, (4, 6), 0, 0))
    assert w.pool.wait_for(3) == [4, 6, 9]
    assert w.service.snapshot().next_group_index == 10


def test_a_snapshot_holds_what_runs_as_it_stands(world: MakeWorld) -> None:
    w = world(bounds(2, 2))
    w.pool.wait_for(2)
    w.pool.saved = [
        GroupState(group_index, (NotResumable(), NotResumable()))
        for group_index in (0, 1, 7)
    ]
    w.pool.finish(0)
    until(lambda: w.ledger.counts()["buffered"] == 2)
    snapshot = w.service.snapshot()
    # 0 waits to be trained, and 7 is nobody's
    assert [group.group_index for group in snapshot.running] == [1]
    assert (snapshot.outstanding, [group.group_index for group in snapshot.groups]) == (
        (1,),
        [0],
    )


def test_what_came_in_while_the_others_were_saved_is_not_lost(world: MakeWorld) -> None:
    w = world(bounds(1, 1))
    w.pool.wait_for(1)
    saved = w.pool.in_flight

    def in_flight() -> list[GroupState]:
        found = saved()
        w.pool.finish(0)
        return found

    w.pool.in_flight = in_flight  # type: ignore[method-assign]
    snapshot = w.service.snapshot()
    assert ([group.group_index for group in snapshot.groups], snapshot.outstanding) == (
        [0],
        (),
    )


def test_a_restored_service_hands_out_what_was_saved_with_its_version(
    world: MakeWorld,
) -> None:
    saved = GroupState(5, (NotResumable("a lock"), NotResumable()), versions={"main": 3})
    w = world(bounds(2, 2), restored=RolloutState(9, (2, 5), 0, 0, running=(saved,)))
    w.pool.wait_for(2)
    assert {group_index: w.pool.open["", group_index].saved for group_index in (2, 5)} == {
        2: None,
        5: saved,
    }
    # both of draw 2, and the one with the lock
    assert w.service.take_counts() == {"count/restarted_episodes": 3}
    w.pool.saved = [replace(saved, versions={})]
    assert [group.versions for group in w.service.snapshot().running] == [{"main": 3}]


def test_a_resumed_group_counts_its_attempts_on(world: MakeWorld) -> None:
    """An id names one attempt, also where a worker died before the checkpoint, and a retry came
    after that.
    """
    failed = outcome(GroupRequest(5, TASKS[5], 1, first_attempt=1), ["failed"])
    retried = replace(failed.group.trajectories[0], attempt=1)
    saved = GroupState(
        5, (NotResumable(),), (retried,), versions={"main": 0}, first_attempt=1
    )
    w = world(bounds(1, 1), restored=RolloutState(9, (5,), 0, 0, running=(saved,)))
    w.pool.wait_for(1)
    (cancelled,) = cancelled_outcome(w.pool.open["", 5]).group.trajectories
    assert cancelled.attempt == 2


def test_with_another_number_of_siblings_what_was_saved_is_begun_anew(
    world: MakeWorld,
) -> None:
    saved = GroupState(5, (NotResumable("a lock"), NotResumable()))
    w = world(bounds(1, 3), restored=RolloutState(9, (5,), 0, 0, running=(saved,)))
    w.pool.wait_for(1)
    assert w.pool.open["", 5].saved is None
    assert w.service.take_counts() == {"count/restarted_episodes": 3}


def test_what_was_not_handed_out_again_yet_is_in_the_next_snapshot(
    world: MakeWorld,
) -> None:
    saved = tuple(
        GroupState(group_index, (NotResumable(),), versions={"main": group_index})
        for group_index in (4, 5)
    )
    w = world(bounds(1, 1), restored=RolloutState(9, (4, 5), 0, 0, running=saved))
    w.pool.wait_for(1)
    assert [group.group_index for group in w.service.snapshot().running] == [5]


def test_what_was_spent_of_a_refill_stays_spent(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_resample_ratio=0.5), restored=RolloutState(5, (), 2, 0))
    assert w.pool.wait_for(1) == [5]
    assert settled(w.pool, [5])


def test_the_rows_that_a_snapshot_counts_are_on_the_disk(
    world: MakeWorld, tmp_path: Path
) -> None:
    w = world(bounds(3, 1))
    w.pool.wait_for(3)
    snapshot = w.service.snapshot()
    assert (
        (tmp_path / "ledger-0.jsonl").read_bytes().count(b"\n")
        == snapshot.ledger_offset
        == 3
    )


def test_close_cancels_what_runs_and_the_ledger_balances(world: MakeWorld) -> None:
    w = world(bounds(2, 3))
    w.pool.wait_for(2)
    w.service.close()
    assert w.pool.cancelled == [0, 1]
    assert w.ledger.counts() == {"cancelled": 6}


def test_close_drops_what_is_buffered(world: MakeWorld) -> None:
    w = world(bounds(2, 3))
    w.pool.wait_for(2)
    w.pool.finish(0)
    w.service.close()
    assert w.ledger.counts() == {"cancelled": 3, "dropped": 3}
    w.service.close()  # a second time does nothing


def test_nothing_is_issued_once_the_last_batch_is_taken(world: MakeWorld) -> None:
    w = world(bounds(2, 1, last_step=1))
    batch = w.next_groups(1)
    for group_index in w.pool.wait_for(2):
        w.pool.finish(group_index)
    batch.get()
    w.service.make_room({"main": 0})
    assert settled(w.pool, [])


def test_an_outcome_of_an_evaluation_that_was_given_up_is_passed_over(
    world: MakeWorld,
) -> None:
    w = world(bounds(1, 1), wait_s=0.01)
    w.pool.wait_for(1)
    with pytest.raises(EngineError, match="waited 0 s for evaluation e"):
        w.service.evaluate([GroupRequest(0, TASKS[0], 1, "eval", "e")])
    w.pool.finish(0, label="e")
    w.service.wait_s = DEADLINE_S
    batch = w.next_groups()
    w.pool.finish(0)
    assert batch.group_indices() == [0]


def test_without_a_service_only_the_groups_asked_for_are_collected() -> None:
    pool = HandPool()
    pool.submit([GroupRequest(0, TASKS[0], 1)])
    pool.finish(0)  # left over from training, and cancelled there
    requests = [
        GroupRequest(group_index, TASKS[group_index], 1, "eval", "rollout")
        for group_index in (0, 1)
    ]
    collected = Future(lambda: collect_groups(pool, requests, DEADLINE_S))
    pool.wait_for(2, "rollout")
    pool.finish(1, label="rollout")
    pool.finish(0, label="rollout")
    assert [(o.request.label, o.request.group_index) for o in collected.get()] == [
        ("rollout", 0),
        ("rollout", 1),
    ]


def test_without_a_service_a_deadline_is_kept_too() -> None:
    with pytest.raises(EngineError, match="none of 1 groups came within 0 s"):
        collect_groups(HandPool(), [GroupRequest(0, TASKS[0], 1)], 0.01)


def test_a_wait_for_a_batch_ends_where_the_run_is_asked_to(world: MakeWorld) -> None:
    stop = StopRequest()
    w = world(bounds(2, 1), stop=stop)
    batch = w.next_groups()
    w.pool.finish(w.pool.wait_for(2)[0])
    stop.ask("SIGTERM")
    with pytest.raises(RunInterruptedError, match="interrupted by SIGTERM"):
        batch.get()
    snapshot = w.service.snapshot()
    assert ([group.group_index for group in snapshot.groups], snapshot.outstanding) == (
        [0],
        (1,),
    )


def test_draws_of_a_batch_that_is_not_trained_are_played_again(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_staleness=1))
    batch = w.next_groups()
    for group_index in w.pool.wait_for(4)[:3]:
        w.pool.finish(group_index)
    assert batch.group_indices() == [0, 1]
    snapshot = w.service.snapshot(again=[0, 1, 2])
    # it waits to be trained, and is not played again
    assert [group.group_index for group in snapshot.groups] == [2]
    assert snapshot.outstanding == (0, 1, 3)


def test_each_group_in_flight_is_in_one_phase(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_staleness=1))
    batch = w.next_groups()
    for group_index in w.pool.wait_for(4)[:3]:
        w.pool.finish(group_index)
    assert batch.group_indices() == [0, 1]
    until(lambda: w.service.now()["queues"].get("buffered"))
    w.pool.does = {"no_worker": 4}
    assert w.service.now() == {
        "queues": {"running": 1, "buffered": 1, "training": 2, "batch": 2},
        "no_worker": 4,
        "groups": [
            {"group": 3, "phase": "running", "staleness": 0},
            {"group": 2, "phase": "buffered", "staleness": -math.inf},  # without any token
        ],
    }
    w.service.make_room({"main": 1})
    now = w.service.now()
    assert now["queues"]["training"] == 0
    assert now["groups"][0] == {"group": 3, "phase": "running", "staleness": 1}


def test_a_wait_that_is_too_long_names_the_episode_that_waits_longest(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentrl.controller.rollout_service._SLOW_S", 0.0)
    w = world(bounds(1, 1))
    waits = (("0-2-0", "tool python", 42.0), ("0-1-0", "the model", 9.0))
    rows = [dict(zip(("episode", "waits_for", "s"), one, strict=True)) for one in waits]
    w.pool.does = {"episodes": rows}
    batch = w.next_groups()
    until(lambda: bool(caplog.records))
    w.pool.wait_for(1)
    w.pool.finish(0)
    assert batch.group_indices() == [0]
    told = caplog.records[0].getMessage()
    assert told.endswith("; 0-2-0 waits for tool python since 42 s")


def test_a_slow_wait_is_logged_once(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentrl.controller.rollout_service._SLOW_S", 0.0)
    w = world(bounds(1, 1))
    batch = w.next_groups()
    until(lambda: bool(caplog.records))
    w.pool.wait_for(1)
    w.pool.finish(0)
    assert batch.group_indices() == [0]
    (record,) = (
        r for r in caplog.records if r.name == "agentrl.controller.rollout_service"
    )
    told = vars(record)
    assert (told["event"], told["what"], record.levelname) == (
        "slow_wait",
        "finished groups",
        "WARNING",
    )
