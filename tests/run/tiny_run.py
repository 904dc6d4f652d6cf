"""Whole runs of a tiny model: a configuration of two stages, and a driver that dies where it is
told to.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from agentrl.store import read_jsonl
from tests.kit.forks import FORKS, send_itself

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

TRAINED = (
    "stages.warmup.steps=2",
    "stages.rl.steps=2",
    "stages.rl.eval.every=null",
    "store.detail=full",
    "env.describe_tools_in_prompt=true",
    "data.max_prompt_tokens=600",
)
"""Settings of the run that is trained once a session (``conftest.py``)."""


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
    driver = FORKS.Process(
        target=_drive, args=(config, run_dir, resume, die_at, call, tuple(overrides))
    )
    driver.start()
    return driver


def _drive(
    config: Path,
    run_dir: Path,
    resume: bool,
    die_at: str,
    call: int,
    overrides: tuple[str, ...],
) -> None:
    if die_at:
        send_itself(signal.SIGKILL, die_at, call)
    _train(config, run_dir, overrides, resume, {})


def train(
    folder: Path,
    *overrides: str,
    text: str = CONFIG,
    name: str = "run",
    resume: bool = False,
    **live: Any,
) -> Path:
    """A run in ``folder``, trained to its end in this process; its directory."""
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    _train(folder / "config.yaml", folder / name, overrides, resume, live)
    return folder / name


def _train(
    config: Path,
    run_dir: Path,
    overrides: Iterable[str],
    resume: bool,
    live: Mapping[str, Any],
) -> None:
    from agentrl.config.load import load_config
    from agentrl.run.trainer import Trainer

    with Trainer(
        load_config(config, [f"run.dir={run_dir}", *overrides]), **live
    ) as trainer:
        trainer.train(resume=resume)


def told(run_dir: Path, event: str) -> list[str]:
    """The messages of an event."""
    return [
        row["message"]
        for row in read_jsonl(run_dir / "events.jsonl")
        if row["event"] == event
    ]


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
            parents[int(stat.parent.name)] = int(
                stat.read_text().rpartition(")")[2].split()[1]
            )
    found: set[int] = set()
    while (
        fresh := {child for child, parent in parents.items() if parent in found | {pid}}
        - found
    ):
        found |= fresh
    return found


def name_of(pid: int) -> str:
    """What a process is called; nothing where it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")
    except OSError:
        return ""
