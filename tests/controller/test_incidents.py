"""What a run goes on after is told as soon as it is known, not when the step ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.engines import EngineNotice
from agentrl.metrics import PhaseTimer
from agentrl.store import EventLog, RunDirectory, TrajectoryWriter, read_jsonl
from agentrl.types import Stats
from tests.controller.hand_pool import MakeWorld, bounds
from tests.kit.waiting import until


class View:
    """What a person saw."""

    def __init__(self) -> None:
        self.alerts: list[str] = []

    def step(self, step: int, values: Mapping[str, float], note: str = "") -> None: ...

    def status(self, text: str) -> None: ...

    def message(self, text: str) -> None: ...

    def alert(self, text: str) -> None:
        self.alerts.append(text)


class Rows:
    """A sink that keeps what it was given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, values: Mapping[str, float], stage: str) -> None:
        self.rows.append(dict(values))

    def close(self) -> None: ...


LOST = EngineNotice(
    "server_lost", "server 0 was lost: its process ended", {"count/lost_servers": 1.0}
)
WORKER = EngineNotice(
    "worker_lost",
    "rollout worker 1 died; its 3 groups are played again",
    {"count/lost_workers": 1.0, "count/replayed_groups": 3.0},
)
BACK = EngineNotice(
    "server_restarted", "server 0 serves again after 31 s", {"time/server_away_s": 31.0}
)


def test_an_incident_is_shown_an_event_and_a_metric_of_the_step(tmp_path: Path) -> None:
    directory, view, rows = RunDirectory.create(tmp_path / "run"), View(), Rows()
    events = EventLog(directory)
    with TrajectoryWriter(directory) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=rows, view=view, timer=PhaseTimer()
        )
        incidents: list[Incident] = [LOST, BACK, WORKER, LOST]
        recorder.record_failures(incidents)
        # before any step has ended
        assert view.alerts == [str(incident) for incident in incidents]
        recorder.record_step(TrainState(step=1), [], {}, Stats(), {})
        recorder.record_step(TrainState(step=2), [], {}, Stats(), {})
    events.close()
    told = {
        "count/lost_servers": 2.0,
        "time/server_away_s": 31.0,
        "count/lost_workers": 1.0,
        "count/replayed_groups": 3.0,
    }
    first, second = rows.rows
    assert {name: first[name] for name in told} == told
    assert not told.keys() & second.keys()
    kept = [(row["event"], row["message"]) for row in read_jsonl(directory.events_path)]
    assert kept == [(incident.event, str(incident)) for incident in incidents]


def test_the_service_looks_for_incidents_while_a_batch_is_waited_for(
    world: MakeWorld,
) -> None:
    w = world(bounds(1, 1))
    batch = w.next_groups()
    w.pool.wait_for(1)
    before = w.told.looks
    until(lambda: w.told.looks > before + 1)
    assert not batch.done
    w.pool.finish(0)
    assert batch.group_indices() == [0]
