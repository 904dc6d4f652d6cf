"""A task small enough for a test: sums with a tool, a tiny model made from nothing, a reward that
varies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.envs import EpisodeView
from agentrl.tools import tool
from agentrl.types import Task


@tool
def add(a: int, b: int) -> str:
    """The sum of two numbers.

    Args:
        a: one number.
        b: the other.
    """
    return str(a + b)


def tasks(seed: int, split: str = "train", num_tasks: int = 12) -> Iterator[Task]:
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        a, b = rng.randrange(10), rng.randrange(10)
        question = {"role": "user", "content": f"{a} and {b}?"}
        yield Task(f"{split}-{index}", (question,), answer=str(a + b))  # type: ignore[arg-type]


def demonstrations(seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    while True:
        a, b = rng.randrange(10), rng.randrange(10)
        call = {
            "id": "call_0",
            "type": "function",
            "function": {"name": "add", "arguments": {"a": a, "b": b}},
        }
        yield {
            "messages": [
                {"role": "user", "content": f"{a} and {b}?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {
                    "role": "tool",
                    "content": str(a + b),
                    "tool_call_id": "call_0",
                    "name": "add",
                },
                {"role": "assistant", "content": str(a + b)},
            ]
        }


def build_even_model(folder: Path, seed: int) -> None:
    """One whose vocabulary two ranks can share."""
    build_model(folder, seed, vocab_size=290)


def build_staged_model(folder: Path, seed: int) -> None:
    """One whose layers and heads two ranks can share too."""
    build_model(folder, seed, vocab_size=290, layers=2, kv_heads=2)


def build_model(folder: Path, seed: int, vocab_size: int = 300, **own: int) -> None:
    from agentrl.training.models.tiny import build_tiny_model

    sizes = {
        "hidden": 32,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "ff": 48,
    } | own
    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=40,
        vocab_size=vocab_size,
        **sizes,
    )


def graded(episode: EpisodeView) -> float:
    """Something that differs between the answers of a model that knows nothing."""
    text = episode.turns[-1].text
    return float(text.strip() == episode.task.answer) + sum(
        letter.isdigit() for letter in text
    ) / (1 + len(text))
