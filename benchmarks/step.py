"""Step: seconds of a training step, against TRL and by phase.

``python -m benchmarks.step --setup`` makes TRL's environment once, in a cache folder;
``python -m benchmarks.step`` measures. The calculator task runs in blocks, ours and TRL's in turn,
so that noise of the machine meets both; the first step of every block is left out. Ours is the
command ``agentrl train`` as it is: Ray, run directory and store included.
``python -m benchmarks.step --against FOLDER`` compares with another checkout of this repository
instead, on both tasks, in blocks that take turns: a step, and the driver's processor time a
trajectory.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import load_object
from benchmarks.figures import ROOT, Figures, add_arguments

__all__ = [
    "Side",
    "TRLSide",
    "checkpoint",
    "default_cache",
    "median_of",
    "sandbox_share",
    "scratch",
    "train",
]

CALCULATOR = ROOT / "benchmarks" / "calculator"
CODE = ROOT / "examples" / "code"
TASKS = {"calculator": CALCULATOR, "code": CODE}
PHASES = ("wait_rollout", "logprobs", "update", "publish", "wait_store")
TRL_PACKAGES = (
    "torch",
    "trl==1.16.*",
    "transformers",
    "accelerate",
    "datasets",
    "jmespath",
)
TARGET = 2.5
SLOWER = 1.03  # what a step, or the driver, may take over another checkout's
COLD_STEPS = 1
POLL_S = 0.05

NOTES = (
    "Like for like: warm-up checkpoint, tasks, tool function, reward, loss and optimizer, threads, "
    "versions of torch and transformers. Each step has 16 x 8 episodes of at most 3 turns of 64 "
    "tokens that end at the first turn without a call. Temperature is 1, every episode is trained "
    "once, in fp32 with matmul precision 'highest'.",
    "Not like for like: agentrl checks each call against a JSON Schema and runs it under a "
    "deadline. It keeps the sampler's logprobs, verifies token ids and published weights, and "
    "stores every trajectory. It takes two processes (Ray's worker, and the driver that stores) "
    "where TRL takes one. Each side samples by its own random numbers and continues with its own "
    "policy: tokens agree on average only.",
    "TRL generates by transformers' generate; its vLLM path takes no release that runs on a CPU, "
    "and transformers' continuous batching took 60 s a step where generate took 4.",
)

Row = Mapping[str, Any]


@dataclass(slots=True)
class Side:
    """The counted steps of one side, a row of numbers each, over all its blocks."""

    rows: list[Row] = field(default_factory=list)

    def add_block(self, rows: Sequence[Row]) -> None:
        """A block without its cold steps."""
        self.rows += rows[COLD_STEPS:]

    @property
    def driver_ms(self) -> float:
        """Processor milliseconds of the driver a trajectory that was played."""
        played = sum(float(row["count/trajectories"]) for row in self.rows)
        return 1000 * sum(float(row["driver_cpu_s"]) for row in self.rows) / played


def median_of(rows: Sequence[Row], name: str) -> float:
    """The median of a number over steps; 0 where no step has it."""
    values = [float(row[name]) for row in rows if name in row]
    return statistics.median(values) if values else 0.0


def train(
    config: Path, run_dir: Path, *overrides: str, threads: int = 1, root: Path = ROOT
) -> list[Row]:
    """Runs ``agentrl train`` of the checkout ``root`` in a process of its own.

    Returns:
        The rows of the ``rl`` stage's metrics, one a step, with the processor seconds of the
        driver since the row before as ``driver_cpu_s``.

    Raises:
        RuntimeError: the command failed; the end of its output is in the message.
    """
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(config),
        f"run.dir={run_dir}",
        *overrides,
    ]
    metrics = run_dir / "metrics.jsonl"
    cpu_s: list[float] = []  # of the driver, when each row was seen first
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**environment(threads), "PYTHONPATH": str(root)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                written = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
                cpu_s += [processor_s(process.pid)] * (written - len(cpu_s))
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        told = output.read()
    if process.returncode:
        raise RuntimeError(
            f"agentrl train ended with {process.returncode}:\n{told[-2000:]}"
        )
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    cpu_s += cpu_s[-1:] * (len(rows) - len(cpu_s))  # rows of the very end
    spent = [0.0, *(later - earlier for earlier, later in itertools.pairwise(cpu_s))]
    return [
        {**row, "driver_cpu_s": own}
        for row, own in zip(rows, spent, strict=True)
        if row["stage"] == "rl" and "time/step_s" in row
    ]


def processor_s(pid: int) -> float:
    """The processor seconds that a process, which was not waited for yet, has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def environment(threads: int) -> dict[str, str]:
    """The same for both sides."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class TRLSide:
    """TRL's trainer in a process of its own, which takes the requested number of steps and then
    waits.

    Args:
        python: the interpreter of TRL's environment.
        model: the checkpoint to start from.
        tasks: JSON lines of ``{"prompt", "answer"}``.
        out: a folder that TRL may write to; its log goes there too.
        threads: torch and OpenMP threads.
        seed: of its data order and sampling.
    """

    def __init__(
        self, python: Path, model: Path, tasks: Path, out: Path, *, threads: int, seed: int
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._log = out / "trl.log"
        command = [
            str(python),
            "-m",
            "benchmarks.calculator.trl_side",
            "--model",
            str(model),
            "--tasks",
            str(tasks),
        ]
        command += ["--out", str(out), "--threads", str(threads), "--seed", str(seed)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def block(self, num_steps: int) -> list[Row]:
        """Takes steps.

        Raises:
            RuntimeError: the process ended instead.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(num_steps, file=self._process.stdin, flush=True)
        lines = [self._process.stdout.readline() for _ in range(num_steps)]
        if not lines[-1]:
            raise RuntimeError(
                f"TRL's side ended:\n{self._log.read_text(encoding='utf-8')[-2000:]}"
            )
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def __enter__(self) -> TRLSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sandbox_share(run_dir: Path) -> float:
    """The share of the training episodes' seconds that they spent on their environment: sandbox and
    tool calls.
    """
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    ids = [summary.id for summary in reader.summaries(purpose="train")]
    environment_s = total_s = 0.0
    for stored in reader.get_many(ids):
        timings = stored.trajectory.timings
        environment_s += timings.get("prepare_s", 0.0) + timings.get("env_s", 0.0)
        total_s += sum(timings.values())
    return environment_s / total_s if total_s else 0.0


