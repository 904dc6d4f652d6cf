"""What becomes of a pool's workers and groups, by events alone: no clock, no process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrl.controller.cluster.places import (
    Action,
    AskGroups,
    AskNode,
    Fail,
    Finish,
    Kill,
    Order,
    Place,
    Places,
    Send,
    Start,
    Tell,
    WorkerFault,
)
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.errors import EngineError, WeightMismatchError
from agentrl.rollouts import GroupRequest, GroupState, NotResumable
from tests.controller.hand_pool import TASKS, outcome

DIED = WorkerFault(EngineError("it died"))
CORRUPT = WorkerFault(EngineError("its engine is corrupt"), by_groups=False)


def places(
    *nodes: str, max_losses: int | None = 3, version: int | None = 1, most: int = 0
) -> Places:
    """Serving places on such nodes; with a version, they were verified to serve it."""
    made = Places(len(nodes), max_losses=max_losses, most=most)
    for place, node in zip(made.by_number.values(), nodes, strict=True):
        place.node = node
        made.built(place)
    if version is not None:
        made.published(version)
        for place in made.by_number.values():
            made.verified(place, version)
    made.take()
    return made


def request(index: int) -> GroupRequest:
    return GroupRequest(index, TASKS[index], 2)


def kinds(made: Places) -> list[Any]:
    """What is to be done, but for what is told: each action's name, and the worker or node."""
    told = []
    for action in made.take():
        match action:
            case Start(place, without):
                told.append(("start", place.number, *sorted(without)))
            case Kill(place):
                told.append(("kill", place.number))
            case Send(place):
                told.append(("send", place.number))
            case Order(place, method, groups):
                told.append((method, place.number, *map(index_of, groups)))
            case AskGroups(place):
                told.append(("groups", place.number))
            case AskNode(node):
                told.append(("ask", node))
            case Finish(ended):
                told.append(("finish", ended.request.group_index))
            case Fail(_, error, losses):
                told.append(("fail", str(error), losses))
    return told


def index_of(group: Any) -> int:
    return group[1] if isinstance(group, tuple) else group.group_index


def events(made: Places) -> list[str]:
    return [action.incident.event for action in made.take() if isinstance(action, Tell)]


def told_as(actions: list[Action], event: str) -> list[Incident]:
    told = [action.incident for action in actions if isinstance(action, Tell)]
    return [incident for incident in told if incident.event == event]


def kill(made: Places, number: int, fault: WorkerFault = DIED) -> Place:
    """A worker dies, its node answers; the one after it serves."""
    place = made.by_number[number]
    made.failed(place, fault)
    if place.node:
        made.node_told(place.node, answers=True)
    return serve(made, number)


def serve(made: Places, number: int, node: str = "n") -> Place:
    """A worker that was started again comes up."""
    place = made.by_number[number]
    place.node = node
    made.built(place)
    if made.version is not None:
        made.verified(place, made.version)
    return place


def states(made: Places) -> list[str]:
    return [place.state for place in made.by_number.values()]


def test_a_worker_serves_once_its_engine_stands_where_nothing_was_published() -> None:
    made = Places(2, max_losses=3)
    assert states(made) == ["starting", "starting"]
    made.built(made.by_number[0])
    assert states(made) == ["serving", "starting"]
    assert made.awaited == []


def test_only_a_verified_update_leads_from_a_start_to_serving() -> None:
    made = places("n", most=2)
    made.cluster_seen((), {"n": 1})
    fresh = made.by_number[1]
    assert (fresh.state, kinds(made)) == ("starting", [("start", 1)])
    made.built(fresh)
    assert (fresh.state, kinds(made)) == ("stale", [("send", 1)])
    made.published(2)
    made.verified(fresh, 1)
    assert fresh.state == "stale"
    made.verified(fresh, 2)
    assert fresh.state == "serving"


