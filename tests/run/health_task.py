"""A task that a tiny model learns in a few steps: mostly, it repeats the digit of the question."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import Task


def tasks(seed: int, num_tasks: int = 12) -> Iterator[Task]:
    rng = random.Random(seed)
    for index in range(num_tasks):
        digit = str(rng.randrange(10))
        yield Task(f"digit-{index}", ({"role": "user", "content": digit},), answer=digit)


def demonstrations(seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    while True:
        digit = str(rng.randrange(10))
        answer = digit if rng.random() < 0.6 else str(rng.randrange(10))
        said = {
            "role": "assistant",
            "content": " ".join(answer * rng.choice((1, 1, 1, 2, 3))),
        }
        yield {"messages": [{"role": "user", "content": digit}, said]}


def build_model(folder: Path, seed: int) -> None:
    from agentrl.training.models.tiny import build_tiny_model

    sizes = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "ff": 48}
    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=40,
        vocab_size=300,
        **sizes,
    )


def build_padded_model(folder: Path, seed: int) -> None:
    """The same with 64 ids that the tokenizer has no text for."""
    from transformers import AutoModelForCausalLM

    build_model(folder, seed)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size + 64)
    model.save_pretrained(folder)
