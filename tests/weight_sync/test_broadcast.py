"""Weights by broadcast, over real gloo: the trainer's rank 0 sends to the servers that there are. A
broadcast that breaks off says why, in the words of what carried it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.sglang import SGLangEngine
from agentrl.errors import EngineError, StaleWeightsError
from agentrl.training import WeightPart
from agentrl.weight_sync import (
    BroadcastSender,
    GroupRoot,
    PartBits,
    ServedCopy,
    ServedWeights,
    group_root,
)
from agentrl.weight_sync.verify import TrainerReference
from tests.engines.servers.broken_server import says
from tests.engines.servers.test_server_events import DONE, Build, build, place
from tests.kit.waiting import until_async

__all__ = ["build", "place"]


INFO = says(b'{"version": "0.5.23", "dtype": "float32", "device": "cpu"}')
NORM = "model.norm.weight"


class Rank:
    """The routes of a server whose one rank joins groups over gloo, and keeps what comes.

    Args:
        sick: once it holds something, the server answers no more whether it is well.
    """

    def __init__(self) -> None:
        self.group: Any = None
        self.joined: list[int] = []
        self.sick: list[bool] = []
        self.received: dict[str, torch.Tensor] = {}
        self.routes = {
            "server_info": INFO,
            "begin_weight_update": DONE,
            "end_weight_update": DONE,
            "destroy_weights_update_group": DONE,
            "init_weights_update_group": self.join,
            "update_weights_from_distributed": self.receive,
            "weights_checker": says(b'{"success": true, "ranks": [{"checksums": {}}]}'),
            "health": lambda handler: says(b"{}", 500 if self.sick else 200)(handler),
        }

    def join(self, handler: Any) -> None:
        body = json.loads(handler.body)
        name = body["group_name"]
        store: Any = dist.TCPStore(
            body["master_address"], body["master_port"], is_master=False
        )
        for prefix in (name, f"{name}/", "cpu/"):  # as torch nests a group's keys
            store = dist.PrefixStore(prefix, store)
        self.joined.append(body["world_size"])
        self.group = dist.ProcessGroupGloo(store, body["rank_offset"], body["world_size"])
        DONE(handler)

    def receive(self, handler: Any) -> None:
        body = json.loads(handler.body)
        for name, shape in zip(body["names"], body["shapes"], strict=True):
            own = torch.empty(shape, dtype=getattr(torch, body["dtypes"][0]))
            try:
                self.group.broadcast(own, 0).wait()
            except RuntimeError as error:
                said = json.dumps({"success": False, "message": str(error)})
                return says(said.encode())(handler)
            self.received[name] = own
        DONE(handler)


class LeavesTheGroup(Rank):
    """It is gone when tensors come."""

    def receive(self, handler: Any) -> None:
        self.group = None  # its connections end with it
        DONE(handler)


class Ranks:
    """What two ranks serve of one tensor, half of it each, and rank 0's end of the groups."""

    def __init__(self) -> None:
        self.copies = ServedCopy(), ServedCopy()
        self.groups = GroupRoot()
        self.called: list[str] = []
        self.weights = self.renew(0)

    def renew(self, version: int) -> ServedWeights:
        whole = torch.arange(4.0) + version
        for rank, copy in enumerate(self.copies):
            half = whole[2 * rank :][:2].clone()
            list(copy.renew([WeightPart(NORM, (4,), (2 * rank,), half)], version))
        reference = TrainerReference({NORM: tensor_checksum(NORM, whole)}, None)  # type: ignore[arg-type]
        places = tuple(copy.places() for copy in self.copies)
        self.weights = ServedWeights(version, "float32", places, reference, self)
        return self.weights

    def ask(self, version: int, names: Sequence[tuple[str, ...]], changes: bool) -> Any:
        return version, names, changes

    def take(self, asked: Any) -> list[list[PartBits]]:
        version, names, changes = asked
        both = zip(self.copies, names, strict=True)
        return [copy.read(version, own, changes=changes) for copy, own in both]

    def root(self, method: str, *args: Any) -> Any:
        self.called.append(method)
        return self.groups(method, *args)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    own = Ranks()
    yield own
    own.groups.close()


def elsewhere(ranks: Ranks) -> Callable[[], BroadcastSender]:
    return lambda: BroadcastSender(elsewhere=lambda: ranks.weights)