STATES: dict[str, tuple[Callable[[Places], object], Callable[[Places], object]]] = {
    # what leads to a state from serving, and what almost does
    "starting": (
        lambda made: kill_unserved(made, 0),
        lambda made: made.failed(made.by_number[0], DIED),  # its node was not asked yet
    ),
    "stale": (
        lambda made: (made.late(made.by_number[0]), made.answered(made.by_number[0])),
        lambda made: made.published(2),  # it serves on until it has them
    ),
    "suspect": (
        lambda made: made.late(made.by_number[0]),
        lambda made: made.answered(made.by_number[0]),
    ),
    "serving": (
        lambda made: (kill_unserved(made, 0), serve(made, 0)),
        lambda made: (
            kill_unserved(made, 0),
            made.built(made.by_number[0]),
        ),  # not verified
    ),
    "dead": (
        lambda made: kill_unserved(made, 0),
        lambda made: (made.late(made.by_number[0]), made.answered(made.by_number[0])),
    ),
}


def kill_unserved(made: Places, number: int) -> None:
    made.failed(made.by_number[number], DIED)
    made.node_told("n", answers=True)


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_reached_by_what_it_means_and_by_nothing_less(state: str) -> None:
    for leads, does in zip((True, False), STATES[state], strict=True):
        made = places("n", "n")
        first = made.by_number[0]
        does(made)
        # another worker takes the number of a dead one
        place = first if state == "dead" else made.by_number[0]
        assert (place.state == state) == leads


def test_a_late_worker_gets_no_groups_and_holds_no_publish() -> None:
    made = places("n", "n")
    late, other = made.by_number.values()
    made.published(2)
    assert made.awaited == [late, other]
    made.late(late)
    assert (late.state, made.awaited) == ("suspect", [other])
    made.take()
    made.given([request(0), request(1)])
    assert kinds(made) == [("submit", 1, 0, 1)]


def test_a_worker_that_is_late_and_answers_serves_after_a_verified_update() -> None:
    made = places("n", "n")
    place = made.by_number[0]
    made.late(place)
    made.answered(place)
    assert (place.state, kinds(made)) == ("stale", [("send", 0)])
    made.answered(place)
    assert (place.state, kinds(made)) == ("stale", [])
    made.verified(place, 1)
    assert place.state == "serving"
    assert events(made) == ["worker_joined"]


def test_one_that_answers_in_time_is_told_of_nothing() -> None:
    made = places("n", "n")
    made.answered(made.by_number[0])
    assert (states(made), made.take()) == (["serving", "serving"], [])


def test_a_worker_that_dies_is_replaced_once_its_node_has_answered_and_its_groups_go_on() -> (
    None
):
    made = places("n", "n")
    made.given([request(0), request(1)])
    dead = made.by_number[0]
    made.take()
    made.failed(dead, DIED)
    assert kinds(made) == [("ask", "n")]
    made.failed(dead, DIED)
    made.node_told("n", answers=True)
    assert kinds(made) == [("kill", 0), ("start", 0), ("submit", 1, 0)]
    assert dead.state == "dead"
    assert [r.first_attempt for r in made.by_number[1].groups.values()] == [0, 1]


def test_each_change_of_a_worker_that_a_person_should_know_is_told() -> None:
    made = places("n", "n")
    made.late(made.by_number[0])
    kill(made, 0)
    told = [action for action in made.take() if isinstance(action, Tell)]
    assert [(one.incident.event, one.worker, one.alerts) for one in told] == [
        ("worker_suspect", 0, True),
        ("worker_lost", 0, True),
        ("worker_replaced", 0, True),
        ("worker_stale", 0, True),
        ("worker_joined", 0, True),
    ]
    first = Places(1, max_losses=3)
    first.built(first.by_number[0])
    assert [action.alerts for action in first.take() if isinstance(action, Tell)] == [False]


@pytest.mark.parametrize("losses", [3, 4])
def test_one_loss_too_many_between_two_publishes_ends_the_run(losses: int) -> None:
    made = places("n", "n")
    for _ in range(losses):
        kill(made, 0)
    failed = [one for one in kinds(made) if one[0] == "fail"]
    assert failed == ([("fail", "it died", 4)] if losses == 4 else [])


def test_a_publish_counts_losses_from_none() -> None:
    made = places("n", "n")
    for _ in range(3):
        kill(made, 0)
    made.published(2)
    kill(made, 0)
    assert "fail" not in {one[0] for one in kinds(made)}


