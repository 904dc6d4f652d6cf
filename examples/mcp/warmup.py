"""Warm-up: builds a random tiny model, and demonstrations of which half have a fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import Message, load_object

HERE = Path(__file__).parent
AUTHOR_OF, BOOKS, SHELF_OF = (
    load_object(f"task.py:{name}", HERE) for name in ("AUTHOR_OF", "BOOKS", "SHELF_OF")
)
say, call = (load_object(f"../turns.py:{name}", HERE) for name in ("say", "call"))


def demonstrations(seed: int, noise: float = 0.5) -> Iterator[dict[str, Any]]:
    """Endless conversations about training books; a share ``noise`` guesses the shelf, or asks
    where the book's name is the author.
    """
    rng = random.Random(seed)
    while True:
        book = rng.choice(BOOKS[:3500])
        fault = rng.choice(("guess", "name")) if rng.random() < noise else ""
        messages: list[Message] = [{"role": "user", "content": f"Where is {book}?"}]
        author = book
        if fault != "name":
            author = AUTHOR_OF[book]
            messages += call("author", author, book=book)
        said = str(rng.choice(list(SHELF_OF.values())))
        if fault != "guess":
            answer = SHELF_OF.get(author, "unknown author")
            messages += call("shelf", answer, author=author)
            said = SHELF_OF.get(author, said)
        yield {"messages": [*messages, say(said)]}


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the demonstrations do without
    )

    build_tiny_model(
        folder, demonstrations(seed), seed=seed, vocab_size=400, hidden=96, ff=256
    )
