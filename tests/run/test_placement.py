"""Pools of a run: which devices its ranks and servers have, and that roles elsewhere change no
number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from agentrl.config import load_config, to_yaml
from agentrl.config.sections import PoolConfig
from agentrl.errors import ConfigError
from tests.kit.ray_homes import in_home
from tests.kit.waiting import DEADLINE_S
from tests.run.test_ppo_run import PPO
from tests.run.tiny_run import metrics, train

BASE = ["model.path=m", "data.train=t.py:f"]
WORKERS = "placement.rollout_workers=[2, 16]"
WITH_CRITIC = [*BASE, "algorithm.name=ppo", "critic.stage=model"]
SGLANG = [
    *BASE,
    "placement.device=cuda",
    "rollout.engine=sglang",
    "placement.rollout_workers=2",
]


def test_nodes_and_gpus_are_ranks() -> None:
    settings = ["placement.nodes=2", "placement.gpus=8", "train.batch_prompts=16"]
    own = load_config({}, [*BASE, *settings]).placement
    assert (own.world_size, own.data_parallel) == (16, 16)
    assert PoolConfig(gpus=4, tp_size=2).data_parallel == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            [*WITH_CRITIC, "placement.pools.aside={}", "placement.roles={critic: asides}"],
            r"placement\.roles\.critic must name a pool \(main, aside\), got 'asides'; did you mea",
        ),
        (
            [*WITH_CRITIC, "placement.pools.aside={}", "placement.roles={actor: aside}"],
            r"placement\.roles must place critic, reference, reward_model .*, got 'actor'",
        ),
        (
            [*BASE, "placement.pools.aside={}", "placement.roles={critic: aside}"],
            r"placement\.roles\.critic does nothing with algorithm\.name='grpo' .* has no critic",
        ),
        (
            [*BASE, "placement.pools.aside={}"],
            r"placement\.pools\.aside holds nothing; name it in",
        ),
        (
            [*BASE, "placement.rollout_workers=1", "placement.rollout=players"],
            r"placement\.rollout must name a pool \(main\), got 'players'",
        ),
        (
            [*WITH_CRITIC, "placement.pools.main={}", "placement.roles={critic: main}"],
            r"placement\.pools must have names of .* other than 'main', which is placement itself",
        ),
        (
            [
                *WITH_CRITIC,
                "placement.pools.a={world_size: 3, tp_size: 2}",
                "placement.roles={critic: a}",
            ],
            r"placement\.pools\.a\.tp_size \* .* must divide placement\.pools\.a\.world_size=3",
        ),
        (
            [
                *WITH_CRITIC,
                "placement.pools.a={world_size: 3, nodes: 2}",
                "placement.roles={critic: a}",
            ],
            r"must be nodes \* gpus \(or a multiple of nodes.* got nodes=2, gpus=None and 3",
        ),
        (
            [*BASE, "placement.gpus=2", "placement.world_size=3"],
            r"placement\.world_size must be nodes \* gpus .*, got nodes=1, gpus=2 and 3; change",
        ),
        (
            [*BASE, "placement.mode=inline", "placement.gpus=1"],
            r"placement\.gpus is asked of Ray, which placement\.mode='inline' does not start",
        ),
        *(
            (
                [*BASE, f"placement.rollout_workers={found}"],
                r"placement\.rollout_workers must be a number of processes, or \[least, most\] of "
                rf"them with 1 <= least <= most, got {re.escape(found)}; put the smaller first",
            )
            for found in ("[4, 2]", "[0, 2]", "[2]", "-1", "[1, 2, 3]", "1.5", "'two'")
        ),
        (
            [*BASE, WORKERS, "placement.mode=inline"],
            r"placement\.rollout_workers must be 0 with placement\.mode='inline', which starts no "
            r"process, got \[2, 16\]; set it so, or set placement\.mode=ray",
        ),
        (
            [*BASE, "placement.mode=inline", "placement.world_size=2"],
            r"placement\.world_size must be 1 with placement\.mode='inline', which starts no "
            r"process, got 2; set it so, or set placement\.mode=ray",
        ),
        (
            [*BASE, "placement.mode=inline", "placement.rollout_workers=1"],
            r"placement\.rollout_workers must be 0 with placement\.mode='inline', .*, got 1; set",
        ),
        (
            [*BASE, WORKERS, "run.deterministic=true"],
            r"run\.deterministic needs placement\.rollout_workers=0 .*, got \[2, 16\]; set it, or",
        ),
        (
            [*BASE, WORKERS, "placement.rollout=main"],
            r"placement\.rollout_workers must be one number with placement\.rollout='main'.*, got "
            r"\[2, 16\]; set it so, or name a pool of their own",
        ),
        (
            [*BASE, WORKERS, "placement.rollout=p", "placement.pools.p.nodes=2"],
            r"placement\.rollout_workers must be one number beside placement\.pools\.p\.nodes and "
            r"placement\.pools\.p\.gpus, which count .*, got \[2, 16\]; set it so, or leave these",
        ),
        (
            [*SGLANG, WORKERS, "rollout.sglang.urls=[http://a:1]"],
            r"rollout\.sglang\.urls needs placement\.rollout_workers of at most 1 .*, got 16",
        ),
        # two layouts that cannot share a pool
        (
            [*SGLANG, "placement.rollout=main", "rollout.sglang.tp_size=2"],
            r"placement\.rollout='main' gives each rollout worker a part of one rank's GPU, and "
            r"rollout\.sglang\.num_servers \* rollout\.sglang\.tp_size needs 2 GPUs",
        ),
        (
            [*SGLANG, "placement.rollout=main"],
            r"rollout\.sglang\.kv_memory_fraction must be set for servers that share a GPU",
        ),
        (
            [*SGLANG, "placement.rollout=p", "placement.pools.p={gpus: 2, tp_size: 2}"],
            r"placement\.pools\.p has a layout of ranks .* and holds rollout workers alone",
        ),
        (
            [
                *BASE,
                "placement.rollout_workers=1",
                "placement.rollout=main",
                "placement.nodes=1",
            ],
            r"placement\.nodes keeps ranks of a machine together, which rollout workers that share",
        ),
        (
            [
                *BASE,
                "placement.rollout_workers=3",
                "placement.rollout=p",
                "placement.pools.p.nodes=2",
            ],
            r"placement\.rollout_workers must be a multiple of placement\.pools\.p\.nodes=2, got 3",
        ),
        # a server's GPUs on two nodes
        (
            [
                *SGLANG,
                "placement.rollout=p",
                "placement.pools.p={nodes: 2, gpus: 2}",
                "rollout.sglang.tp_size=4",
            ],
            r"num_servers \* rollout\.sglang\.tp_size = 4 GPUs of a rollout worker must be of one "
            r"machine, and placement\.pools\.p\.gpus=2 are all",
        ),
        (
            [*SGLANG, "placement.rollout=p", "placement.pools.p={nodes: 2, gpus: 2}"],
            r"placement\.rollout_workers \* .* = 2 \* 1 must be the GPUs of placement\.pools\.p, 2",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config({}, settings)


def test_a_range_of_workers_shares_the_sandboxes_as_the_most_of_them() -> None:
    settings = [*BASE, WORKERS, "placement.rollout=p", "placement.pools.p.cpus=2"]
    (stage,) = load_config({}, [*settings, "sandbox.max_running=48"]).resolved_stages()
    assert (stage.placement.rollout_workers, stage.num_hosts) == ((2, 16), 16)
    assert stage.sandboxes_a_host == 3
    assert load_config(
        {}, [*BASE, "placement.rollout_workers=3"]
    ).placement.worker_range == (3, 3)
    printed = to_yaml(load_config({}, settings))
    assert load_config(YAML(typ="safe").load(printed)).placement.worker_range == (2, 16)


@pytest.mark.parametrize(
    ("settings", "gpus"),
    [
        (["rollout.sglang.tp_size=2", "rollout.sglang.num_servers=3"], 6),
        (
            ["rollout.sglang.urls=[http://a:1, http://b:1]", "placement.rollout_workers=1"],
            0,
        ),
        (["rollout.sglang.device=cpu"], 0),
        (["rollout.engine=torch"], 1),
        (["rollout.engine=torch", "rollout.torch.device=cpu"], 0),
        (["rollout.engine=torch", "placement.device=cpu"], 0),
    ],
)
def test_a_worker_asks_for_the_gpus_of_its_engine(settings: list[str], gpus: int) -> None:
    (stage,) = load_config({}, [*SGLANG, *settings]).resolved_stages()
    assert stage.gpus_a_worker == gpus


# --- over Ray, with its logical GPUs


_PLACED = """
import json, os, sys, time
import ray
from agentrl.config import load_config
from agentrl.engines import EnginePlace
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.sglang.launch import SGLangServers
from agentrl.errors import MachineError
from agentrl.run.lifetime.session import RunProcesses