def test_two_workers_that_die_in_one_publish_are_not_waited_for() -> None:
    made = places("n", "n", "n")
    made.published(2)
    for number in (0, 1):
        made.failed(made.by_number[number], CORRUPT)
    made.node_told("n", answers=True)
    assert made.losses == 2
    assert made.awaited == [made.by_number[2]]
    made.verified(made.by_number[2], 2)
    assert made.awaited == []
    assert serve(made, 0).version == 2


def test_a_worker_that_nothing_stands_in_for_ends_the_run() -> None:
    made = places("n", max_losses=None, version=None)
    made.failed(made.by_number[0], DIED)
    assert kinds(made) == [("fail", "it died", 1)]


def test_weights_that_differ_keep_their_error() -> None:
    made = places("n", max_losses=0)
    kill_by = WorkerFault(WeightMismatchError("it computes otherwise"), by_groups=False)
    made.failed(made.by_number[0], kill_by)
    made.node_told("n", answers=True)
    (failed,) = [action for action in made.take() if isinstance(action, Fail)]
    assert isinstance(failed.error, WeightMismatchError)


def test_a_group_that_was_in_flight_at_two_deaths_is_played_alone_and_dropped_at_the_third() -> (
    None
):
    made = places("n", "n")
    made.given([request(0), request(1)])
    kill(made, 0)
    kill(made, 1)
    alone, other = made.by_number.values()
    made.given([request(2)])
    assert list(alone.groups) == [("", 0)]
    assert list(other.groups) == [("", 1), ("", 2)]
    made.take()
    kill(made, 0)
    done = made.take()
    (ended,) = [action.outcome for action in done if isinstance(action, Finish)]
    assert {str(t.status) for t in ended.group.trajectories} == {"cancelled(kills_worker)"}
    (told,) = told_as(done, "kills_worker")
    assert "group 0 is dropped" in str(told)
    assert "task '0'" in str(told)
    # three deaths that one group explains count as one
    assert made.losses == 1


def test_a_place_is_kept_free_for_a_group_that_is_played_alone() -> None:
    made = places("n", "n")
    made.given([request(0), request(1)])
    kill(made, 0)
    made.given([request(5)])
    kept = made.by_number[0]
    made.failed(made.by_number[1], DIED)
    made.node_told("n", answers=True)
    made.given([request(6)])
    assert list(kept.groups) == [("", 5)]
    made.returned(kept, outcome(request(5)))
    assert list(kept.groups) == [("", 0)]
    made.returned(kept, outcome(request(0)))
    assert list(kept.groups) == [("", 1), ("", 6)]


def test_a_group_that_is_innocent_of_two_deaths_is_played_alone_and_comes_back() -> None:
    made = places("n")
    made.given([request(0), request(1)])
    for _ in range(2):
        kill(made, 0)
    place = made.by_number[0]
    assert list(place.groups) == [("", 0)]
    made.returned(place, outcome(request(0)))
    assert list(place.groups) == [("", 1)]
    made.returned(place, outcome(request(1)))
    made.given([request(2), request(3)])
    assert len(place.groups) == 2
    assert made.losses == 2


@pytest.mark.parametrize("fault", [CORRUPT, None])
def test_deaths_that_no_group_can_have_caused_are_held_against_none(
    fault: WorkerFault | None,
) -> None:
    made = places("n")
    made.given([request(0)])
    for _ in range(3):
        if fault is not None:
            kill(made, 0, fault)
        else:
            made.failed(made.by_number[0], DIED)
            made.node_told("n", answers=False)
            made.node_told("n", answers=True)
            serve(made, 0)
    assert list(made.by_number[0].groups) == [("", 0)]
    assert [one for one in kinds(made) if one[0] == "finish"] == []


def test_a_lost_node_is_one_loss_and_its_workers_are_started_elsewhere() -> None:
    made = places("far", "near", "far", max_losses=1)
    made.given([request(index) for index in range(3)])
    made.take()
    made.failed(made.by_number[0], DIED)
    assert kinds(made) == [("ask", "far")]
    made.node_told("far", answers=False)
    todo = made.take()
    (told,) = told_as(todo, "node_lost")
    assert told.counts == {
        "count/lost_workers": 2,
        "count/replayed_groups": 2,
        "count/lost_nodes": 1,
    }
    assert "rollout workers 0, 2 are lost with it" in str(told)
    starts = [(a.place.number, a.without) for a in todo if isinstance(a, Start)]
    assert starts == [(0, {"far"}), (2, {"far"})]
    assert made.losses == 1
    assert len(made.by_number[1].groups) == 3


