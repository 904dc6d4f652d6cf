"""Warm-up: builds a random tiny model and imperfect demonstrations for it to imitate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import Message, load_object

HERE = Path(__file__).parent
FACTS, INDEX, NAMES, NUM_HELD_OUT, RELATIONS, questions = (
    load_object(f"task.py:{name}", HERE)
    for name in ("FACTS", "INDEX", "NAMES", "NUM_HELD_OUT", "RELATIONS", "questions")
)
say, call, broken_call = (
    load_object(f"../turns.py:{name}", HERE) for name in ("say", "call", "broken_call")
)

FAULTS = {"guess": 35, "stop": 20, "relation": 20, "document": 15, "json": 10}


def demonstrations(seed: int, noise: float = 0.6) -> Iterator[dict[str, Any]]:
    """Endless conversations that answer training questions, a share ``noise`` of them with one
    fault.

    Of the faults, 35% guess a name at some point, 20% stop one hop early, 20% look another relation
    up, 15% go on from the wrong name of a document, 10% write broken JSON (half of those try
    again).
    """
    rng = random.Random(seed)
    for question in questions(rng, "train"):
        fault = (
            rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            if rng.random() < noise
            else ""
        )
        at = rng.randrange(len(question.hops))
        messages: list[Message] = [{"role": "user", "content": question.text}]
        name = question.hops[0][1]
        for hop, (relation, _) in enumerate(question.hops):
            if fault == "guess" and hop == at:
                name = guess(rng)
                break
            if fault == "stop" and hop == len(question.hops) - 1:
                name = name if hop else guess(rng)
                break
            if fault == "json" and hop == at:
                messages += broken_call("search", query=f"{relation} of {name}")
                if rng.random() < 0.5:
                    name = guess(rng)
                    break
            if fault == "relation" and hop == at:
                relation = rng.choice([other for other in RELATIONS if other != relation])
            hits = INDEX.search(f"{relation} of {name}", 2)
            lines = [f"{hit.document.title}: {hit.document.text}" for hit in hits]
            messages += call("search", "\n".join(lines), query=f"{relation} of {name}")
            if fault == "document" and hop == at:
                name = rng.choice(
                    [word for line in lines for word in line.replace(":", "").split()[2:]]
                )
            else:
                name = FACTS[relation, name]
        yield {"messages": [*messages, say(name)]}


def build_model(folder: str, seed: int = 0, noise: float = 0.6) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the demonstrations do without
    )

    build_tiny_model(folder, demonstrations(seed, noise), seed=seed, vocab_size=480)


def guess(rng: random.Random) -> str:
    """A training name."""
    return str(rng.choice(NAMES[:-NUM_HELD_OUT]))