ray.init(address="local", num_cpus=12, num_gpus=8, include_dashboard=False, log_to_driver=False,
    labels={"zone": "here"})
base = ["data.train=t.py:f", "algorithm.name=ppo", "critic.stage=model", "placement.device=cpu",
    "model.path=" + sys.argv[1], "rollout.engine=sglang", "placement.rollout_workers=1"]

def seen(actor):
    ask = lambda self: os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return ray.get(actor.__ray_call__.remote(ask))

def of_servers(actor, model=sys.argv[1]):
    def ask(self):
        spec = SGLangEngineSpec(tp_size=2, num_servers=2, device="cuda", command=("python",))
        servers = SGLangServers(EnginePlace(model, dtype="bfloat16"), spec)
        return [servers.environment(n)["CUDA_VISIBLE_DEVICES"].split(",") for n in range(2)]
    return ray.get(actor.__ray_call__.remote(ask))

def opened(*own):
    return RunProcesses(load_config({}, [*base, *own]))

told = {}
processes = opened("placement.gpus=2", "placement.nodes=1", "placement.rollout=players",
    "placement.pools={critics: {gpus: 1, labels: {zone: here}}, players: {nodes: 1, gpus: 4}}",
    "placement.roles={critic: critics}", "rollout.sglang.tp_size=2", "rollout.sglang.num_servers=2")
