"""Whole runs of a tiny model: a configuration of two stages, and a driver that dies where it is
told to.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from agentrl.store import read_jsonl

TASK = Path(__file__).with_name("tiny_task.py")

CONFIG = f"""\
run: {{deterministic: true}}
placement: {{mode: inline}}
model: {{build: "{TASK}:build_model"}}
env: {{tools: ["{TASK}:add"], describe_tools_in_prompt: false}}
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
"""  # noqa: E501

_DRIVERS = multiprocessing.get_context("forkserver")
# drivers are forked from a process that has imported what takes long, and has started nothing
_DRIVERS.set_forkserver_preload(
    [
        "agentrl.run.trainer",
        "agentrl.engines.torch.engine",
        "transformers.models.qwen3.modeling_qwen3",
        __name__,
    ]
)


def start(
    config: Path,
    run_dir: Path,
    *,
    resume: bool = False,
    die_at: str = "",
    call: int = 0,
    overrides: Iterable[str] = (),
) -> BaseProcess:
    """A driver in a process of its own, which dies at call number ``call`` of
    ``module:Class.method``.
    """
    driver = _DRIVERS.Process(
        target=_drive, args=(config, run_dir, resume, die_at, call, tuple(overrides))
    )
    driver.start()
    return driver


def _drive(
    config: Path, run_dir: Path, resume: bool, die_at: str, call: int, overrides: tuple[str, ...]
) -> None:
    from agentrl.config.load import load_config
    from agentrl.run.trainer import Trainer

    if die_at:
        _shoot(die_at, call)
    with Trainer(load_config(config, [f"run.dir={run_dir}", *overrides])) as trainer:
        trainer.train(resume=resume)


def _shoot(die_at: str, call: int) -> None:
    """Makes this process die as one that is shot: nothing is flushed, closed or cleaned up."""
    module, _, path = die_at.partition(":")
    *owners, method = path.split(".")
    holder: Any = import_module(module)
    for owner in owners:
        holder = getattr(holder, owner)
    real, calls = getattr(holder, method), itertools.count()

    def shot(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(holder, method, shot)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl`` without what a clock measured; none where there is no file
    yet.
    """
    rows = read_jsonl(run_dir / "metrics.jsonl")
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


def descendants(pid: int | None) -> set[int]:
    """The processes that a process started, and those that they started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    while fresh := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= fresh
    return found


def name_of(pid: int) -> str:
    """What a process is called; nothing where it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")
    except OSError:
        return ""
