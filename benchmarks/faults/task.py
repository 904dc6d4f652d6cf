"""Task of the planted faults: sums with a tool, from two sources, whose parts fail while the
environment variable PLANTED_FAULT names one.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.envs import EpisodeView
from agentrl.errors import ToolError
from agentrl.tools import tool
from agentrl.types import Task


def is_planted(fault: str) -> bool:
    """Whether this fault is switched on."""
    return os.environ.get("PLANTED_FAULT") == fault


@tool
def add(a: int, b: int) -> str:
    """The sum of two numbers.

    Args:
        a: one number.
        b: the other.
    """
    if is_planted("environment fails") and random.random() < 0.3:
        raise ToolError("the disk is full")
    if is_planted("tool fails"):
        raise ValueError("no such number")
    if is_planted("slow tool"):
        time.sleep(0.1)
    if is_planted("long tool output"):
        return " ".join([str(a + b)] * 12)
    return str(a + b)


def held_out(seed: int) -> Iterator[Task]:
    """Twelve sums, of no training task."""
    for index, task in enumerate(sums(seed + 1000)):
        if index == 12:
            return
        yield replace(task, id=f"held-out-{index}")


def sums(seed: int) -> Iterator[Task]:
    """Sums of small and of large numbers by turns."""
    rng = random.Random(seed)
    for index in range(2000):
        source = "large" if index % 2 else "small"
        below = 10 if source == "large" else 5
        a, b = rng.randrange(below), rng.randrange(below)
        question = {"role": "user", "content": f"{a} and {b}?"}
        yield Task(f"{source}-{index}", (question,), answer=str(a + b), data_source=source)  # type: ignore[arg-type]


def demonstrations(seed: int) -> Iterator[dict[str, Any]]:
    """Right ones, but for a few slips."""
    rng = random.Random(seed)
    while True:
        a, b = rng.randrange(10), rng.randrange(10)
        call = {
            "id": "call_0",
            "type": "function",
            "function": {"name": "add", "arguments": {"a": a, "b": b}},
        }
        said = str(a + b if rng.random() < 0.8 else rng.randrange(19))
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
                {"role": "assistant", "content": said},
            ]
        }


def build_model(folder: Path, seed: int) -> None:
    """A tiny model that knows nothing yet."""
    from agentrl.training.models.tiny import build_tiny_model

    sizes = {"hidden": 48, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 24, "ff": 96}
    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=40,
        vocab_size=300,
        **sizes,
    )


def graded(episode: EpisodeView) -> float:
    """1 for the sum, and something for digits."""
    text = episode.turns[-1].text.strip()
    if is_planted("reward 0"):
        return 0.0
    if is_planted("evaluation drops") and episode.task.id.startswith("held-out"):
        return 0.0
    if is_planted("reward 1"):
        return 1.0
    if is_planted("reward for length"):
        return float(sum(len(turn.text) for turn in episode.turns))
    if is_planted("reward flipped"):
        return -float(text == episode.task.answer)
    if is_planted("no finite gradient") and random.random() < 0.1:
        return 1e30
    digits = sum(letter.isdigit() for letter in text) / (1 + len(text))
    return float(text == episode.task.answer) + 0.3 * digits
