"""GPU hybrid: GRPO steps whose trainer and SGLang server have one GPU in turn.

``python -m benchmarks.gpu_hybrid`` trains a random Qwen3 of 0.6B for 20 steps on the GPU at hand,
with SGLang's environment (``agentrl install sglang --gpu``), and reports seconds and memory of each
phase. Arguments such as ``rollout.sglang.weight_sync=disk`` are settings of the run. ``--device cpu
--tiny`` tries the same code on a CPU, ``--engine torch`` without SGLang.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.config.load import load_config
from agentrl.engines.weights import read_config
from agentrl.envs import EpisodeView
from agentrl.run.trainer import Trainer
from agentrl.store import read_jsonl
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import load_object
from benchmarks.figures import NOT_HERE, ROOT, Figures, add_arguments
from benchmarks.trainer.shapes import config_of

__all__ = ["drawn", "measure"]

CALCULATOR = ROOT / "benchmarks" / "calculator"
SHAPE = "0.6B"
TINY_SHAPE = "tiny"
COLD_STEPS = 1
SECONDS = (
    "step",
    "wait_rollout",
    "update",
    "publish",
    "engine_sleep",
    "trainer_away",
    "engine_wake",
)
PHASES = ("rollout", "update", "publish")
GIB = 2**30


def drawn(view: EpisodeView) -> float:
    """A reward that differs within every group: a random model earns no other."""
    ids = b"".join(
        part.token_ids.tobytes() for turn in view.turns for part in turn.completion
    )
    return zlib.crc32(ids) / 2**32


def make_model(folder: Path, shape: str, device: str) -> int:
    """A random model of a shape with the calculator's tokenizer, in bfloat16; its bytes."""
    from transformers import Qwen3ForCausalLM

    build_tiny_model(
        folder,
        load_object("task.py:demonstrations", CALCULATOR)(0),
        num_demonstrations=200,
        hidden=32,
        layers=1,
        ff=48,
    )
    torch.manual_seed(0)
    config = config_of(shape)
    config.eos_token_id = read_config(folder)["eos_token_id"]
    # a padding token's embedding is zero, and 28 norms of nothing make its gradient infinite
    config.pad_token_id = None
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    num_bytes: int = 2 * sum(one.numel() for one in model.parameters())
    return num_bytes


def settings(arguments: argparse.Namespace, folder: Path) -> str:
    """The run's configuration."""
    task = CALCULATOR / "task.py"
    return f"""\
run: {{dir: "{arguments.run_dir or folder / "run"}"}}
placement: {{mode: inline, device: {arguments.device}}}
model: {{path: "{folder / "model"}"}}
env: {{entry_point: "{task}:Calculator", tools: ["{task}:calc"], describe_tools_in_prompt: false}}
data: {{train: "{task}:tasks", max_prompt_tokens: 128}}
reward: {{functions: ["{Path(__file__).resolve()}:drawn"]}}
algorithm: {{name: grpo}}
checkpoint: {{every: null}}
rollout:
  engine: {arguments.engine}
  sleep: true
  group_size: {arguments.group}
  max_turns: 1
  max_turn_tokens: {arguments.tokens}
  max_response_tokens: {arguments.tokens}
  max_running: {arguments.prompts * arguments.group}
train: {{steps: {arguments.steps}, batch_prompts: {arguments.prompts}}}
optim: {{lr: 1.0e-5}}
"""


def report(figures: Figures, rows: Sequence[Mapping[str, Any]], num_bytes: int) -> None:
    """What the steps' rows of ``metrics.jsonl`` say, but for the first steps."""
    warm = rows[COLD_STEPS:] or rows
    figures.report("steps", len(rows), "")
    figures.report("model", num_bytes / GIB, "GiB")
    for name in SECONDS:
        seconds = [row[f"time/{name}_s"] for row in warm]
        figures.report(f"{name}, median a step", statistics.median(seconds), "s")
    publish_s = statistics.median(row["time/publish_s"] for row in warm)
    figures.report("publish", num_bytes / GIB / publish_s, "GiB/s")
    for phase in PHASES:
        for kind, what in (
            ("peak", "peak of the GPU"),
            ("others", "held by other processes"),
        ):
            gib = [row[name] for row in rows if (name := f"gpu/{phase}/{kind}_gib") in row]
            if gib:
                figures.report(f"{phase}: {what}", max(gib), "GiB")


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Trains the steps in this process."""
    with tempfile.TemporaryDirectory(prefix="agentrl-hybrid-") as name:
        folder = Path(name)
        shape = TINY_SHAPE if arguments.tiny else SHAPE
        num_bytes = make_model(folder / "model", shape, arguments.device)
        config = folder / "config.yaml"
        config.write_text(settings(arguments, folder), encoding="utf-8")
        loaded = load_config(config, arguments.settings)
        with Trainer(loaded) as trainer:
            trainer.train()
        rows = list(read_jsonl(Path(str(loaded.run.dir)) / "metrics.jsonl"))
    report(figures, [row for row in rows if "time/step_s" in row], num_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_hybrid", description=__doc__
    )
    parser.add_argument("settings", nargs="*", help="KEY=VALUE of the run's configuration")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--engine", choices=("sglang", "torch"), default="sglang")
    parser.add_argument("--tiny", action="store_true", help="a trial of the code")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=8, help="of a batch")
    parser.add_argument("--group", type=int, default=4, help="episodes of a prompt")
    parser.add_argument(
        "--tokens", type=int, default=128, help="that an episode samples at most"
    )
    parser.add_argument("--run-dir", type=Path, help="keeps the run directory")
    add_arguments(parser, benchmark="gpu_hybrid")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "benchmarks.gpu_hybrid needs a CUDA device and finds none; run it on a machine with a "
            "GPU, or try its code by --device cpu --tiny"
        )
        return NOT_HERE
    figures = Figures()
    measure(figures, arguments)
    figures.note(
        f"{arguments.prompts} x {arguments.group} episodes of {arguments.tokens} tokens at most; "
        "random weights, rewards drawn from the tokens. Other processes are the server and the "
        "contexts of CUDA; the trainer's own process is not among them."
    )
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
