"""Joining, staying and leaving."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from agentrl.errors import ConfigError, TrainingError
from agentrl.training import DistSpec, join, leave
from agentrl.training.parallel.process_group import listen
from tests.kit.http import free_port
from tests.kit.waiting import until


def test_a_world_of_one_needs_no_port_and_can_be_joined_again() -> None:
    join(DistSpec())
    join(DistSpec())
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    leave()
    leave()
    assert not dist.is_initialized()


def test_a_process_stays_in_its_group() -> None:
    join(DistSpec())
    with pytest.raises(
        TrainingError, match=r"rank 0 of 1 on cpu already, asked to be 1 of 2 on"
    ):
        join(DistSpec(rank=1, world_size=2))
    with pytest.raises(
        (ConfigError, TrainingError),
        match=r"found none by torch|asked to be 0 of 1 on cuda",
    ):
        join(DistSpec(device="cuda:0"))


def test_a_missing_peer_ends_the_wait_by_its_deadline() -> None:
    port = free_port()
    with pytest.raises(
        TrainingError,
        match=rf"rank 0 of 2 could not join at 127\.0\.0\.1:{port} within 1 s",
    ):
        join(DistSpec(rank=0, world_size=2, port=port, timeout_s=1.0))


def test_a_group_that_nobody_holds_ends_its_threads() -> None:
    join(DistSpec())
    before = gloo_threads()
    holder = [dist.new_group(backend="gloo")]
    holder.append(holder)  # a cycle, as modules and their hooks are
    # A thread gives itself its name.
    own = until(lambda: gloo_threads() - before)
    del holder
    leave()
    assert not own & gloo_threads()


def gloo_threads() -> set[str]:
    """Threads of gloo in this process, by number; those of other tests may end meanwhile."""
    tasks = [(task.name, task / "comm") for task in Path("/proc/self/task").iterdir()]
    return {
        number for number, name in tasks if name.exists() and "gloo" in name.read_text()
    }


def test_the_port_of_a_group_is_held_from_the_moment_it_is_told() -> None:
    port = listen("127.0.0.1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with pytest.raises(TrainingError, match="rank 0 of 2 could not join"):
        join(DistSpec(rank=0, world_size=2, port=port, timeout_s=1.0))
