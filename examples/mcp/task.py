"""MCP task: where a book stands, which only the server's catalogue tells, in two calls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from agentrl.types import Task, load_object

AUTHOR_OF, BOOKS, SHELF_OF = (
    load_object(f"server.py:{name}", Path(__file__).parent)
    for name in ("AUTHOR_OF", "BOOKS", "SHELF_OF")
)


def tasks(seed: int, split: str = "train", num_tasks: int = 2000) -> Iterator[Task]:
    """The data set: ``split`` is ``train`` or ``held_out``, which has books of its own."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        book = rng.choice(BOOKS[3500:] if split == "held_out" else BOOKS[:3500])
        author = AUTHOR_OF[book]
        calls = [
            {"name": "author", "arguments": {"book": book}},
            {"name": "shelf", "arguments": {"author": author}},
        ]
        yield Task(
            f"{split}-{index}",
            ({"role": "user", "content": f"Where is {book}?"},),
            answer=SHELF_OF[author],
            info={"solution": [*({"tool_calls": [c]} for c in calls), SHELF_OF[author]]},
        )
