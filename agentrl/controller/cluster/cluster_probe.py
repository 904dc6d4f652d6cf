"""Cluster probe: asks each machine of a Ray cluster what it is, and times a sum over all."""

from __future__ import annotations

import fcntl
import platform
import socket
import struct
import time
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.controller.cluster.ray_cluster import (
    START_S,
    listening_address,
    shut_down_ray,
    silent_machines,
    start_ray,
)
from agentrl.training.parallel.process_group import store_of

_PACKAGES = ("agentrl", "ray", "torch", "transformers")
_ANSWER_S = 60.0
_NUM_SUMS = 5
_SIOCGIFADDR = 0x8915
"""Linux' request for the address of an interface (netdevice(7))."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What a machine of the cluster said.

    Args:
        address: as the cluster knows it.
        cpus, gpus: that it gives to actors.
        versions: of what must be the same everywhere, by name.
        clock_s: its clock less this one's, within half the time of the question.
        interface: that its sums went through.
        sum_gb_s: bytes of a tensor over the seconds of its sum over all machines, in GB/s; nan for
            a cluster of one.
    """

    address: str
    cpus: float
    gpus: float
    versions: dict[str, str]
    clock_s: float
    interface: str
    sum_gb_s: float


class _Probe:
    """A process on the machine that is asked."""

    def about(self) -> tuple[float, dict[str, str]]:
        found = {"python": platform.python_version()}
        return time.time(), found | {package: version(package) for package in _PACKAGES}

    def listen(self) -> tuple[str, int]:
        return listening_address()

    def sum(
        self, rank: int, world_size: int, host: str, port: int, size: int
    ) -> tuple[str, float]:
        """The interface that leads to rank 0, and the seconds of the fastest sum of ``size``
        bytes; by NCCL where torch sees a GPU on this machine, else by gloo."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        limit = timedelta(seconds=_ANSWER_S)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            store=store_of(rank, host, port, limit),
            rank=rank,
            world_size=world_size,
            timeout=limit,
        )
        tensor = torch.ones(size // 4, device=device)
        seconds = []
        for _ in range(_NUM_SUMS):
            # All ranks begin together, or one would time how late another came.
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            # what comes to the host has been computed
            tensor[0].item()
            seconds.append(time.perf_counter() - start)
        dist.destroy_process_group()
        return _interface_to(host), min(seconds)


def probe_cluster(address: str, *, size: int = 2**26) -> list[MachineReport]:
    """Asks every machine of the cluster.

    Args:
        address: of the cluster; ``auto`` finds this machine's.
        size: bytes of the tensor that is summed.

    Raises:
        MachineError: the cluster cannot be joined, or a machine of it starts no process.
        RayError: a machine that did answers no more, or cannot reach the others.
    """
    started = start_ray(0, address)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        actor = ray.remote(_Probe)
        probes: list[Any] = [
            actor.options(
                num_cpus=0,
                num_gpus=1 if node["Resources"].get("GPU") else 0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(
                    node["NodeID"], soft=False
                ),
            ).remote()
            for node in nodes
        ]
        first = {
            probe.about.remote(): node["NodeManagerAddress"]
            for node, probe in zip(nodes, probes, strict=True)
        }
        _, late = ray.wait(list(first), num_returns=len(first), timeout=START_S)
        if late:
            raise silent_machines(address, [first[ref] for ref in late])
        answers = [_timed(probe) for probe in probes]
        sums = _sums(probes, size)
        return [
            MachineReport(
                address=node["NodeManagerAddress"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                versions=own,
                clock_s=clock_s,
                interface=interface,
                sum_gb_s=size / seconds / 1e9,
            )
            for node, (clock_s, own), (interface, seconds) in zip(
                nodes, answers, sums, strict=True
            )
        ]
    finally:
        if started:
            shut_down_ray()


def _timed(probe: Any) -> tuple[float, dict[str, str]]:
    """How far its clock is ahead, and its versions."""
    start = time.time()
    there, own = ray.get(probe.about.remote(), timeout=_ANSWER_S)
    return there - (start + time.time()) / 2, own


def _sums(probes: list[Any], size: int) -> list[tuple[str, float]]:
    """Of each machine the interface and the seconds of a sum over all of them."""
    if len(probes) < 2:
        return [("", float("nan"))] * len(probes)
    host, port = ray.get(probes[0].listen.remote(), timeout=_ANSWER_S)
    refs = [
        probe.sum.remote(rank, len(probes), host, port, size)
        for rank, probe in enumerate(probes)
    ]
    found: list[tuple[str, float]] = ray.get(refs, timeout=2 * _ANSWER_S)
    return found


def _interface_to(host: str) -> str:
    """The name of the interface whose address this machine shows to ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own: str = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            # Linux' ifreq begins with 16 bytes for the name, its NUL included.
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # one without an address
                continue
            # A sockaddr_in follows, with two bytes of family and two of port before its address.
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return own
