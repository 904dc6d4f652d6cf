"""TRL side: TRL's half of benchmarks/step.py, in an environment without agentrl.

It waits on standard input for a number of steps, takes them, and answers each with a JSON line on
standard output; 0, or the end of the input, ends it. Between two blocks it waits within
``GRPOTrainer``'s own loop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.chat_template_utils import qwen3_template
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.calculator.arithmetic import evaluate

GROUP_SIZE = 8
PROMPTS = 16
ENDLESS = 1_000_000

# GRPOTrainer always hands its tools to the chat template; this side must show the policy the same
# prompt as ours.
SILENT_TOOLS = "{%- set tools = none %}"


class BlocksEndError(Exception):
    """No further block was asked for."""


def calc(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: whole numbers with +, -, * and brackets.
    """
    return evaluate(expression)


def correct(
    completions: list[list[dict[str, Any]]], answer: list[str], **columns: Any
) -> list[float]:
    """The reward: whether the last message is the number, and nothing else."""
    del columns
    return [
        float((messages[-1].get("content") or "").strip() == expected)
        for messages, expected in zip(completions, answer, strict=True)
    ]


class Blocks(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Holds the training loop at the start of a step until a block is asked for, and times each
    step of it.

    A step is all from its own beginning to the beginning of the next: data, generation, tools,
    update, logging.
    """

    def __init__(self, ask: Callable[[], int], answer: TextIO) -> None:
        self.ask = ask
        self.answer = answer
        self.left = 0
        self.started: float | None = None
        self.logged: dict[str, float] = {}

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float], **objects: Any
    ) -> None:
        self.logged |= logs

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        now = time.monotonic()
        if self.started is not None:
            row = {
                "step_s": now - self.started,
                **{name: float(value) for name, value in self.logged.items()},
            }
            print(json.dumps(row), file=self.answer, flush=True)
            self.left -= 1
        if self.left <= 0:
            self.left = self.ask()
            if self.left <= 0:
                raise BlocksEndError
        self.started = time.monotonic()


def main() -> None:
    arguments = parse()
    # Whatever the libraries print goes to standard error: standard output carries answers alone.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision(arguments.matmul_precision)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    tokenizer.chat_template = SILENT_TOOLS + tokenizer.chat_template
    tokenizer.response_template = qwen3_template
    rows = [
        json.loads(line)
        for line in arguments.tasks.read_text(encoding="utf-8").splitlines()
    ]
    blocks = Blocks(lambda: int(sys.stdin.readline() or 0), answers)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=torch.float32, attn_implementation=arguments.attention
        ),
        reward_funcs=correct,
        args=settings(arguments),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[calc],
        callbacks=[blocks],
    )
    with contextlib.suppress(BlocksEndError):
        trainer.train()


def settings(arguments: argparse.Namespace) -> GRPOConfig:
    """Ours, in TRL's words; what is left out is off by default or has the same default."""
    num_micro_batches = PROMPTS * GROUP_SIZE // arguments.micro_batch
    return GRPOConfig(
        output_dir=str(arguments.out),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=arguments.seed,
        max_steps=ENDLESS,
        per_device_train_batch_size=arguments.micro_batch,
        gradient_accumulation_steps=num_micro_batches,
        num_generations=GROUP_SIZE,
        temperature=1.0,
        max_completion_length=320,
        generation_kwargs={"max_new_tokens": 64},
        max_tool_calling_iterations=2,
        cache_implementation=arguments.cache,
        use_transformers_continuous_batching=arguments.continuous_batching,
        num_iterations=1,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument(
        "--tasks",
        type=Path,
        required=True,
        help='JSON lines of {"prompt": [...], "answer": ...}',
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matmul-precision", default="highest")
    parser.add_argument(
        "--micro-batch", type=int, default=128, help="sequences in one forward and backward"
    )
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--cache", default=None)
    parser.add_argument("--continuous-batching", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
