"""Task: which of two digits is larger, with a reward model that learns from preferences."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentrl.envs import EpisodeView
from agentrl.types import Task


def is_held_out(a: int, b: int) -> bool:
    """Whether a question is never trained on, by any stage: two of each nine."""
    return (a + b) % 9 in (3, 7)


def questions(rng: random.Random, split: str) -> Iterator[tuple[int, int]]:
    """Endless pairs of different digits."""
    while True:
        a, b = rng.sample(range(10), 2)
        if is_held_out(a, b) == (split != "train"):
            yield a, b


def ask(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{a} or {b}?"}]


def tasks(seed: int, split: str = "train", num_tasks: int = 512) -> Iterator[Task]:
    """The reinforcement learning stage's data: questions without an answer to compare with."""
    rng = random.Random(f"{seed}-{split}")
    for index, (a, b) in zip(range(num_tasks), questions(rng, split), strict=False):
        yield Task(f"{split}-{index}", tuple(ask(a, b)), answer=str(max(a, b)))  # type: ignore[arg-type]


def pairs(
    seed: int, split: str = "train", num_pairs: int | None = None
) -> Iterator[dict[str, Any]]:
    """The reward model's data: of two answers to a question, the one that was preferred.

    Half the others are a digit that was not asked about. Without them the reward model would never
    have learned that such answers are bad, and the policy would find out.
    """
    rng = random.Random(f"{seed}-pairs-{split}")
    for index, (a, b) in enumerate(questions(rng, split)):
        if index == num_pairs:
            return
        other = (
            rng.choice([digit for digit in range(10) if digit not in (a, b)])
            if rng.random() < 0.5
            else min(a, b)
        )
        yield {"prompt": ask(a, b), "chosen": str(max(a, b)), "rejected": str(other)}


def demonstrations(seed: int) -> Iterator[dict[str, Any]]:
    """The warm-up's data: one of the two digits, whichever."""
    rng = random.Random(seed)
    for a, b in questions(rng, "train"):
        yield {
            "messages": [
                *ask(a, b),
                {"role": "assistant", "content": str(rng.choice((a, b)))},
            ]
        }


def correct(episode: EpisodeView) -> float:
    """Whether the answer is the larger digit; watched, not rewarded."""
    return float(episode.final_text.strip() == episode.task.answer)


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import build_tiny_model

    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=200,
        vocab_size=300,
        hidden=64,
        ff=128,
    )
