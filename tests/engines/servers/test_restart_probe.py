"""A server that is started again is probed: it serves only where it computes what the others do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentrl.engines import EnginePlace
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.weight_sync import HttpSender
from tests.engines.servers.test_server_events import TENSORS, place, publish
from tests.kit.waiting import until

__all__ = ["place"]

DEADLINE_S = 60


@pytest.fixture
def score(tmp_path: Path) -> Path:
    """What a server that starts now will score."""
    path = tmp_path / "score"
    path.write_text("-2.0")
    return path


@pytest.fixture
def engine(place: EnginePlace, score: Path) -> Iterator[SGLangEngine]:
    command = (sys.executable, str(Path(__file__).with_name("fake_sglang.py")), str(score))
    spec = SGLangEngineSpec(command=command, device="cpu", max_restarts=2)
    engine = SGLangEngine(place, spec, HttpSender())
    publish(engine, 1, TENSORS)
    engine.score([5, 7, 9])
    yield engine
    engine.close()


def kill(score: Path) -> None:
    """Kills the server, by its command line; its lifeline has the same words and one more."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(score) in words and not any(word.endswith("supervise.py") for word in words):
            os.kill(int(process.name), signal.SIGKILL)


def state(engine: SGLangEngine) -> str:
    return engine.pool.servers[0].state


def test_a_server_that_computes_the_same_serves_again(engine: SGLangEngine, score: Path) -> None:
    score.write_text("-2.001")  # within the rounding of float32
    kill(score)
    events: list[str] = []

    def came_back() -> bool:
        events.extend(notice.event for notice in engine.take_notices())
        return "server_restarted" in events

    until(came_back)
    assert events == ["server_lost", "server_restarted"]
    assert state(engine) == "serving"


def test_a_server_that_computes_otherwise_does_not_serve(engine: SGLangEngine, score: Path) -> None:
    score.write_text("-2.1")
    kill(score)
    until(lambda: state(engine) == "gone")
    lost, first, second, gone = engine.take_notices()
    assert [lost.event, gone.event] == ["server_lost", "server_gone"]
    for failed in (first, second):
        assert failed.event == "server_start_failed"
        assert (
            "server 0 came up with other weights than version 1: its logprobs of the probe differ "
            "by 0.1 on average, at most 0.005 is rounding in float32" in failed.message
        )


def test_before_an_update_is_probed_there_is_nothing_to_agree_with(
    engine: SGLangEngine, score: Path
) -> None:
    publish(engine, 2, TENSORS)
    score.write_text("-2.1")
    kill(score)
    until(lambda: any(n.event == "server_restarted" for n in engine.take_notices()))
    assert state(engine) == "serving"


def test_a_server_that_dies_asleep_starts_once_its_engine_is_awake(
    engine: SGLangEngine, score: Path
) -> None:
    engine.pause("drain")
    engine.sleep(["graphs", "kv_cache", "weights"])
    kill(score)
    until(lambda: state(engine) == "starting")
    engine.wake(["weights"])
    session = engine.begin_update(2)
    for name, tensor in TENSORS.items():
        session.put(name, torch.from_numpy(tensor))
    session.commit()
    # the trainer still has the memory that a server would take
    assert (state(engine), engine.health().state) == ("starting", "asleep")
    engine.wake(["kv_cache", "graphs"])
    assert state(engine) == "serving"
    engine.resume()
    assert engine.health().policy_version == 2
