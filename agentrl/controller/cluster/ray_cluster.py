"""Ray cluster: joins one or starts a private one, and reserves what a run asks of it.

What cannot be had is named within seconds, beside what the cluster has.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray._private.ray_logging import global_worker_stdstream_dispatcher
from ray._private.runtime_env import packaging
from ray._private.state import available_resources_per_node, state
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.config.sections import PoolConfig
from agentrl.errors import MachineError
from agentrl.store.node_files import PROJECT
from agentrl.training.device import DeviceType, num_gpus
from agentrl.training.parallel.process_group import listen

logger = logging.getLogger(__name__)

START_S = 120.0
"""Seconds in which a machine of a cluster that was joined starts a process and answers: a busy one
took 115 to import torch by the niceness that Ray gives its workers."""
_JOIN_S = 40.0
"""Seconds that a cluster has to answer. Ray itself tells of a wrong token after 22, and never of an
address where nothing listens."""
NODE_ANSWER_S = 5.0
"""Seconds in which a node takes a connection, and between two looks at one that did not."""
_OUTPUT_HANDLER = "agentrl"
_last_output: deque[str] = deque(maxlen=200)
"""What the cluster's processes wrote last: Ray shows it on the terminal, and keeps it nowhere."""
_JOIN = """
import json, signal, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

def about(project):
    import os
    from importlib.metadata import PackageNotFoundError, version
    try:
        return version("agentrl"), os.path.isdir(project)
    except PackageNotFoundError:
        return "none", False

ray.init(address=sys.argv[1], logging_level=40, log_to_driver=False)
print("joined", flush=True)
signal.alarm(int(float(sys.argv[3])) + 60)
nodes = {one["NodeID"]: one["NodeManagerAddress"] for one in ray.nodes() if one["Alive"]}
asked = {}
for node in nodes if sys.argv[2] else ():
    task = ray.remote(num_cpus=0, max_retries=0)(about).options(scheduling_strategy=On(node, False))
    asked[task.remote(sys.argv[2])] = nodes[node]
limit = float(sys.argv[3])
known, late = ray.wait(list(asked), num_returns=len(asked), timeout=limit) if asked else ([], [])
print(json.dumps([[[asked[one], *ray.get(one)] for one in known], [asked[one] for one in late]]))
"""
"""Run where this process must not: it joins, and asks each machine for its agentrl and for the
project's folder. It defines what it sends, so that another agentrl there is no matter."""
_LEFT = [
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.ckpt",
    "*.parquet",
    "*.arrow",
]
_LEFT += ["runs/", ".git/", ".venv/", "__pycache__/"]
"""What of a project's folder never goes to other machines: weights, data, what runs wrote."""
_MOST_MIB = 100
"""Of a project's folder; Ray takes five times as much, and keeps it in the head's memory."""

_FAULTS = {
    "uthenticat": "the cluster asks for a token, and the one here is missing or another; copy "
    "~/.ray/auth_token of its head to this machine and set RAY_AUTH_MODE=token",
    "Version mismatch": "it runs another Ray or Python; install its versions here, or start the "
    "cluster from this environment",
}
"""What words of Ray's mean, and the remedy."""
_START = "start one (`ray start --head`), or set the address it told"


def start_ray(
    num_cpus: float,
    address: str | None = None,
    env: Mapping[str, str] | None = None,
    project: Path | None = None,
) -> bool:
    """Joins a cluster, or starts a private one on this machine.

    Args:
        num_cpus: that the run asks for, and that a private cluster offers.
        address: of a cluster, or ``auto`` for this machine's; None starts a private one.
        env: environment variables of every process that the run starts.
        project: the folder that the run's configuration starts paths from, which goes to a cluster
            with a machine that lacks it; None for what is no run.

    Returns:
        Whether this call started or joined it, so that its caller leaves it.

    Raises:
        MachineError: no cluster answers at the address, it refuses this process, a machine of it
            has another agentrl, or lacks a project's folder that is too large to be sent.
    """
    if ray.is_initialized():
        return False
    # Ray reports its use over the network by default.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's 15 lets the sandboxes' processes starve the trainer
    os.environ.setdefault("RAY_worker_niceness", "0")
    # and its 30 are too few for a machine that is busy
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
    brought: dict[str, Any] = {"env_vars": dict(env or {})}
    have_it = _try_to_join(address, project) if address else []
    if project is not None and not all(have_it):
        _check_size(project)
        brought |= {"working_dir": str(project), "excludes": _LEFT}
        brought["env_vars"][PROJECT] = str(project)
    ray.init(
        address=address or "local",  # also where somebody's cluster runs on this machine
        # Ray refuses to be told the resources of a cluster that runs already.
        num_cpus=None if address else math.ceil(num_cpus) + 1,
        include_dashboard=None if address else False,
        logging_level=logging.ERROR,
        log_to_driver=True,
        runtime_env=brought if any(brought.values()) else None,
    )
    global_worker_stdstream_dispatcher.add_handler(_OUTPUT_HANDLER, _keep_output)
    return True


