"""Till: a stateful tool for each episode; the policy enters prices and says the total."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.envs import EpisodeView
from agentrl.tools import tool
from agentrl.types import Task, load_object

HERE = Path(__file__).parent
say, call = (load_object(f"../turns.py:{name}", HERE) for name in ("say", "call"))


@tool
class Ring:
    """Ring up a price."""

    def __init__(self, deposit: int = 0) -> None:
        self.total = deposit

    def __call__(self, price: int) -> str:
        """Add a price and read the total.

        Args:
            price: what one thing costs
        """
        self.total += price
        return str(self.total)


def tasks(
    seed: int, split: str = "train", num_tasks: int = 400, deposit: int = 0
) -> Iterator[Task]:
    """The data set: the total of two to four prices, which the till counts on from its deposit."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        prices = drawn(rng)
        question = f"What do {' and '.join(map(str, prices))} make?"
        yield Task(
            f"{split}-{index}",
            ({"role": "user", "content": question},),
            answer=str(sum(prices) + deposit),
        )


def demonstrations(
    seed: int, noise: float = 0.5, deposit: int = 0
) -> Iterator[dict[str, Any]]:
    """Endless conversations; a share ``noise`` leaves a price out, rings one up twice, or makes the
    total up.
    """
    rng = random.Random(seed)
    for task in endless(seed):
        prices = [
            int(word) for word in task.messages[0]["content"].split() if word.isdigit()
        ]
        fault = rng.choice(("less", "more", "guess")) if rng.random() < noise else ""
        if fault == "less":
            del prices[rng.randrange(len(prices))]
        elif fault == "more":
            prices.append(rng.choice(prices))
        messages = list(task.messages)
        total = deposit
        for price in prices:
            total += price
            messages += call("ring", str(total), price=price)
        yield {
            "messages": [
                *messages,
                say(str(rng.randrange(10, 100) if fault == "guess" else total)),
            ]
        }


def correct(episode: EpisodeView) -> float:
    """The reward: whether the last message is the total."""
    return float(episode.final_text.strip() == episode.task.answer)


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the tasks do without
    )

    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=500,
        vocab_size=330,
        hidden=96,
        ff=256,
    )


def drawn(rng: random.Random) -> list[int]:
    return [rng.randrange(1, 30) for _ in range(rng.choice((2, 3, 3, 4)))]


def endless(seed: int) -> Iterator[Task]:
    """Training tasks for ever, none of them held out."""
    epoch = 0
    while True:
        yield from tasks(seed, f"train-{epoch}")
        epoch += 1