def calculator(figures: Figures, arguments: argparse.Namespace) -> None:
    """Blocks of ours and of TRL's in turn, from the same checkpoint."""
    python = trl_python(arguments.cache)
    model = checkpoint(arguments.cache, "calculator", CALCULATOR, seed=arguments.seed)
    steps = arguments.block_steps + COLD_STEPS
    threads = arguments.threads
    ours = Side()
    theirs = Side()
    with scratch() as folder:
        tasks = write_tasks(folder / "tasks.jsonl", arguments.seed)
        with TRLSide(
            python, model, tasks, folder / "trl", threads=threads, seed=arguments.seed
        ) as trl:
            for block in range(arguments.blocks):
                if block % 2:
                    theirs.add_block(trl.block(steps))
                run_dir = folder / f"ours-{block}"
                overrides = (
                    f"model.path={model}",
                    f"train.steps={steps}",
                    f"run.seed={arguments.seed + block}",
                )
                per_rank = f"placement.threads_per_rank={threads}"
                ours.add_block(
                    train(
                        CALCULATOR / "config.yaml",
                        run_dir,
                        *overrides,
                        per_rank,
                        threads=threads,
                    )
                )
                # TRL's side goes on with its own policy too
                model = run_dir / "models" / "rl"
                if not block % 2:
                    theirs.add_block(trl.block(steps))
    compare(figures, ours, theirs)


