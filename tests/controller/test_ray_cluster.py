"""What a cluster does not have, or does not let in, is named; ranks of one machine follow each
other."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.kit.ray_homes import in_home
from tests.kit.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

_TWO_MACHINES = """
import json, os, ray
from ray.cluster_utils import Cluster
from agentrl.config.sections import PlacementConfig, PoolConfig
from agentrl.controller.cluster import cluster_probe
from agentrl.controller.cluster.cluster_probe import probe_cluster
from agentrl.controller.cluster.ray_cluster import Reservation, start_ray
from agentrl.controller.cluster.ray_rollout_pool import rollout_workers
from agentrl.errors import MachineError

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
cluster.add_node(num_cpus=4, resources={"rollout": 2})
start_ray(0, cluster.address, {"NCCL_SOCKET_IFNAME": "eth7"})

@ray.remote(num_cpus=1)
def seen():
    return ray.get_runtime_context().get_node_id(), os.environ["NCCL_SOCKET_IFNAME"]

told = {}
places = Reservation(PoolConfig(), 6, {"CPU": 1, "GPU": 0}, wait_s=60)
refs = [seen.options(scheduling_strategy=places.place(number)).remote() for number in range(6)]
told["nodes"], told["env"] = zip(*ray.get(refs))
places.close()
for asked in (
    lambda: Reservation(PoolConfig(), 2, {"CPU": 1, "GPU": 1}, wait_s=0.5),
    lambda: rollout_workers(
        PlacementConfig(rollout_workers=3, worker_resources={"rollout": 1}, wait_s=0.5)
    ),
):
    try:
        asked()
    except MachineError as error:
        told.setdefault("lacking", []).append(str(error))
# what was refused holds nothing
Reservation(PoolConfig(), 2, {"CPU": 4}, wait_s=60).close()
# two machines of two ranks each
places = Reservation(PoolConfig(nodes=2, world_size=4), 4, {"CPU": 1}, wait_s=60)
refs = [seen.options(scheduling_strategy=places.place(number)).remote() for number in range(4)]
told["two_each"], _ = zip(*ray.get(refs))
places.close()
told["machines"] = [
    (found.cpus, found.versions["agentrl"], abs(found.clock_s) < 60, found.sum_gb_s > 0)
    for found in probe_cluster(cluster.address, size=2**16)
]
cluster_probe.START_S = 0.0
try:
    probe_cluster(cluster.address)
except MachineError as error:
    told["silent"] = str(error)
ray.shutdown()
cluster.shutdown()
print(json.dumps(told))
"""


def _python(code: str, home: Path, **env: str) -> str:
    """What a program prints; its home folder is its own, since Ray keeps a token there."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=in_home(home, **env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n").rpartition("\n")[2]


def test_ranks_of_a_machine_follow_each_other_and_what_is_lacking_is_named(
    tmp_path: Path,
) -> None:
    told = json.loads(_python(_TWO_MACHINES, tmp_path))
    nodes = told["nodes"]
    assert len(set(nodes)) == 2
    assert sum(a != b for a, b in itertools.pairwise(nodes)) == 1
    assert set(told["env"]) == {"eth7"}
    first, second, third, fourth = told["two_each"]
    assert first == second != third == fourth
    gpus, workers = told["lacking"]
    assert gpus.startswith(
        "the run asks Ray for 2 x (1 CPU, 1 GPU), which the cluster did not give within "
        "PlacementConfig.wait_s=0.5: "
    )
    assert "has 4 CPU; " in gpus
    assert "has 4 CPU, 2 rollout; " in gpus
    assert "; free in all: " in gpus
    assert told["machines"] == [[4.0, version("agentrl"), True, True]] * 2
    assert re.match(
        r"the machines (\S+), \1 of the cluster at \S+ started no process", told["silent"]
    )
    assert workers.startswith("the run asks Ray for 3 x (1 CPU, 1 rollout), which")


_JOINS = """
from agentrl.controller.cluster.ray_cluster import start_ray
from agentrl.errors import MachineError
try:
    start_ray(0, ADDRESS)
    print("joined")
except MachineError as error:
    print(error)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    """A cluster of one machine that asks for a token; gives its address, and a home with the
    token."""
    home = tmp_path / "home"
    env = in_home(home, RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0")
    home.mkdir()
    ray = str(Path(sys.executable).with_name("ray"))
    subprocess.run(
        [ray, "get-auth-token", "--generate"], env=env, check=True, capture_output=True
    )
    command = [ray, "start", "--head", "--block", "--port=0", "--num-cpus=1"]
    command += ["--include-dashboard=false"]
    with (
        tempfile.TemporaryDirectory(
            prefix="r"
        ) as short,  # a socket's path has at most 107 bytes
        subprocess.Popen(
            [*command, f"--temp-dir={short}"], env=env, stdout=subprocess.PIPE, text=True
        ) as head,
    ):
        assert head.stdout is not None
        address = ""
        for line in head.stdout:
            if "--address='" in line:
                address = line.split("--address='")[1].split("'")[0]
                break
        assert address
        yield address, home
        head.terminate()
        head.communicate(timeout=DEADLINE_S)


def test_a_cluster_that_refuses_is_named_with_the_remedy(
    cluster: tuple[str, Path], tmp_path: Path
) -> None:
    address, home = cluster
    joins = f"ADDRESS = {address!r}\n{_JOINS}"
    assert _python(joins, home, RAY_AUTH_MODE="token") == "joined"
    for env in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token"}):
        told = _python(joins, tmp_path, **env)
        assert told.startswith(
            f"PlacementConfig.ray_address={address!r} must be of a Ray cluster"
        )
        assert (
            "the cluster asks for a token, and the one here is missing or another; copy"
            in told
        )


@pytest.mark.slow
def test_a_cluster_of_another_ray_is_named(
    cluster: tuple[str, Path], tmp_path: Path
) -> None:
    address, home = cluster
    (tmp_path / "sitecustomize.py").write_text("import ray\nray.__version__ = '1.2.3'\n")
    joins = f"ADDRESS = {address!r}\n{_JOINS}"
    told = _python(joins, home, RAY_AUTH_MODE="token", PYTHONPATH=str(tmp_path))
    assert told.startswith(
        f"PlacementConfig.ray_address={address!r} must be of a Ray cluster"
    )
    assert "it runs another Ray or Python; install its versions here" in told


def test_no_cluster_is_named(tmp_path: Path) -> None:
    brief = "import agentrl.controller.cluster.ray_cluster as module; module._JOIN_S = 3.0"
    # in a process of its own: in this one another test may have started Ray
    told = _python(f"{brief}\nADDRESS = '127.0.0.1:1'\n{_JOINS}", tmp_path)
    assert re.match(r".*='127\.0\.0\.1:1' must be .*: none answered within 3 s", told), told
