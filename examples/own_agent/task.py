"""Task: questions about prices, imperfect demonstrations and a tiny model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import Task, load_object

HERE = Path(__file__).parent
say, call = (load_object(f"../turns.py:{name}", HERE) for name in ("say", "call"))
PRICES = load_object("agent.py:PRICES", HERE)


def tasks(seed: int, split: str = "train", num_tasks: int = 200) -> Iterator[Task]:
    """``data.train``: what does a fruit cost? The agent looks it up; the answer stays with the
    reward.
    """
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        fruit = rng.choice(sorted(PRICES))
        yield Task(
            f"{split}-{index}",
            ({"role": "user", "content": question(rng, fruit)},),
            answer=str(PRICES[fruit]),
        )


def question(rng: random.Random, fruit: str) -> str:
    """One of the ways to ask."""
    return rng.choice(
        ["What does a {} cost?", "How much is a {}?", "Price of a {}?"]
    ).format(fruit)


def demonstrations(seed: int, noise: float = 0.6) -> Iterator[dict[str, Any]]:
    """Endless conversations; a share ``noise`` of them ask for another fruit, or guess without
    asking.
    """
    rng = random.Random(seed)
    while True:
        fruit = asked = rng.choice(sorted(PRICES))
        messages = [{"role": "user", "content": question(rng, fruit)}]
        fault = rng.choice(["guess", "other"]) if rng.random() < noise else ""
        if fault == "guess":
            yield {"messages": [*messages, say(str(rng.randrange(100)))]}
            continue
        if fault == "other":
            asked = rng.choice(sorted(PRICES))
        price = str(PRICES[asked])
        yield {"messages": [*messages, *call("price", price, fruit=asked), say(price)]}


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the tasks do without
    )

    build_tiny_model(folder, demonstrations(seed), seed=seed, vocab_size=420)
