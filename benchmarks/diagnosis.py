"""Diagnosis: planted faults that "Look here" must date, and healthy runs of which it must say
nothing.

Each seed trains a tiny model to a step, and a copy of the run goes on twice: as before, and with a
fault that is switched on. A fault counts as found when one of the first three lines names its step,
or one beside it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from benchmarks.figures import ROOT, Figures, add_arguments

__all__ = ["FAULTS", "Diagnosis", "Fault"]

TASK = ROOT / "benchmarks" / "faults" / "task.py"
NOISY = f"{ROOT / 'benchmarks' / 'noisy_engine.py'}:NoisyEngineSpec"
STEPS = 30
SHOWN = 3
HEALTHY = 20
KEPT = ("reward 0", "unreadable calls", "source lost", "sampler departs")
NOTE = (
    f"A tiny model, sums with a tool, {STEPS} steps of GRPO after a warm-up. The thresholds were "
    "chosen on seeds 0 to 22 and 200 to 222. A fault counts where one of the first three lines "
    "names its step or one beside it."
)

CONFIG = f"""\
placement: {{mode: inline}}
model: {{build: "{TASK}:build_model"}}
env: {{tools: ["{TASK}:add"], describe_tools_in_prompt: false}}
data: {{train: "{TASK}:sums", max_prompt_tokens: 64}}
reward: {{functions: ["{TASK}:graded"]}}
rollout: {{group_size: 6, max_turns: 3, max_turn_tokens: 48, max_response_tokens: 150, max_running: 48, engine: "{NOISY}"}}
train: {{steps: {STEPS}, batch_prompts: 6}}
optim: {{lr: 1.0e-3}}
stages:
  - name: warmup
    steps: 60
    algorithm: sft
    data: "{TASK}:demonstrations"
    train: {{batch_prompts: 16}}
    optim: {{name: muon, lr: 1.0e-2, muon_lr: 0.1}}
  - name: rl
    train: {{mini_batch_prompts: 3}}
    eval: {{every: 1, sets: {{sums: {{data: "{TASK}:held_out"}}}}}}
"""  # noqa: E501

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Fault:
    """What breaks.

    Args:
        name: what ``benchmarks/faults/task.py`` calls it too, where it is the user's code.
        settings: of the stage ``rl``, from the step on.
        patch: a part of agentrl that is broken.
    """

    name: str
    settings: tuple[str, ...] = ()
    patch: Patch = nullcontext


@contextmanager
def _cut_calls() -> Iterator[None]:
    """The parser loses every closing brace."""
    from agentrl.tools.parsers.reading import FormatParser

    whole = FormatParser.parse

    def cut(self: Any, text: str, *rest: Any) -> Any:
        # not those by which the run tests the parser as it starts
        return whole(self, text.replace("}", "") if '"add"' in text else text, *rest)

    with patch.object(FormatParser, "parse", cut):
        yield


@contextmanager
def _drawn(choose: Callable[[int], int]) -> Iterator[None]:
    """The sampler draws other tasks than those that are due."""
    from agentrl.rollouts.samplers.uniform import Uniform

    whole = Uniform.next
    with patch.object(Uniform, "next", lambda self: choose(whole(self))):
        yield


@contextmanager
def _slow_update() -> Iterator[None]:
    from agentrl.training.roles.actor import Actor

    whole = Actor.update

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(1.0)
        return whole(*given, **named)

    with patch.object(Actor, "update", slow):
        yield


FAULTS = (
    Fault("reward 0"),
    Fault("reward 1"),
    Fault("reward flipped"),
    Fault("reward for length"),
    Fault("no finite gradient", ("algorithm.scale_rewards=none",)),
    Fault("tool fails"),
    Fault("slow tool"),
    Fault("long tool output"),
    Fault("environment fails"),
    Fault("source lost", patch=lambda: _drawn(lambda index: index - index % 2)),
    Fault("one task", patch=lambda: _drawn(lambda index: 0)),
    Fault("unreadable calls", patch=_cut_calls),
    Fault("slow update", patch=_slow_update),
    Fault("learning rate times 100", ("optim.lr=0.1",)),
    Fault("hot sampling", ("rollout.temperature=2.5",)),
    Fault("cold sampling", ("rollout.temperature=0.2",)),
    Fault("sampler departs", ("rollout.noisy.scale=1.0",)),
    Fault("answers cut", ("rollout.max_turn_tokens=12",)),
    Fault("empty answers", ('rollout.stop=["<|im_start|>", "1", "2", "{"]',)),
    Fault("narrow clipping", ("algorithm.clip_low=1.0e-4", "algorithm.clip_high=1.0e-4")),
    Fault("one turn", ("rollout.max_turns=1",)),
    Fault("evaluation drops"),
)


def onset_of(seed: int) -> int:
    """The first step of a fault, another one for other seeds."""
    return 9 + seed * 5 % 13


def make_base(folder: Path, seed: int) -> None:
    """A run up to the step before the fault."""
    _train(folder, seed, f"stages.rl.steps={onset_of(seed) - 1}")


def make_run(base: Path, folder: Path, seed: int, fault: Fault | None = None) -> Path:
    """The rest of a run, with a fault or without; its metrics."""
    shutil.copytree(base, folder)
    os.environ["PLANTED_FAULT"] = fault.name if fault else ""
    try:
        with fault.patch() if fault else nullcontext():
            settings = [f"stages.rl.{one}" for one in (fault.settings if fault else ())]
            _train(folder, seed, *settings, resume=True)
    finally:
        del os.environ["PLANTED_FAULT"]
    return folder


def _train(folder: Path, seed: int, *settings: str, resume: bool = False) -> None:
    from agentrl.config.load import load_config
    from agentrl.run.trainer import Trainer

    path = folder.with_suffix(".yaml")
    path.write_text(CONFIG, encoding="utf-8")
    config = load_config(path, [f"run.dir={folder}", f"run.seed={seed}", *settings])
    with Trainer(config, console=Console(file=io.StringIO())) as trainer:
        trainer.train(resume=resume)


def curves_of(run: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Steps and values of each metric of the stage ``rl``, to four digits."""
    from agentrl.viewer.runs.metrics_table import MetricsTable

    table = MetricsTable(run / "metrics.jsonl")
    table.refresh()
    own = table.stage("rl")
    series = {name: own.series(name) for name in sorted(own.names())}
    return {
        name: (one.step.tolist(), [float(f"{value:.4g}") for value in one.value])
        for name, one in series.items()
    }


