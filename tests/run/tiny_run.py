"""Whole runs of a tiny model: a configuration of two stages, a driver that dies where it is told to, and its metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TASK = Path(__file__).with_name("tiny_task.py")

CONFIG = f"""\
run: {{deterministic: true}}
controller: {{mode: inline}}
model: {{build: "{TASK}:build_model"}}
env: {{tools: ["{TASK}:add"], announce_tools: false}}
data: {{train: "{TASK}:tasks", max_prompt_tokens: 64}}
reward: {{functions: ["{TASK}:graded"]}}
rollout: {{group_size: 4, max_turns: 3, max_turn_tokens: 32, max_response_tokens: 120, max_running: 8}}
train: {{steps: 5, batch_prompts: 3}}
optim: {{lr: 1.0e-3}}
checkpoint: {{every: 2, keep_last: 2}}
stages:
  - name: warmup
    steps: 12
    algorithm: sft
    data: "{TASK}:demonstrations"
    train: {{batch_prompts: 4}}
    optim: {{name: muon, lr: 1.0e-2, muon_lr: 0.1}}
  - name: rl
    eval:
      every: 2
      sets: {{sums: {{data: "{TASK}:tasks", args: {{split: held_out, num_tasks: 3}}}}}}
"""

DRIVER = """
import os, signal, sys
from importlib import import_module

config, run_dir, resume, target, call, *overrides = sys.argv[1:]
if target:
    # dies as a process dies that is shot: nothing is flushed, closed or cleaned up
    where, name = target.split(":")
    *owner, method = name.split(".")
    holder = import_module(where)
    for part in owner:
        holder = getattr(holder, part)
    real, calls = getattr(holder, method), iter(range(10**9))

    def shot(*args, **kwargs):
        if next(calls) == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(holder, method, shot)

from agentrl.run import load_config
from agentrl.run.trainer import Trainer

with Trainer(load_config(config, [f"run.dir={run_dir}", *overrides])) as trainer:
    trainer.train(resume=resume == "resume")
"""


def start(
    config: Path, run_dir: Path, *, resume: bool = False, die_at: str = "", call: int = 0, overrides: Iterable[str] = ()
) -> subprocess.Popen[str]:
    """A driver in a process of its own, which dies at the n-th call of ``module:Class.method``."""
    command = [sys.executable, "-c", DRIVER, str(config), str(run_dir), "resume" if resume else "new"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += [die_at, str(call), *overrides]
    return subprocess.Popen(
        command, cwd=run_dir.parent, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl`` without what a clock measured."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in row.items() if not timed(name)} for row in rows]


def timed(name: str) -> bool:
    """Whether a metric is a time, or made of one."""
    return name.startswith(("time", "perf/")) or name.endswith("_s") or "latency" in name


def states(run_dir: Path) -> Mapping[str, int]:
    """How many trajectories the ledger has in each state."""
    from agentrl.controller.ledger import Ledger

    ledger = Ledger(run_dir / "ledger.jsonl")
    try:
        return ledger.counts()
    finally:
        ledger.close()