def test_a_lost_node_comes_back_to_workers_that_wait_and_restarts_no_other() -> None:
    made = places("far", "near", "far")
    made.failed(made.by_number[0], DIED)
    made.node_told("far", answers=False)
    elsewhere = serve(made, 2, "near")
    made.overdue_start(made.by_number[0])
    (told,) = told_as(made.take(), "worker_waits")
    assert "rollout worker 0 waits for a machine with room for it" in str(told)
    assert "(far)" in str(told)
    made.node_told("far", answers=False)
    assert kinds(made) == []
    made.node_told("far", answers=True)
    todo = made.take()
    assert len(told_as(todo, "node_back")) == 1
    assert [type(action) for action in todo if not isinstance(action, Tell)] == [
        Kill,
        Start,
    ]
    assert made.by_number[2] is elsewhere
    assert made.lost_nodes == set()
    made.node_told("far", answers=True)
    assert kinds(made) == []


def test_room_that_was_found_is_for_workers_that_wait_alone() -> None:
    made = places("far", "near", "far")
    made.failed(made.by_number[0], DIED)
    made.node_told("far", answers=False)
    elsewhere = serve(made, 2, "near")
    made.take()
    waiting = made.by_number[0]
    made.room_found()
    todo = [action for action in made.take() if isinstance(action, Kill | Start)]
    assert [(type(action), action.place.number) for action in todo] == [
        (Kill, 0),
        (Start, 0),
    ]
    # a setup that waits for the one that was ended would wait for ever
    assert waiting.state == "dead"
    assert made.by_number[2] is elsewhere


def test_workers_join_where_nodes_have_room_and_no_more_than_there_may_be() -> None:
    made = places("n", "n", most=5)
    made.cluster_seen((), {"n": 0, "far": 2})
    assert kinds(made) == [("start", 2), ("start", 3)]
    # the two have no machine yet, and may take what was seen
    made.cluster_seen((), {"far": 2})
    assert kinds(made) == []
    serve(made, 2, "far")
    made.cluster_seen((), {"n": 1, "far": 3})
    assert [one for one in kinds(made) if one[0] == "start"] == [("start", 4)]
    made.cluster_seen((), {"n": 9})
    assert [one for one in kinds(made) if one[0] == "start"] == []


def test_nobody_joins_on_a_node_that_is_lost_or_drained() -> None:
    made = places("n", "far", most=3)
    made.failed(made.by_number[1], DIED)
    made.node_told("far", answers=False)
    serve(made, 1)
    made.take()
    made.cluster_seen(["old"], {"far": 4, "old": 4})
    assert kinds(made) == []
    made.cluster_seen(["old"], {"far": 4, "old": 4, "n": 1})
    assert kinds(made) == [("start", 2, "far", "old")]


def test_one_that_joined_and_finds_no_machine_is_given_up_and_may_join_again() -> None:
    made = places("n", most=2)
    made.cluster_seen((), {"n": 1})
    made.take()
    made.overdue_start(made.by_number[1])
    assert (kinds(made), list(made.by_number)) == ([("kill", 1)], [0])
    made.cluster_seen((), {"n": 1})
    assert kinds(made) == [("start", 1)]


def test_one_that_joined_and_dies_is_a_loss_and_is_not_started_again_without_room() -> None:
    made = places("n", most=2)
    made.cluster_seen((), {"n": 1})
    place = serve(made, 1)
    made.given([request(0), request(1)])
    made.take()
    made.failed(place, DIED)
    made.node_told("n", answers=True)
    assert kinds(made) == [("ask", "n"), ("kill", 1), ("submit", 0, 1)]
    assert (made.losses, list(made.by_number)) == (1, [0])


