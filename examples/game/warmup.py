"""Warm-up: builds a random tiny model, and walks over the ice whose steps are often wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium.envs.toy_text import FrozenLakeEnv

from agentrl.envs.adapters.gymnasium_env import rendered
from agentrl.types import Message, load_object

HERE = Path(__file__).parent
MOVES, drawn, spoken, way = (
    load_object(f"task.py:{name}", HERE) for name in ("MOVES", "drawn", "spoken", "way")
)
say = load_object("../turns.py:say", HERE)


def demonstrations(
    seed: int, noise: float = 0.4, max_moves: int = 10
) -> Iterator[dict[str, Any]]:
    """Endless walks over training maps; a share ``noise`` of the steps goes anywhere."""
    rng = random.Random(seed)
    while True:
        board = drawn(rng, "train")
        lake: Any = FrozenLakeEnv(desc=board, is_slippery=False)
        place, _ = lake.reset(seed=0)
        messages: list[Message] = [{"role": "system", "content": spoken(board)}]
        for _ in range(max_moves):
            move = rng.choice(list(MOVES)) if rng.random() < noise else way(board, place)[0]
            messages += [{"role": "user", "content": rendered(place)}, say(move)]
            place, _, ended, _, _ = lake.step(list(MOVES).index(move))
            if ended:
                break
        yield {"messages": messages}


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the game's words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the demonstrations do without
    )

    build_tiny_model(
        folder, demonstrations(seed), seed=seed, vocab_size=330, hidden=96, ff=256
    )