def compare(figures: Figures, ours: Side, theirs: Side) -> None:
    """The figures of both sides."""
    own_s = median_of(ours.rows, "time/step_s")
    their_s = median_of(theirs.rows, "step_s")
    figures.report(
        "calculator: steps counted on each side", min(len(ours.rows), len(theirs.rows)), ""
    )
    figures.report("calculator: step, agentrl", own_s, "s")
    figures.report("calculator: step, TRL GRPOTrainer", their_s, "s")
    figures.at_least("calculator: TRL's step over agentrl's", their_s / own_s, "x", TARGET)
    for phase in ("wait_rollout", "update", "publish"):
        figures.report(
            f"calculator: {phase}, agentrl", median_of(ours.rows, f"time/{phase}_s"), "s"
        )
    own_tokens = median_of(ours.rows, "count/trained_tokens")
    their_tokens = statistics.median(
        128 * float(row["completions/mean_length"]) for row in theirs.rows
    )
    figures.report("calculator: trained tokens a step, agentrl", own_tokens, "tokens")
    figures.report("calculator: trained tokens a step, TRL", their_tokens, "tokens")
    per_token = (their_s / their_tokens) / (own_s / own_tokens)
    figures.report(
        "calculator: TRL's seconds a trained token over agentrl's", per_token, "x"
    )


def code(figures: Figures, arguments: argparse.Namespace) -> None:
    """The code example's own settings, by phase."""
    model = checkpoint(arguments.cache, "code", CODE, seed=arguments.seed)
    with scratch() as folder:
        overrides = (
            f"model.path={model}",
            "eval.sets={}",
            "stages.rl.eval.sets={}",
            f"run.seed={arguments.seed}",
        )
        steps = f"train.steps={arguments.code_steps + COLD_STEPS}"
        rows = train(CODE / "config.yaml", folder / "run", *overrides, steps)[COLD_STEPS:]
        share = sandbox_share(folder / "run")
    figures.report("code: step", median_of(rows, "time/step_s"), "s")
    for phase in PHASES:
        figures.report(f"code: {phase}", median_of(rows, f"time/{phase}_s"), "s")
    figures.report(
        "code: episodes played a step", median_of(rows, "count/trajectories"), ""
    )
    figures.report(
        "code: a sandboxed call, p50", median_of(rows, "tool/python/latency_s/p50"), "s"
    )
    figures.report("code: share of episode time in the sandbox", share, "")


def against(figures: Figures, arguments: argparse.Namespace) -> None:
    """Blocks of this checkout and of another in turn: the same model, seed and settings, by the
    median of the ratios of equal steps.
    """
    steps = arguments.block_steps + COLD_STEPS
    for name, folder in TASKS.items():
        if arguments.only not in (None, name):
            continue
        model = checkpoint(arguments.cache, name, folder, seed=arguments.seed)
        sides = {ROOT: Side(), arguments.against.resolve(): Side()}
        for block in range(arguments.blocks):
            for root in list(sides) if block % 2 else list(reversed(sides)):
                overrides = (
                    f"model.path={model}",
                    f"train.steps={steps}",
                    f"placement.threads_per_rank={arguments.threads}",
                    f"run.seed={arguments.seed + block}",
                    "eval.sets={}",
                    "stages.rl.eval.sets={}",
                )
                config = root / folder.relative_to(ROOT) / "config.yaml"
                with scratch() as run:
                    rows = train(
                        config,
                        run / "run",
                        *overrides,
                        threads=arguments.threads,
                        root=root,
                    )
                sides[root].add_block(rows)
                step_s = median_of(rows[COLD_STEPS:], "time/step_s")
                print(f"{name}, block {block}, {root}: {step_s:.3f} s a step", flush=True)
        compare_checkouts(figures, name, *sides.values())