def test_a_worker_leaves_a_node_that_is_drained_and_its_groups_go_on_from_their_turns() -> (
    None
):
    made = places("n", "far", max_losses=0)
    made.given([request(0), request(1)])
    made.take()
    made.cluster_seen(["far"], {})
    leaving = made.by_number[1]
    assert (leaving.state, kinds(made)) == ("leaving", [("groups", 1)])
    # meanwhile it gets no groups, and no publish waits for it or makes it serve
    made.given([request(2)])
    made.published(2)
    made.verified(leaving, 2)
    made.cluster_seen(["far"], {})
    assert (leaving.state, kinds(made)) == ("leaving", [("submit", 0, 2), ("send", 0)])
    state = GroupState(1, (NotResumable("as told"), NotResumable()))
    made.left(leaving, [state])
    todo = made.take()
    (told,) = told_as(todo, "worker_left")
    assert told.counts == {"count/drained_workers": 1, "count/replayed_groups": 1}
    (start,) = [action for action in todo if isinstance(action, Start)]
    assert (start.place.number, start.without) == (1, {"far"})
    again = made.by_number[0].groups["", 1]
    assert again.saved is state
    assert (again.first_attempt, made.losses) == (1, 0)


@pytest.mark.parametrize("node_answers", [True, False])
def test_one_that_dies_while_it_leaves_is_no_loss(node_answers: bool) -> None:
    made = places("n", "far", max_losses=0)
    made.given([request(0), request(1)])
    made.cluster_seen(["far"], {})
    made.take()
    made.failed(made.by_number[1], DIED)
    made.node_told("far", answers=node_answers)
    assert kinds(made) == [("kill", 1), ("start", 1, "far"), ("submit", 0, 1)]
    assert made.losses == 0


def test_one_that_plays_nothing_leaves_at_once_and_one_that_joined_for_good() -> None:
    made = places("n", "far", most=3)
    made.cluster_seen((), {"far": 1})
    serve(made, 2, "far")
    made.take()
    made.cluster_seen(["far"], {"n": 1})
    todo = kinds(made)
    # the one that is kept takes the room, wherever it is
    assert todo == [("kill", 1), ("start", 1, "far"), ("kill", 2)]
    serve(made, 1)
    made.take()
    made.cluster_seen((), {"n": 1})
    assert kinds(made) == [("start", 2)]


def test_what_was_cancelled_is_not_played_again() -> None:
    made = places("n", "n")
    made.given([request(0), request(1)])
    made.take()
    made.cancelled([("", 0)])
    assert kinds(made) == [("cancel", 0, 0)]
    kill(made, 0)
    assert [one for one in kinds(made) if one[0] in ("finish", "submit")] == [("finish", 0)]


def test_groups_wait_where_nobody_serves_and_may_be_cancelled_there() -> None:
    made = Places(1, max_losses=3)
    made.given([request(0), request(1)])
    made.cancelled([("", 1)])
    assert kinds(made) == [("finish", 1)]
    made.built(made.by_number[0])
    assert kinds(made) == [("submit", 0, 0)]


def test_an_outcome_of_a_group_that_is_no_longer_the_workers_counts_for_nothing() -> None:
    made = places("n", "n")
    made.given([request(0)])
    gone = made.by_number[0]
    kill(made, 0)
    made.take()
    made.returned(gone, outcome(request(7)))
    assert kinds(made) == []


def test_a_group_goes_on_from_the_rollouts_that_finished_under_an_id_of_its_own() -> None:
    made = places("n", "n")
    asked = request(0)
    made.given([asked])
    place = made.by_number[0]
    one, other = outcome(asked, ["failed"]).group.trajectories
    for trajectory in (one, other):
        assert made.ended(place, trajectory)
    kill(made, 0)
    (again,) = made.by_number[1].groups.values()
    assert again.first_attempt == 1
    assert again.saved is not None
    assert again.saved.rollouts[1] is other


def test_a_stage_begins_with_no_group_of_the_one_before() -> None:
    made = places("n", "n")
    made.given([request(0)])
    made.set_up()
    assert (states(made), made.waiting, made.take()) == (["starting"] * 2, [], [])
    assert not any(place.groups for place in made.by_number.values())