def _keep_output(data: Mapping[str, Any]) -> None:
    """Called by Ray's thread with lines that a worker wrote."""
    if data["pid"] != "autoscaler":
        _last_output.extend(f"pid {data['pid']}: {line}" for line in data["lines"])


def _check_size(project: Path) -> None:
    """Refuses a project's folder that is too large to be sent, by the very files that Ray chooses.

    Raises:
        MachineError: it is.
    """
    sizes: dict[str, int] = {}

    def note(path: Path) -> None:
        if path.is_file():
            sizes[str(path.relative_to(project))] = path.stat().st_size

    packaging._dir_travel(project, [packaging._get_excludes(project, _LEFT)], note, True)
    if (found := sum(sizes.values()) / 2**20) > _MOST_MIB:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        raise MachineError(
            f"the project's folder {project} must have at most {_MOST_MIB} MiB, since a machine of "
            f"the cluster lacks it and is sent it, got {found:.0f} MiB, the most of it in "
            f"{', '.join(largest)}; name what is no code in its .gitignore or .rayignore, or put "
            "the folder at the same path on every machine"
        )


def _try_to_join(address: str, project: Path | None) -> list[bool]:
    """Joins in a process of its own first: in this one Ray would wait for minutes, write its
    attempts over the terminal, and end the process.

    Returns:
        Whether each machine that answered has the project's folder.
    """
    command = [sys.executable, "-c", _JOIN, address, str(project or ""), str(START_S)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as asked:
        try:
            found, told = asked.communicate(timeout=_JOIN_S)
        except subprocess.TimeoutExpired as late:
            # One that has joined says so, and waits for the machines, within bounds of its own.
            if b"joined" not in (late.stdout or b""):
                asked.kill()
            found, told = asked.communicate()
    if asked.returncode == 0:
        return _projects_of(address, *json.loads(found.strip().rpartition("\n")[2]))
    # killed by a signal
    silent = asked.returncode < 0
    why = f"none answered within {_JOIN_S:g} s" if silent else "Ray could not join it"
    why = f"{why}; {_START}"
    why = next((known for word, known in _FAULTS.items() if word in told), why)
    last = told.strip().rpartition("\n")[2][:300]
    raise MachineError(
        f"PlacementConfig.ray_address={address!r} must be of a Ray cluster that this joins: "
        f"{why}{f' (Ray said: {last})' if last else ''}"
    )


def _projects_of(
    address: str, machines: list[tuple[str, str, bool]], silent: list[str]
) -> list[bool]:
    """Whether each machine has the project's folder.

    Raises:
        MachineError: one did not answer, or has another agentrl.
    """
    if silent:
        raise silent_machines(address, silent)
    own = version("agentrl")
    for machine, theirs, _ in machines:
        if theirs != own:
            raise MachineError(
                f"every machine of the cluster needs agentrl {own}, as this one has, got {theirs} "
                f"on {machine}; install it there (`agentrl doctor --cluster {address}`)"
            )
    return [has_it for *_, has_it in machines]


def silent_machines(address: str, silent: Sequence[str]) -> MachineError:
    """Machines that did not answer, which are told by their addresses."""
    return MachineError(
        f"the machines {', '.join(silent)} of the cluster at {address} started no process within "
        f"{START_S:g} s; look at them (`ray status`), or take them out"
    )


def shut_down_ray() -> None:
    """Ends the private cluster, or leaves the one that was joined; what its processes wrote last is
    logged."""
    ray.shutdown()
    global_worker_stdstream_dispatcher.remove_handler(_OUTPUT_HANDLER)
    if _last_output:
        text = "\n".join(_last_output)
        logger.info("the workers wrote last:\n%s", text, extra={"event": "workers_output"})
        _last_output.clear()


def listening_address() -> tuple[str, int]:
    """This host as the others reach it, and the port where rank 0, which this process will be,
    listens for them."""
    host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return host, listen(host)


def node_answers(node: str) -> bool:
    """Whether a node's raylet takes a connection: Ray calls a machine that is out of reach alive
    for long."""
    for known in ray.nodes():  # type: ignore[no-untyped-call]
        if known["NodeID"] == node and known["Alive"]:
            address = (known["NodeManagerAddress"], known["NodeManagerPort"])
            with suppress(OSError), socket.create_connection(address, NODE_ANSWER_S):
                return True
    return False


def drained_nodes_and_room(
    each: Mapping[str, float], labels: Mapping[str, str]
) -> tuple[list[str], dict[str, int]]:
    """The nodes that Ray drains, and for how many processes more each node has room.

    ``ray drain-node``, autoscalers and KubeRay tell Ray's GCS that a node is about to end.
    ``ray.nodes()`` of Ray 2.60 does not have that, and no public call has. Ray Train and Ray Data
    read it as here, from ``state``. What each node has free may be some tenths of a second old.

    Args:
        each: what a process asks for, by Ray's names of resources.
        labels: of the nodes; of a selector with an operator Ray alone knows which nodes have it.
    """
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    asked = {name: amount for name, amount in each.items() if amount}
    plain = {(name, own) for name, own in labels.items() if not re.search(r"[!(]", own)}
    room = {
        node["NodeID"]: min(
            int(free.get(node["NodeID"], {}).get(name, 0.0) / own)
            for name, own in asked.items()
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and plain <= node["Labels"].items()
    }
    return list(state.get_draining_nodes()), room


def cluster_gpus() -> float:
    """GPUs that the cluster gives to actors."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0.0)


def device_of_cluster(address: str) -> DeviceType:
    """What ``auto`` stands for on the machines of a cluster: CUDA where one gives out GPUs, and
    torch sees them there.

    Raises:
        MachineError: the cluster cannot be joined.
        RayError: the machine that was asked does not answer.
    """
    started = start_ray(0, address)
    try:
        if not cluster_gpus():
            return "cpu"
        seen = ray.remote(num_gpus=1)(num_gpus).remote()
        return "cuda" if ray.get(seen, timeout=START_S) else "cpu"
    finally:
        if started:
            shut_down_ray()


class Reservation:
    """Resources of a cluster for processes that stand together: all of them, or none.

    Args:
        pool: whose machines they are; those of a machine that it counts have one bundle.
        processes: in all.
        each: what one asks for, by Ray's names of resources.
        wait_s: seconds that the cluster has, for instance to start machines.
        spread: over the machines, in place of as few as can be.

    Raises:
        MachineError: the cluster does not have them in that time.
    """

    def __init__(
        self,
        pool: PoolConfig,
        processes: int,
        each: Mapping[str, float],
        *,
        wait_s: float,
        spread: bool = False,
    ) -> None:
        self._in_bundle = processes // pool.nodes if pool.nodes else 1
        bundle = {name: own * self._in_bundle for name, own in each.items() if own}
        number = processes // self._in_bundle
        self._group = placement_group(
            [bundle] * number,
            "STRICT_SPREAD" if pool.nodes else "SPREAD" if spread else "PACK",
            bundle_label_selector=[pool.labels] * number if pool.labels else None,
        )
        if not self._group.wait(wait_s):
            self.close()
            where = " of a machine each" if pool.nodes else ""
            where += f" with labels {pool.labels}" if pool.labels else ""
            raise MachineError(_lacking(f"{number} x ({_words(bundle)}){where}", wait_s))
        self._nodes = self._table()
        # neighbours in rank are neighbours in the machine, so that an inner group stays in one
        self._order = sorted(self._nodes, key=lambda index: (self._nodes[index], index))

    def place(self, number: int) -> PlacementGroupSchedulingStrategy:
        """Where the process of that number starts; those of one machine have numbers in a row, and
        after the last bundle the first one follows."""
        return PlacementGroupSchedulingStrategy(self._group, self._bundle(number))

    def node(self, number: int) -> str:
        """The machine of that process, as it was known last; empty while Ray looks for one."""
        return self._nodes.get(self._bundle(number), "")

    def has_moved(self) -> bool:
        """Whether Ray has reserved another machine in the place of one that died. It asks Ray, so
        that no lock is held meanwhile."""
        before, self._nodes = self._nodes, self._table()
        return self._nodes != before

    def close(self) -> None:
        """Gives them back; what still runs there is ended by Ray."""
        remove_placement_group(self._group)

    def _table(self) -> dict[int, str]:
        nodes: dict[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
        return nodes

    def _bundle(self, number: int) -> int:
        return self._order[number // self._in_bundle % len(self._order)]


def _lacking(asked: str, wait_s: float) -> str:
    """What was asked for, beside what each machine has and has free."""
    machines = [
        f"{node['NodeManagerAddress']} has {_words(node['Resources'])}{_labels(node['Labels'])}"
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    ]
    free = _words(ray.available_resources())  # type: ignore[no-untyped-call]
    return (
        f"the run asks Ray for {asked}, which the cluster did not give within "
        f"PlacementConfig.wait_s={wait_s:g}: {'; '.join(machines)}; free in all: {free}. Lower "
        "PlacementConfig.world_size, PlacementConfig.rollout_workers or those of "
        "PlacementConfig.pools, end what else runs there, or raise PlacementConfig.wait_s where "
        "machines are being started"
    )


def _labels(labels: Mapping[str, str]) -> str:
    """Those of a machine, without Ray's name of it."""
    own = {name: value for name, value in labels.items() if name != "ray.io/node-id"}
    return f" and labels {own}" if own else ""


_OWN_TO_RAY = re.compile(r":|_group_|memory")


def _words(resources: Mapping[str, float]) -> str:
    """Such as ``2 CPU, 1 GPU``, without what Ray counts for itself."""
    named = {
        name: own for name, own in sorted(resources.items()) if not _OWN_TO_RAY.search(name)
    }
    return ", ".join(f"{own:g} {name}" for name, own in named.items()) or "nothing"
