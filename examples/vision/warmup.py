"""Warm-up: builds a random tiny model that sees, and demonstrations that most often only guess."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from agentrl.types import Message, load_object

HERE = Path(__file__).parent
ASKED, CELL, COUNTS, PARTS, cut, drawn = (
    load_object(f"task.py:{name}", HERE)
    for name in ("ASKED", "CELL", "COUNTS", "PARTS", "cut", "drawn")
)
say, call, broken_call = (
    load_object(f"../turns.py:{name}", HERE) for name in ("say", "call", "broken_call")
)

FAULTS = {"guess": 80, "part": 10, "count": 5, "json": 5}


def demonstrations(
    seed: int, noise: float = 0.7, num_scenes: int = 500, blank: bool = False
) -> Iterator[dict[str, Any]]:
    """Endless conversations about ``num_scenes`` pictures, a share ``noise`` with one fault.

    Of the faults, 80% guess without a closer look, 10% look at another part, 5% miscount what they
    saw, 5% write broken JSON and try again.
    """
    for epoch in count():
        rng, choices = random.Random(f"{seed}-shown"), random.Random(f"{seed}-{epoch}")
        for _ in range(num_scenes):
            scene = drawn(rng, blank)
            faulty = choices.random() < noise
            fault = (
                choices.choices(list(FAULTS), list(FAULTS.values()))[0] if faulty else ""
            )
            yield {"messages": [scene.message, *shown(scene, fault, choices)]}


def shown(scene: Any, fault: str, rng: random.Random) -> list[Message]:
    """What is said about a scene."""
    if fault == "guess":
        return [say(str(rng.choice(COUNTS)))]
    part = scene.part
    if fault == "part":
        part = rng.choice([other for other in PARTS if other != part])
    box = box_of(part)
    messages: list[Message] = broken_call("crop", **box) if fault == "json" else []
    asking, answer = call("crop", "", **box)
    answer["content"] = [{"type": "image", "image": cut(scene.image, **box)}]
    counted = counts(scene.seen(part))
    if fault == "count":
        colour, number = counted[-1]
        counted[-1] = colour, rng.choice([other for other in COUNTS if other != number])
    return [
        *messages,
        asking,
        answer,
        say(", ".join(f"{one} {number}" for one, number in counted)),
    ]


def counts(seen: list[str]) -> list[tuple[str, int]]:
    """Each colour, and how many of the one that is asked for there were up to it."""
    return [(colour, seen[: place + 1].count(ASKED)) for place, colour in enumerate(seen)]


def box_of(part: str) -> dict[str, int]:
    """The arguments that cut a part out."""
    left, top = (CELL * cells for cells in PARTS[part])
    return {"left": left, "top": top, "size": 2 * CELL}


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3-VL whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the demonstrations do without
    )

    build_tiny_model(
        folder,
        demonstrations(seed),
        seed=seed,
        num_demonstrations=300,
        vocab_size=340,
        hidden=64,
        ff=192,
        image_tokens=4,
    )
