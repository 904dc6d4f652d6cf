"""Rollouts ahead of training: a batch waits for what must be trained now, or what is stale is
dropped or cancelled; what is surplus too, and each is counted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl.controller.admission import RolloutState
from agentrl.controller.ledger import ledger_rows
from agentrl.controller.state import TrainState
from agentrl.rollouts import GroupRequest
from agentrl.types import Segment, SegmentKind, Trajectory, TrajectoryGroup, Turn
from tests.controller.hand_pool import TASKS, MakeWorld, World, bounds, outcome, settled
from tests.kit.waiting import until


def sampled_by(trajectory: Trajectory, *versions: int) -> Trajectory:
    """The trajectory with one turn, a token of each version."""
    tokens = tuple(
        Segment(
            SegmentKind.POLICY,
            np.asarray([1], np.int32),
            np.asarray([-1.0], np.float32),
            version,
        )
        for version in versions
    )
    prompt = Segment(SegmentKind.PROMPT, np.asarray([0], np.int32))
    turn = Turn(0, None, (prompt,), tokens, "", {"role": "assistant", "content": ""})
    return replace(trajectory, turns=(turn,))


def finish(w: World, group_index: int, *versions: int) -> None:
    """The group comes back with tokens of these versions."""
    request = w.pool.open.pop(("", group_index))
    played = outcome(request)
    group = replace(
        played.group,
        trajectories=tuple(sampled_by(t, *versions) for t in played.group.trajectories),
    )
    w.pool.give(replace(played, group=group))


def test_the_next_batch_is_played_while_one_is_trained(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_staleness=1))
    batch = w.next_groups()
    w.pool.wait_for(4)
    finish(w, 0, 0)
    finish(w, 1, 0)
    assert batch.group_indices() == [0, 1]
    assert settled(w.pool, [2, 3])  # in training 2, running 2: that is (1 + 1)·2
    w.service.before_publish({"main": 1})
    w.service.make_room({"main": 1})
    assert w.pool.wait_for(4) == [2, 3, 4, 5]


def test_no_more_is_played_than_the_last_batches_need(world: MakeWorld) -> None:
    w = world(bounds(2, 1, max_staleness=3, last_step=3))
    w.pool.wait_for(6)
    assert settled(w.pool, [0, 1, 2, 3, 4, 5])


def test_a_batch_waits_for_the_group_that_must_be_trained_now(world: MakeWorld) -> None:
    w = world(bounds(1, 1, max_staleness=1))
    w.pool.wait_for(2)
    batch = w.next_groups(1)
    finish(w, 1, 0)  # draw 0 is a straggler, and may still come into the next batch
    assert batch.group_indices() == [1]
    w.service.before_publish({"main": 1})
    w.service.make_room({"main": 1})
    assert w.pool.wait_for(2) == [0, 2]
    batch = w.next_groups(2)
    finish(w, 2, 1)
    until(lambda: w.ledger.counts()["buffered"] == 1)
    assert settled(w.pool, [0])
    assert not batch.done
    assert w.pool.cancelled == []
    finish(w, 0, 0, 1)
    assert batch.group_indices() == [0]
    w.service.make_room({"main": 2})
    assert w.next_groups(3).group_indices() == [2]
    counts = w.service.take_counts()
    assert counts["async/dropped"] == 0


def test_a_group_that_cannot_meet_the_bound_is_cancelled_before_the_publish(
    world: MakeWorld,
) -> None:
    w = world(bounds(1, 1, max_staleness=1, on_stale="drop"))
    w.pool.wait_for(2)
    for step in (1, 2):
        batch = w.next_groups(step)
        group_index = max(w.pool.wait_for(2))  # draw 0 is a straggler
        finish(w, group_index, step - 1)
        batch.get()
        w.service.before_publish({"main": step})
        if step == 2:
            # its tokens may be of version 0, two versions behind the next batch
            assert w.pool.cancelled == [0]
        w.service.make_room({"main": step})
    until(
        lambda: any(o.group.trajectories[0].status.kind == "cancelled" for o in w.taken_in)
    )
    (cut,) = [o.group.trajectories[0] for o in w.taken_in if o.request.group_index == 0]
    assert str(cut.status) == "cancelled(stale)"
    until(lambda: w.ledger.counts()["cancelled"] == 1)
    assert w.service.take_counts()["async/dropped"] == 1


def test_a_buffered_group_is_dropped_once_it_is_too_old(world: MakeWorld) -> None:
    w = world(bounds(1, 1, max_staleness=1, on_stale="drop"))
    w.pool.wait_for(2)
    first = w.next_groups(1)
    finish(w, 0, 0)
    assert first.group_indices() == [0]
    finish(w, 1, 0)
    until(lambda: bool(w.service.snapshot().groups))
    w.service.make_room({"main": 2})  # published twice: version 0 is two behind
    assert w.service.snapshot().groups == ()
    assert w.service.take_counts()["async/dropped"] == 1
    assert w.ledger.counts()["dropped"] == 1
    assert w.told.dropped == [(["1-0-0"], "stale")]


@pytest.mark.parametrize(("stale", "kept"), [("drop", 0), ("mask_tokens", 1)])
def test_a_group_with_old_and_new_tokens_is_dropped_or_masked(
    world: MakeWorld, stale: str, kept: int
) -> None:
    w = world(bounds(1, 1, max_staleness=1, on_stale=stale))
    w.pool.wait_for(2)
    w.service.make_room({"main": 2})
    finish(w, 0, 0, 2)
    until(lambda: len(w.ledger.counts()) > 1)
    until(lambda: sum(w.ledger.counts()[state] for state in ("buffered", "dropped")) == 1)
    assert w.ledger.counts()["buffered"] == kept


def test_a_group_of_old_tokens_alone_is_dropped_whatever_the_rule(world: MakeWorld) -> None:
    w = world(bounds(1, 1, max_staleness=1, on_stale="mask_tokens"))
    w.pool.wait_for(2)
    w.service.make_room({"main": 2})
    finish(w, 0, 0, 0)
    until(lambda: w.ledger.counts()["dropped"] == 1)


def test_with_masked_tokens_nothing_that_runs_is_cancelled(world: MakeWorld) -> None:
    w = world(bounds(1, 1, max_staleness=1, on_stale="mask_tokens"))
    w.pool.wait_for(2)
    w.service.before_publish({"main": 9})
    assert w.pool.cancelled == []


def test_draws_beyond_a_batch_are_cancelled_once_it_is_full(world: MakeWorld) -> None:
    w = world(bounds(2, 1, oversample=2))
    batch = w.next_groups()
    assert w.pool.wait_for(4) == [0, 1, 2, 3]
    finish(w, 3, 0)
    finish(w, 1, 0)
    assert batch.group_indices() == [3, 1]
    assert w.pool.cancelled == [0, 2]
    until(lambda: w.ledger.counts()["cancelled"] == 2)
    assert settled(w.pool, [])  # nothing is played for weights that are about to change
    w.service.make_room({"main": 1})
    assert w.pool.wait_for(4) == [4, 5, 6, 7]


def test_a_surplus_group_that_had_finished_is_dropped_with_the_next_weights(
    world: MakeWorld,
) -> None:
    w = world(bounds(1, 1, oversample=1))
    batch = w.next_groups()
    w.pool.wait_for(2)
    finish(w, 0, 0)
    finish(w, 1, 0)
    assert batch.group_indices() in ([0], [1])
    until(lambda: w.ledger.counts()["buffered"] == 1 or w.ledger.counts()["cancelled"] == 1)
    w.service.make_room({"main": 1})
    assert w.service.snapshot().groups == ()


def test_with_staleness_what_is_beyond_a_batch_goes_on(world: MakeWorld) -> None:
    w = world(bounds(1, 1, max_staleness=1, oversample=1, on_stale="drop"))
    batch = w.next_groups()
    w.pool.wait_for(3)
    finish(w, 2, 0)
    assert batch.group_indices() == [2]
    assert w.pool.cancelled == []


def test_waiting_groups_of_a_checkpoint_are_trained_first(world: MakeWorld) -> None:
    (played,) = outcome(GroupRequest(4, TASKS[4], 1)).group.trajectories
    group = TrajectoryGroup(4, TASKS[4], (sampled_by(played, 0),))
    w = world(bounds(2, 1), restored=RolloutState(9, (6,), 0, 0, (group,)))
    assert w.pool.wait_for(1) == [6]
    assert w.ledger.counts() == {"buffered": 1, "running": 1}
    assert w.service.take_counts() == {"count/restarted_episodes": 1}
    batch = w.next_groups()
    finish(w, 6, 0)
    assert batch.group_indices() == [4, 6]


def test_a_publish_names_its_policy_and_ages_no_group_of_another(
    world: MakeWorld, tmp_path: Path
) -> None:
    versions = {"main": 3, "guard": 5}
    waiting = []
    for index, (policy, version) in enumerate(versions.items()):
        (played,) = outcome(GroupRequest(index, TASKS[index], 1)).group.trajectories
        own = (sampled_by(played, version),)
        waiting.append(TrajectoryGroup(index, TASKS[index], own, policy))
    state = TrainState(versions=versions)
    w = world(bounds(9, 1), restored=RolloutState(2, (), 0, 0, tuple(waiting)), state=state)
    started = [("main", 3, "retract"), ("guard", 5, "retract")]
    assert w.published == started
    assert w.ledger.counts()["buffered"] == 2
    published = w.service.publish(state, changed=["guard"])
    assert published.versions == {"main": 3, "guard": 6}
    assert w.published == [*started, ("guard", 6, "retract")]
    # what runs for main is as fresh as before, and what waits
    assert w.pool.cancelled == []
    assert w.ledger.counts()["buffered"] == 1
    w.ledger.sync()
    rows = ledger_rows(tmp_path / "ledger-0.jsonl")
    assert [row["policy"] for row in rows if row["to"] == "dropped"] == ["guard"]