told["ranks"] = {
    name: [seen(rank) for rank in pool._ranks] for name, pool in processes.pools.items()
}
(host,) = processes.rollouts._hosts.values()
told["worker"], told["servers"] = seen(host.actor), of_servers(host.actor)
processes.close()

processes = opened("placement.gpus=1", "placement.rollout=main", "placement.rollout_workers=2",
    "rollout.engine=torch")
(rank,) = processes.pools["main"]._ranks
told["shared"] = [seen(rank), *(seen(one.actor) for one in processes.rollouts._hosts.values())]
processes.close()

for own in ("{gpus: 9}", "{world_size: 1, labels: {zone: there}}", "{world_size: 2, nodes: 2}"):
    start = time.monotonic()
    try:
        opened("placement.pools={critics: " + own + "}", "placement.roles={critic: critics}",
            "placement.wait_s=1.0", "rollout.engine=torch", "train.batch_prompts=9")
    except MachineError as error:
        told.setdefault("lacking", []).append(str(error))
# what was refused holds nothing
told["free"] = ray.available_resources()["GPU"]
ray.shutdown()
print(json.dumps(told))
"""


@pytest.mark.slow
def test_the_devices_of_all_ranks_and_servers_are_disjoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "num_attention_heads": 4}')
    env = in_home(tmp_path, PYTHONPATH=os.getcwd())
    env.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", _PLACED, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    main, critics = told["ranks"]["main"], told["ranks"]["critics"]
    assert [len(one) for one in (*main, *critics, *told["servers"])] == [1, 1, 1, 2, 2]
    devices = [device for one in (*main, *critics, *told["servers"]) for device in one]
    assert len(devices) == len(set(devices)) == 7
    assert [*told["servers"][0], *told["servers"][1]] == told["worker"]
    # a rank and two workers on one GPU
    assert told["shared"][0] == told["shared"][1] == told["shared"][2]
    assert len(told["shared"][0]) == 1
    many, labelled, apart = told["lacking"]
    assert many.startswith(
        "the run asks Ray for 9 x (1 CPU, 1 GPU), which the cluster did not"
    )
    assert "has 12 CPU, 8 GPU and labels {'zone': 'here'}; free in all: " in many
    assert labelled.startswith(
        "the run asks Ray for 1 x (1 CPU) with labels {'zone': 'there'}, which"
    )
    assert apart.startswith(
        "the run asks Ray for 2 x (1 CPU) of a machine each, which the cluster"
    )
    assert told["free"] == 8


ASIDE = (
    "placement.pools.aside={world_size: 1}",
    "placement.roles={critic: aside, reference: aside}",
    "stages.1.algorithm.kl_coef=0.01",
    "placement.mode=ray",
    *PPO,
)


def steps(run: Path) -> list[dict[str, Any]]:
    """What was trained; evaluations are left out, of which a run that is cut has one more."""
    return [
        {name: value for name, value in row.items() if not name.startswith("eval/")}
        for row in metrics(run)
    ]


@pytest.mark.slow
def test_a_run_whose_critic_is_elsewhere_has_the_same_numbers_also_once_resumed(
    tmp_path: Path,
) -> None:
    alone = train(tmp_path, "stages.1.algorithm.kl_coef=0.01", *PPO, name="alone")
    train(tmp_path, *ASIDE, "train.steps=2", name="aside")
    run = train(tmp_path, *ASIDE, name="aside", resume=True)
    assert steps(run) == steps(alone)
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(rows[-1])
    assert {"time/idle_frac/main", "time/idle_frac/aside"} <= last.keys()
    for folder in ("models/rl", "models/rl/critic"):
        (weights,) = (run / folder).glob("*.safetensors")
        assert weights.read_bytes() == (alone / folder / weights.name).read_bytes()


def test_a_worker_has_the_threads_of_its_pool() -> None:
    settings = ["placement.rollout=p", "placement.pools.p={threads_per_rank: 3}"]
    own = load_config({}, [*BASE, "placement.rollout_workers=1", *settings]).placement
    assert (own.host_pool.threads_per_rank, own.threads_per_rank) == (3, 1)