@dataclass(frozen=True)
class Diagnosis:
    """What "Look here" said of a run.

    Args:
        seed, onset: of the run.
        fault: its name; empty for a healthy run.
        lines: step and text of each line.
        curves: as ``curves_of`` gives them.
    """

    seed: int
    onset: int
    fault: str
    lines: list[tuple[int | None, str]]
    curves: dict[str, tuple[list[float], list[float]]]

    @property
    def rank(self) -> int:
        """The place of the first line with the onset or a step beside it, from 1; 0 without any."""
        near = (
            step is not None and abs(step - self.onset) <= 1
            for step, _ in self.lines[:SHOWN]
        )
        return next((place for place, found in enumerate(near, 1) if found), 0)


def diagnose(seed: int, fault: Fault | None, base: Path, folder: Path) -> Diagnosis:
    """Trains a run to its end, or until the fault ends it, and reads its overview."""
    from agentrl.errors import AgentRLError
    from agentrl.store import RunDirectory
    from agentrl.viewer.runs.open_run import OpenRun
    from agentrl.viewer.views.run_view import overview

    try:
        make_run(base, folder, seed, fault)
    except AgentRLError as error:
        # such as for three gradients in a row that are not finite
        print(f"{fault}: {error}", file=sys.stderr)
    run = OpenRun(RunDirectory.open(folder))
    try:
        with run.lock:
            found = overview(run)["findings"]
    finally:
        run.close()
    lines = [(one["step"], one["text"]) for one in found]
    name = fault.name if fault else ""
    return Diagnosis(seed, onset_of(seed), name, lines, curves_of(folder))


def diagnose_seed(seed: int, place: int) -> list[Diagnosis]:
    """The fault of a place, and the healthy run beside it."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        make_base(folder / "base", seed)
        runs: list[Fault | None] = [FAULTS[place], *([None] if place < HEALTHY else [])]
        return [
            diagnose(seed, fault, folder / "base", folder / f"run{index}")
            for index, fault in enumerate(runs)
        ]


def keep(found: Sequence[Diagnosis], path: Path) -> None:
    """Writes the curves of the runs that the tests have."""
    from agentrl.metrics.changes import gauge_of
    from agentrl.metrics.monitors import HealthSpec

    kept = [
        one for one in found if one.fault in KEPT or (not one.fault and one.seed % 10 == 0)
    ]
    texts = {
        one.fault or f"healthy {one.seed}": {
            "onset": one.onset if one.fault else None,
            "curves": {
                name: curve
                for name, curve in one.curves.items()
                if name in ("count/trajectories", "reward/std")
                or gauge_of(name, HealthSpec(), 1.0) is not None
            },
        }
        for one in kept
    }
    packed = gzip.compress(json.dumps(texts, separators=(",", ":")).encode(), 9, mtime=0)
    path.write_bytes(packed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnosis", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=300, help="of the first run (300)")
    parser.add_argument("--workers", type=int, default=2, help="runs at once (2)")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="curves for the tests")
    add_arguments(parser, benchmark="diagnosis")
    arguments = parser.parse_args(argv)
    seeds = range(arguments.seed, arguments.seed + len(FAULTS))
    found: list[Diagnosis] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, spawn) as pool:
        for pair in pool.map(diagnose_seed, seeds, range(len(FAULTS))):
            found += pair
            for one in pair:
                first = one.lines[0][1] if one.lines else "nothing"
                print(
                    f"{one.fault or 'healthy'}, step {one.onset}: {one.rank}; {first}",
                    flush=True,
                )
    if arguments.keep:
        keep(found, arguments.keep)
    planted = [one for one in found if one.fault]
    healthy = [one for one in found if not one.fault]
    figures = Figures()
    dated = sum(one.rank > 0 for one in planted)
    figures.at_least(f"faults dated, of {len(planted)}", dated, "", len(planted))
    figures.report(
        "faults dated by the first line", sum(one.rank == 1 for one in planted), ""
    )
    wrong = sum(bool(one.lines) for one in healthy)
    figures.at_most(f"healthy runs with a line, of {len(healthy)}", wrong, "", 0)
    figures.note(NOTE)
    for one in planted:
        figures.note(f"- {one.fault}, from step {one.onset}: line {one.rank or 'none'}.")
    return figures.finish(arguments, seeds=seeds)


if __name__ == "__main__":
    sys.exit(main())
