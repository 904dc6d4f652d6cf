"""A server that is started again gets the weights served now from where the ranks keep them, and is
probed: it serves only where it computes what the others do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from agentrl.engines import EnginePlace
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.errors import StaleWeightsError
from agentrl.types.clock import WaitClock, counted_by
from agentrl.weight_sync import DiskSender, HttpSender, SharedMemorySender
from agentrl.weight_sync.batches import BatchSender
from tests.engines.servers.sglang_answers import request
from tests.engines.servers.test_server_events import CONFIG, TENSORS, place, publish
from tests.kit.waiting import DEADLINE_S, until, until_async

__all__ = ["place"]


@pytest.fixture
def score(tmp_path: Path) -> Path:
    """What a server that starts now will score."""
    path = tmp_path / "score"
    path.write_text("-2.0")
    return path


class Ranks:
    """What the ranks serve; ``ahead`` once they keep the next version already. They give nothing
    before they are ``freed``, and raise ``faults`` first.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.faults: list[Exception] = []
        self.ahead = threading.Event()
        self.turned_away = threading.Event()
        self.freed = threading.Event()
        self.freed.set()

    def __call__(self, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        self.asked.append(version)
        self.freed.wait(DEADLINE_S)
        if self.faults:
            raise self.faults.pop()
        for name, tensor in TENSORS.items():
            yield name, torch.from_numpy(tensor)
        if self.ahead.is_set():
            self.turned_away.set()
            raise StaleWeightsError("the ranks serve a later version")


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


@pytest.fixture
def sender() -> type[BatchSender]:
    return HttpSender


def started(
    place: EnginePlace, score: Path, sender: BatchSender, servers: int = 1
) -> SGLangEngine:
    """An engine that has published once."""
    command = (sys.executable, str(Path(__file__).with_name("fake_sglang.py")), str(score))
    spec = SGLangEngineSpec(
        command=command, device="cpu", max_restarts=2, num_servers=servers
    )
    engine = SGLangEngine(place, spec, sender)
    publish(engine, 1, TENSORS)
    engine.score([5, 7, 9])
    return engine


@pytest.fixture
def engine(
    place: EnginePlace, score: Path, ranks: Ranks, sender: type[BatchSender]
) -> Iterator[SGLangEngine]:
    engine = started(place, score, sender(ranks))
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


def labels(engine: SGLangEngine) -> list[str]:
    """Of the weights that the server had since it was started, without their owner."""
    [server] = engine.pool.servers
    answer = httpx.get(f"{server.client.url}/labels", trust_env=False).json()
    return [label.rpartition(".")[2] for label in answer]


def test_a_server_that_computes_the_same_serves_again(
    engine: SGLangEngine, score: Path, ranks: Ranks
) -> None:
    score.write_text("-2.001")  # within the rounding of float32
    kill(score)
    events: list[str] = []

    def came_back() -> bool:
        events.extend(notice.event for notice in engine.take_notices())
        return "server_restarted" in events

    until(came_back)
    assert events == ["server_lost", "server_restarted"]
    assert state(engine) == "serving"
    # what it started with is none of the engine's versions, and so serves nobody
    assert (ranks.asked, labels(engine)) == ([1], ["before", "1"])


def test_who_finds_the_only_server_lost_may_wait_for_its_restart_at_once(
    engine: SGLangEngine,
) -> None:
    async def lose() -> str:
        [server] = engine.pool.servers
        engine.pool.lose(server, "it answered half")
        # raised where none would come back
        engine.pool.require_any_live()
        return server.state

    assert engine.submit(lose()).result() == "starting"
    until(lambda: any(n.event == "server_restarted" for n in engine.take_notices()))


async def test_a_request_waits_for_the_only_server_and_no_deadline_counts_it(
    engine: SGLangEngine, ranks: Ranks
) -> None:
    ranks.freed.clear()

    async def lose() -> None:
        engine.pool.lose(engine.pool.servers[0], "it answered half")

    engine.submit(lose()).result()
    waits = WaitClock()
    with counted_by(waits):
        call = asyncio.create_task(engine.generate(request()))
    await until_async(lambda: waits.wait_s)
    # one that starts is waited for as long as that takes
    assert not call.done()
    await engine.abort(["episode/0"])
    assert (await call).finish_reason == "abort"
    ranks.freed.set()


def test_servers_that_restart_at_once_are_sent_the_weights_one_after_the_other(
    place: EnginePlace, score: Path
) -> None:
    told: list[str] = []

    class Sender(HttpSender):
        """It has memory for one batch, and serves both."""

        def catch_up(self, update: ServerUpdate) -> None:
            told.append("begins")
            if len(told) == 1:
                until(lambda: [one.state for one in engine.pool.servers] == ["joining"] * 2)
                engine.submit(asyncio.sleep(0)).result()
            super().catch_up(update)
            told.append("ends")

    engine = started(place, score, Sender(Ranks()), servers=2)
    try:
        kill(score)
        until(lambda: [one.restarts for one in engine.pool.servers] == [1, 1])
        until(lambda: [one.state for one in engine.pool.servers] == ["serving"] * 2)
    finally:
        engine.close()
    assert told == ["begins", "ends"] * 2


def test_a_start_that_fails_in_any_way_is_tried_again(
    engine: SGLangEngine, score: Path, ranks: Ranks
) -> None:
    ranks.faults.append(KeyError("model.norm.weight"))
    kill(score)
    until(lambda: len(engine.pool.notices) == 3)
    lost, failed, restarted = engine.take_notices()
    assert [lost.event, restarted.event] == ["server_lost", "server_restarted"]
    assert "server 0, start 2: KeyError: 'model.norm.weight'" in failed.message


def test_a_mixture_that_restarts_may_differ_by_other_experts(
    place: EnginePlace, score: Path, ranks: Ranks
) -> None:
    mixture = {**CONFIG, "num_experts": 4, "tie_word_embeddings": False}
    Path(place.model, "config.json").write_text(json.dumps(mixture))
    engine = started(replace(place, dtype="bfloat16"), score, HttpSender(ranks))
    try:
        score.write_text("-2.5")  # a dense model's server may differ by .03
        kill(score)
        until(lambda: len(engine.pool.notices) == 2)
        assert engine.take_notices()[1].event == "server_restarted"
    finally:
        engine.close()


def test_a_server_that_starts_comes_up_before_the_engine_sleeps(
    engine: SGLangEngine, score: Path, ranks: Ranks
) -> None:
    ranks.freed.clear()
    kill(score)
    until(lambda: ranks.asked)
    engine.pause("drain")
    with ThreadPoolExecutor(1) as owner:
        sleeping = owner.submit(engine.sleep, ["kv_cache"])
        until(sleeping.running)
        ranks.freed.set()
        sleeping.result()
    assert (state(engine), labels(engine)) == ("serving", ["before", "1", "asleep"])


def test_a_server_that_dies_in_its_release_waits_for_the_engine_to_wake(
    engine: SGLangEngine, score: Path
) -> None:
    score.with_name("dies").touch()
    engine.pause("drain")
    engine.sleep(["kv_cache"])
    [server] = engine.pool.servers
    assert (state(engine), server.restarts) == ("starting", 1)
    # a new start would have ended its client first
    assert server.client
    engine.wake(["kv_cache"])
    engine.resume()
    assert state(engine) == "serving"


def test_a_server_that_restarts_in_the_middle_of_a_publish_gets_the_new_version(
    engine: SGLangEngine, score: Path, ranks: Ranks
) -> None:
    ranks.ahead.set()  # the ranks' copies are renewed before an engine hears of the update
    kill(score)
    until(ranks.turned_away.is_set)
    assert state(engine) != "serving"
    publish(engine, 2, TENSORS)
    until(lambda: any(n.event == "server_restarted" for n in engine.take_notices()))
    assert (ranks.asked, labels(engine)) == ([1], ["before", "2"])
    assert engine.health().policy_version == 2


@pytest.mark.wide
@pytest.mark.parametrize("sender", [HttpSender, SharedMemorySender, DiskSender])
def test_an_update_that_every_server_dies_in_is_served_by_those_that_come_later(
    engine: SGLangEngine, score: Path
) -> None:
    engine.pause("retract")
    session = engine.begin_update(2)
    kill(score)
    until(lambda: state(engine) == "starting")
    for name, tensor in TENSORS.items():
        session.put(name, torch.from_numpy(tensor))
    session.commit()
    # nobody is asked before a server serves the new weights
    assert (state(engine), labels(engine)) == ("serving", ["before", "2"])
    assert engine.checksum().keys() == TENSORS.keys()
    engine.resume()
    assert (engine.health().state, engine.health().policy_version) == ("serving", 2)


def test_a_server_that_died_asleep_waits_for_the_update_that_the_ranks_are_ahead_for(
    engine: SGLangEngine, score: Path, ranks: Ranks
) -> None:
    engine.pause("drain")
    engine.sleep(["graphs", "kv_cache", "weights"])
    kill(score)
    until(lambda: state(engine) == "starting")
    ranks.ahead.set()
    engine.wake(["weights", "kv_cache", "graphs"])
    assert ranks.turned_away.is_set()
    publish(engine, 2, TENSORS)
    assert (state(engine), labels(engine)) == ("serving", ["before", "2"])


def test_without_a_source_a_server_cannot_be_started_again(
    place: EnginePlace, score: Path
) -> None:
    command = (sys.executable, str(Path(__file__).with_name("fake_sglang.py")), str(score))
    spec = SGLangEngineSpec(command=command, device="cpu", max_restarts=1)
    engine = SGLangEngine(place, spec, HttpSender())
    try:
        publish(engine, 1, TENSORS)
        kill(score)
        until(lambda: state(engine) == "gone")
        assert "build it with `served`" in engine.take_notices()[1].message
    finally:
        engine.close()


def test_a_server_that_computes_otherwise_does_not_serve(
    engine: SGLangEngine, score: Path
) -> None:
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


@pytest.mark.slow
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
    assert (state(engine), labels(engine)) == ("serving", ["before", "2"])
    engine.resume()
    assert engine.health().policy_version == 2
