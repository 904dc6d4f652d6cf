"""Live pages: what a stream of events tells, and how few threads and seconds it takes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from agentrl.store import EventLog, JsonlWriter, RunDirectory, TrajectoryWriter
from agentrl.viewer import following
from agentrl.viewer.runs.open_run import OpenRun
from tests.kit.waiting import until
from tests.viewer.server.viewers import Client, make_trajectory, viewing


def events(response: httpx.Response) -> Iterator[tuple[int, str, Any]]:
    """The events of a stream as they come."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}


def opened(stack: ExitStack, client: Client, path: str) -> Iterator[tuple[int, str, Any]]:
    """The events of a page that stays open until the stack is closed."""
    return events(stack.enter_context(client.stream("GET", path)))


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watch-")]


def stream_path(client: Client) -> str:
    return f"/api/runs/{client.get('/api/runs').json()['runs'][0]['key']}/events"


def test_a_page_is_told_of_trajectories_steps_and_alerts(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with client.stream("GET", stream_path(client)) as response:
        told = events(response)
        first = {kind: data for _, kind, data in (next(told), next(told), next(told))}
        assert first["trajectories"] == {"new": 0, "total": 12}
        assert first["step"] == {"step": 3, "stage": "rl"}
        assert "state" in first
        with TrajectoryWriter(run) as writer:
            writer.write(make_trajectory(tokenizer, 9), 4)
            writer.flush()
            assert next(told)[1:] == ("trajectories", {"new": 1, "total": 13})
        lines = JsonlWriter(run.metrics_path)
        lines.append({"step": 4, "stage": "rl", "time": 1.0})
        lines.close()
        assert next(data for _, kind, data in told if kind == "step") == {
            "step": 4,
            "stage": "rl",
        }
        log = EventLog(run)
        log.log(
            "lost", "a worker died", boundary="engine", level="warning", trajectory="9-0-0"
        )
        log.close()
        number, data = next(
            (number, data) for number, kind, data in told if kind == "alert"
        )
        assert data["text"] == "a worker died"
        assert data["link"] == {"page": "trajectory", "id": "9-0-0"}
    # a page that comes back is told what it missed, and no more
    headers = {"Last-Event-ID": str(number - 1)}
    with client.stream("GET", stream_path(client), headers=headers) as response:
        assert next(events(response))[1] == "alert"


def test_many_pages_share_one_thread_which_ends_with_the_last(client: Client) -> None:
    before = len(watchers())
    path = stream_path(client)
    with ExitStack() as stack:
        pages = [opened(stack, client, path) for _ in range(4)]
        assert {next(page)[1] for page in pages} <= {"state", "step", "trajectories"}
        assert len(watchers()) == before + 1
    until(lambda: len(watchers()) == before)


def test_pages_beyond_the_fourth_leave_connections_free(client: Client) -> None:
    # a browser has six connections to a host: streams that all stayed open would block every page
    path = stream_path(client)
    with ExitStack() as stack:
        staying = [opened(stack, client, path) for _ in range(4)]
        for page in staying:
            next(page)
        text = client.get(path).text  # it ends
    assert "event: trajectories" in text
    assert "retry: 700" in text


def test_a_viewer_ends_at_once_with_pages_open(run: RunDirectory) -> None:
    with viewing(run.root) as address:
        stack = ExitStack()
        client = stack.enter_context(Client(address))
        page = opened(stack, client, stream_path(client))
        next(page)
        began = time.monotonic()
    assert time.monotonic() - began < 60  # it waits for no page
    stack.close()


def test_a_page_is_told_what_follows_an_odd_alert(
    client: Client, run: RunDirectory
) -> None:
    with client.stream("GET", stream_path(client)) as response:
        told = events(response)
        first = {next(told)[1] for _ in range(3)}
        assert first == {"state", "step", "trajectories"}
        odd = {
            "time": 1.0,
            "level": "warning",
            "event": "x",
            "message": "m",
            "blame": "loss",
        }
        with closing(JsonlWriter(run.events_path)) as lines:
            lines.append(odd)
        assert next(data for _, kind, data in told if kind == "alert")["text"] == "m"
        with closing(JsonlWriter(run.metrics_path)) as lines:
            lines.append({"step": 4, "stage": "rl", "time": 1.0})
        assert next(data for _, kind, data in told if kind == "step") == {
            "step": 4,
            "stage": "rl",
        }


def test_a_look_that_fails_is_told_and_the_next_one_goes_on(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter([ZeroDivisionError("by nobody")] * 3)
    sound = following.run_signature

    def signature(of: OpenRun) -> object:
        for fault in faults:
            raise fault
        return sound(of)

    monkeypatch.setattr(following, "run_signature", signature)
    with client.stream("GET", stream_path(client)) as response:
        told = events(response)
        states = [next(told)[1:], next(told)[1:]]
    lost = {"state": "lost", "why": "ZeroDivisionError('by nobody')"}
    assert states == [("state", lost), ("state", {"state": "stopped"})]
    assert [one.event for one in caplog.records if hasattr(one, "event")] == [
        "follow_failed"
    ]


def test_all_alerts_of_a_run_in_the_place_of_another_are_told(
    client: Client, run: RunDirectory
) -> None:
    def alerts(*texts: str) -> None:
        with closing(EventLog(run)) as log:
            for text in texts:
                log.log("x", text, boundary="store", level="warning")

    alerts("old", "older")
    with client.stream("GET", stream_path(client)) as response:
        told = events(response)
        while next(told)[1] != "trajectories":
            pass
        run.events_path.unlink()
        alerts("first", "second", "third")
        found = (data["text"] for _, kind, data in told if kind == "alert")
        assert [next(found) for _ in range(3)] == ["first", "second", "third"]


def test_a_run_that_is_moved_while_watched_is_told(
    client: Client, run: RunDirectory
) -> None:
    with client.stream("GET", stream_path(client)) as response:
        told = events(response)
        while next(told)[1] != "trajectories":
            pass
        away = run.root.rename(run.root.with_name("away"))
        kind, data = next(told)[1:]
        away.rename(run.root)
    assert (kind, data["state"]) == ("state", "lost")
