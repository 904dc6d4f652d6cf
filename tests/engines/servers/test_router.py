"""Requests go where their episode's KV is, and otherwise to the least loaded server."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.engines.servers.router import Router


@dataclass(eq=False)
class Place:
    name: str
    serving: bool = True
    running: int = 0


def places() -> tuple[Place, Place, Place]:
    return Place("a"), Place("b"), Place("c")


def test_a_session_stays_where_it_is() -> None:
    a, b, c = places()
    router = Router((a, b, c))
    assert router.choose("s") is a
    a.running = 9
    assert router.choose("s") is a


def test_a_new_session_goes_where_least_is_running() -> None:
    a, b, c = places()
    a.running, b.running, c.running = 3, 1, 2
    assert Router((a, b, c)).choose("s") is b


def test_sessions_are_spread_where_nothing_runs_yet() -> None:
    all_places = places()
    router = Router(all_places)
    chosen = [router.choose(f"s{n}") for n in range(6)]
    assert [chosen.count(place) for place in all_places] == [2, 2, 2]


def test_a_session_moves_when_its_server_does_not_serve() -> None:
    a, b, c = places()
    router = Router((a, b, c))
    assert router.choose("s") is a
    a.serving = False
    assert router.choose("s") is b
    a.serving = True
    assert router.choose("s") is b


def test_a_request_avoids_a_server_that_failed_it() -> None:
    a, b, _ = places()
    router = Router((a, b))
    assert router.choose("s") is a
    assert router.choose("s", [a]) is b


def test_a_server_that_failed_a_request_is_taken_where_no_other_serves() -> None:
    a, b, _ = places()
    b.serving = False
    assert Router((a, b)).choose("s", [a]) is a


def test_none_is_chosen_where_none_serves() -> None:
    a = Place("a", serving=False)
    assert Router((a,)).choose("s") is None


def test_a_session_that_ended_is_forgotten() -> None:
    a, b, _ = places()
    router = Router((a, b))
    assert router.choose("s") is a
    a.running = 1
    assert router.choose("s") is a
    router.forget("s")
    assert router.choose("s") is b