def compare_checkouts(figures: Figures, task: str, ours: Side, other: Side) -> None:
    """The figures of both checkouts on one task.

    Raises:
        ValueError: they did not take the same number of steps.
    """
    figures.report(f"{task}: steps counted on each side", len(ours.rows), "")
    for name in ("step", *PHASES):
        key = f"time/{name}_s"
        if any(key not in row for row in (*ours.rows, *other.rows)):  # of one of them alone
            continue
        figures.report(f"{task}: {name}", median_of(ours.rows, key), "s")
        figures.report(
            f"{task}: {name}, the other checkout", median_of(other.rows, key), "s"
        )
    pairs = list(zip(ours.rows, other.rows, strict=True))
    ratio = statistics.median(a["time/step_s"] / b["time/step_s"] for a, b in pairs)
    figures.at_most(f"{task}: a step over the other checkout's", ratio, "x", SLOWER)
    for name, side in (("", ours), (", the other checkout", other)):
        figures.report(f"{task}: driver's time a trajectory{name}", side.driver_ms, "ms")
    drivers = ours.driver_ms / other.driver_ms
    figures.at_most(
        f"{task}: driver's time over the other checkout's", drivers, "x", SLOWER
    )
    trained = "count/trained_tokens"
    same = sum(a.get(trained) == b.get(trained) for a, b in pairs) / len(pairs)
    figures.report(
        f"{task}: share of steps that train as many tokens on both sides", same, ""
    )


def checkpoint(
    cache: Path, name: str, folder: Path, *, seed: int, overrides: Sequence[str] = ()
) -> Path:
    """The warm-up's model, made once by the configuration's own ``sft`` stage.

    Its name contains a hash of its inputs, so that a change of the task builds another.
    """
    sources = [path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".yaml")]
    made_of = [path.read_bytes() for path in sources] + [
        text.encode() for text in overrides
    ]
    digest = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:12]
    model = cache / f"{name}-{seed}-{digest}"
    if not model.is_dir():
        with scratch() as run:
            print(f"warming up the {name} model, once: minutes", flush=True)
            once = (
                "train.steps=1",
                "stages.rl.eval.sets={}",
                f"run.seed={seed}",
                *overrides,
            )
            train(folder / "config.yaml", run / "run", *once)
            part = cache / f".{model.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(run / "run" / "models" / "warmup", part)
            part.rename(model)
    return model


def write_tasks(path: Path, seed: int) -> Path:
    """The training tasks for TRL's side, which has no agentrl."""
    rows = load_object("task.py:tasks", CALCULATOR)(seed)
    lines = [
        json.dumps({"prompt": list(task.messages), "answer": task.answer}) for task in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def trl_python(cache: Path) -> Path:
    """The interpreter of TRL's environment."""
    python = cache / "trl-1.16" / "bin" / "python"
    if not python.is_file():
        sys.exit("TRL's environment is missing; make it: python -m benchmarks.step --setup")
    return python


def set_up(cache: Path, torch_index: str | None) -> None:
    """Makes TRL's environment with the versions that this repository pins."""
    part = cache / "trl-1.16"
    shutil.rmtree(part, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(part)], check=True)
    index = ["--extra-index-url", torch_index] if torch_index else []
    pins = ["-c", str(ROOT / "constraints-cpu.txt")]
    pip = [
        str(part / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, *pins, *index, *TRL_PACKAGES], check=True)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentrl-step-") as folder:
        yield Path(folder)


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "agentrl" / "benchmarks"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument(
        "--setup", action="store_true", help="make TRL's environment, and end"
    )
    parser.add_argument(
        "--torch-index", metavar="URL", help="one more package index for --setup"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=default_cache(),
        help="environment and warm-up checkpoints",
    )
    parser.add_argument("--only", choices=("calculator", "code"), help="one half alone")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="compare with another checkout instead",
    )
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each side (5)")
    parser.add_argument(
        "--block-steps", type=int, default=5, help="counted steps of a block (5)"
    )
    parser.add_argument(
        "--code-steps", type=int, default=10, help="counted steps of the code example (10)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of both sides (1)")
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser, benchmark="step")
    arguments = parser.parse_args(argv)

    arguments.cache.mkdir(parents=True, exist_ok=True)
    if arguments.setup:
        set_up(arguments.cache, arguments.torch_index)
        return 0
    figures = Figures()
    if arguments.against is not None:
        against(figures, arguments)
        return figures.finish(arguments, seeds=[arguments.seed])
    if arguments.only != "code":
        for note in NOTES:
            figures.note(note)
        calculator(figures, arguments)
    if arguments.only != "calculator":
        code(figures, arguments)
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
