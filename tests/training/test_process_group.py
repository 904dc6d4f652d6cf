"""Joining, staying and leaving."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from agentrl.errors import TrainingError
from agentrl.training import DistSpec, join, leave


def test_a_world_of_one_needs_no_port_and_can_be_joined_again() -> None:
    join(DistSpec())
    join(DistSpec())
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    leave()
    leave()
    assert not dist.is_initialized()


def test_a_process_stays_in_its_group() -> None:
    join(DistSpec())
    with pytest.raises(TrainingError, match=r"rank 0 of 1 already, asked to be 1 of 2"):
        join(DistSpec(rank=1, world_size=2))


def test_a_missing_peer_ends_the_wait_by_its_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        TrainingError, match=rf"rank 0 of 2 could not join at 127\.0\.0\.1:{port} within 1 s"
    ):
        join(DistSpec(rank=0, world_size=2, port=port, timeout_s=1.0))


def test_a_group_that_nobody_holds_ends_its_threads() -> None:
    join(DistSpec())
    before = gloo_threads()
    holder = [dist.new_group(backend="gloo")]
    holder.append(holder)  # a cycle, as modules and their hooks are
    assert gloo_threads() > before
    del holder
    leave()
    assert gloo_threads() <= before


def gloo_threads() -> int:
    """Threads of gloo in this process."""
    names = (task / "comm" for task in Path("/proc/self/task").iterdir())
    return sum("gloo" in name.read_text() for name in names)
