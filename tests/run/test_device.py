"""CUDA that is asked for and absent is refused; without a GPU ``auto`` is the CPU in float32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentrl.config import load_config
from agentrl.config.key_names import with_keys
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngineSpec
from agentrl.errors import ConfigError
from agentrl.run.engine import engine_plan
from agentrl.run.lifetime.session import RunProcesses
from agentrl.training import DistSpec, leave
from agentrl.types import SegmentKind
from tests.kit.ray_homes import in_home
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import make_actor, make_batch, update, write_model

BASE = ["model.path=m", "data.train=t.py:f"]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@without_gpu
def test_auto_is_a_cpu_in_float32_here() -> None:
    (stage,) = load_config({}, BASE).resolved_stages()
    assert (stage.device, stage.dtype, stage.rollout_dtype) == ("cpu", "float32", "float32")


@pytest.mark.parametrize(
    ("settings", "dtype", "served"),
    [
        ([], "bfloat16", "bfloat16"),
        (["model.dtype=float32"], "float32", "float32"),
        (["rollout.dtype=float32"], "bfloat16", "float32"),
        (["run.deterministic=true"], "float32", "float32"),
    ],
)
def test_cuda_trains_in_bfloat16_unless_told(
    settings: list[str], dtype: str, served: str
) -> None:
    (stage,) = load_config(
        {}, [*BASE, "placement.device=cuda", *settings]
    ).resolved_stages()
    assert (stage.device, stage.dtype, stage.rollout_dtype) == ("cuda", dtype, served)


def test_the_engine_goes_where_training_is(tmp_path: Path) -> None:
    model_path = write_model(tmp_path)
    settings = [
        f"model.path={model_path}",
        "data.train=t.py:f",
        "model.chat_template=chatml",
    ]
    config = load_config({}, [*settings, "placement.device=cuda"])
    plan = engine_plan(config.resolved_stages()[0], model_path)
    assert (plan.place.device, plan.place.dtype) == ("cuda:0", "bfloat16")


@without_gpu
def test_cuda_that_is_absent_is_refused_with_the_remedy() -> None:
    config = load_config({}, [*BASE, "placement.device=cuda", "placement.mode=inline"])
    with pytest.raises(ConfigError) as told:
        RunProcesses(config)
    assert with_keys(str(told.value)) == (
        "placement.device='cuda' needs a GPU for each process, found none by torch in the process "
        "of rank 0; set placement.device=cpu, or use a machine with NVIDIA's driver and a torch "
        "that was built for CUDA"
    )
    with pytest.raises(ConfigError, match="in the process of rank 0"):
        LocalRoleGroup(threads=1, device="cuda")
    with pytest.raises(ConfigError, match="torch sees 0 GPUs in this process"):
        TorchEngineSpec().build(EnginePlace("folder", device="cuda:0"))


_SHOWN = """
import os, ray
from agentrl.controller.cluster.ray_cluster import cluster_gpus
from agentrl.controller.cluster.ray_runtime import rank_actor
ray.init(address="local", num_cpus=3, num_gpus=2, include_dashboard=False, log_to_driver=False)
assert cluster_gpus() == 2, cluster_gpus()
ranks = [rank_actor.options(num_cpus=1, num_gpus=1).remote(rank, None) for rank in range(2)]
ask = lambda self: os.environ["CUDA_VISIBLE_DEVICES"]
print(sorted(ray.get([rank.__ray_call__.remote(ask) for rank in ranks])))
ray.shutdown()
"""


@pytest.mark.slow
def test_ray_shows_each_rank_one_gpu(tmp_path: Path) -> None:
    """Logical GPUs: what a rank is shown is decided without any real one."""
    env = in_home(tmp_path)
    env.pop("CUDA_VISIBLE_DEVICES", None)
    told = subprocess.run(
        [sys.executable, "-c", _SHOWN],
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1] == "['0', '1']"


_ASKED = """
import ray, torch
from agentrl.config import load_config
from agentrl.run.lifetime.session import with_device
torch.cuda.device_count = lambda: 1  # the driver's machine has one
ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
base = ["model.path=m", "data.train=t.py:f"]
for own in ([], ["placement.ray_address=auto"]):
    print(with_device(load_config({}, [*base, *own])).resolved_stages()[0].device)
ray.shutdown()
"""


@without_gpu
@pytest.mark.slow
def test_auto_asks_the_machines_of_a_cluster_that_is_joined(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _ASKED],
        env=in_home(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert told.stdout.splitlines()[-2:] == ["cuda", "cpu"], told.stderr


@pytest.mark.gpu
def test_a_rank_trains_on_its_gpu(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path))
    actor = make_actor(folder, "sft", place=DistSpec(device="cuda:0"), dtype="bfloat16")
    try:
        batch = make_batch(kind=SegmentKind.TARGET)
        losses = [update(actor, batch)["policy/loss"].mean for _ in range(3)]
        assert losses[-1] < losses[0]
        assert {one.device.type for one in actor.backend.state().values()} == {"cuda"}
    finally:
        leave()