def announce(engine: SGLangEngine, weights: ServedWeights) -> None:
    engine.pause("retract")
    session = engine.begin_update(weights.version)
    for name, tensor in weights.announced():
        session.put(name, tensor)
    session.commit()
    engine.resume()


def test_rank_0_sends_what_all_ranks_hold_to_the_servers_of_another_process(
    build: Build, ranks: Ranks
) -> None:
    servers = Rank(), Rank()
    engine, _ = build(servers[1].routes, sender=elsewhere(ranks), **servers[0].routes)
    for version in (1, 2):
        weights = ranks.renew(version)
        announce(engine, weights)
        for server in servers:
            assert server.received[NORM].tolist() == [version + n for n in range(4)]
        # of what was sent, not of what should have been
        assert engine.checksum() == weights.reference.checksum
    # one group for both versions
    assert [server.joined for server in servers] == [[3], [3]]
    assert [method for method in ranks.called if method != "ended"] == [
        "open",
        "send",
        "send",
    ]


async def test_the_group_is_made_again_when_a_server_leaves_and_when_it_returns(
    build: Build, ranks: Ranks
) -> None:
    servers = Rank(), Rank()
    engine, _ = build(servers[1].routes, sender=elsewhere(ranks), **servers[0].routes)
    await asyncio.to_thread(announce, engine, ranks.renew(1))
    servers[1].sick.append(True)
    await until_async(
        lambda: [one.state for one in engine.pool.servers] == ["serving", "lost"]
    )
    await asyncio.to_thread(announce, engine, ranks.renew(2))
    servers[1].sick.clear()
    await asyncio.to_thread(announce, engine, ranks.renew(3))
    assert [server.joined for server in servers] == [[3, 2, 3], [3, 3]]
    assert [server.received[NORM].tolist() for server in servers] == [[3, 4, 5, 6]] * 2


def test_weights_that_are_gone_when_they_are_sent_leave_no_server_waiting(
    build: Build, ranks: Ranks
) -> None:
    server = Rank()
    engine, _ = build(sender=elsewhere(ranks), **server.routes)
    announce(engine, ranks.renew(1))
    weights = ranks.renew(2)
    ranks.renew(3)
    ranks.weights = weights
    with pytest.raises(
        StaleWeightsError, match="version 2 was asked for, and the ranks serve 3"
    ):
        announce(engine, weights)
    assert server.received[NORM].tolist() == [1, 2, 3, 4]


def test_nobody_can_take_the_port_between_its_choice_and_the_servers_joining(
    ranks: Ranks,
) -> None:
    address = ranks.groups.open("group", 2, "gloo", 1.0, None)
    with pytest.raises(OSError, match="in use"), socket.create_server(address):
        pass
    socket.create_connection(address, 5).close()


def test_an_address_at_which_the_sender_does_not_find_itself_is_named(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_root, "_CONNECT", timedelta(milliseconds=100))
    engine, _ = build(
        sender=lambda: BroadcastSender(address="203.0.113.1"), **Rank().routes
    )
    engine.pause("retract")
    with pytest.raises(
        EngineError, match=r"broadcast_address='203\.0\.113\.1' must be an address"
    ):
        engine.begin_update(1)


def test_what_broke_a_broadcast_off_is_told(build: Build) -> None:
    engine, _ = build(sender=BroadcastSender, **LeavesTheGroup().routes)
    engine.pause("retract")
    session = engine.begin_update(1)
    session.put(NORM, torch.from_numpy(np.ones(4, np.float32)))
    with pytest.raises(EngineError, match=r"the weights broke off: .*gloo.*[Cc]onnect"):
        session.commit()


def test_a_join_that_a_server_refuses_keeps_no_process_from_ending(build: Build) -> None:
    engine, _ = build(
        sender=BroadcastSender,
        init_weights_update_group=says(b'{"success": false, "message": "no such backend"}'),
    )
    engine.pause("retract")
    with pytest.raises(EngineError, match="no such backend"):
        engine.begin_update(1)
    joining = [own for own in threading.enumerate() if own.name.startswith("agentrl-group")]
    assert all(thread.daemon for thread in joining)
    assert joining  # it waits for a server that never comes
