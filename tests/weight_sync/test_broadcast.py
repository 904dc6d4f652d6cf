"""A broadcast that breaks off says why, in the words of what carried it."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from agentrl.errors import EngineError
from agentrl.weight_sync import BroadcastSender
from tests.engines.servers.broken_server import says
from tests.engines.servers.test_server_events import DONE, Build, build, place

__all__ = ["build", "place"]


class LeavesTheGroup:
    """The two routes of a server that joins a group over gloo, and is gone when tensors come."""

    def __init__(self) -> None:
        self.group: Any = None

    def join(self, handler: Any) -> None:
        body = json.loads(handler.body)
        name = body["group_name"]
        store: Any = dist.TCPStore(body["master_address"], body["master_port"], is_master=False)
        for prefix in (name, f"{name}/", "cpu/"):  # as torch nests a group's keys
            store = dist.PrefixStore(prefix, store)
        self.group = dist.ProcessGroupGloo(store, body["rank_offset"], body["world_size"])
        DONE(handler)

    def receive(self, handler: Any) -> None:
        self.group = None  # its connections end with it
        DONE(handler)


def test_what_broke_a_broadcast_off_is_told(build: Build) -> None:
    server = LeavesTheGroup()
    engine, _ = build(
        sender=BroadcastSender,
        server_info=says(b'{"version": "0.5.23", "dtype": "float32", "device": "cpu"}'),
        begin_weight_update=DONE,
        end_weight_update=DONE,
        init_weights_update_group=server.join,
        update_weights_from_distributed=server.receive,
    )
    engine.pause("retract")
    session = engine.begin_update(1)
    session.put("model.norm.weight", torch.from_numpy(np.ones(4, np.float32)))
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
    joining = [own for own in threading.enumerate() if own.name.startswith("agentrl-join-group")]
    assert all(thread.daemon for thread in joining)
    assert joining  # it waits for a server that never comes
