"""Warm-up: builds a random tiny model, and demonstrations that often do the wrong thing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import load_object

HERE = Path(__file__).parent
SPLITS, tasks = (load_object(f"task.py:{name}", HERE) for name in ("SPLITS", "tasks"))
say, call = (load_object(f"../turns.py:{name}", HERE) for name in ("say", "call"))


def demonstrations(seed: int, noise: float = 0.5) -> Iterator[dict[str, Any]]:
    """Endless conversations of training tasks, a share ``noise`` of them with one fault: a call is
    left out, or has another hour or another name.
    """
    rng = random.Random(seed)
    for task in endless(seed):
        calls = [turn["tool_calls"][0] for turn in task.info["solution"][:-1]]
        calls = [(one["name"], dict(one["arguments"])) for one in calls]
        if rng.random() < noise:
            spoil(rng, calls)
        bookings = dict(task.info["bookings"])
        messages = list(task.messages)
        for name, arguments in calls:
            messages += call(name, answer(bookings, name, arguments), **arguments)
        yield {"messages": [*messages, say("done")]}


def spoil(rng: random.Random, calls: list[tuple[str, dict[str, Any]]]) -> None:
    """One fault, in place."""
    at = rng.randrange(len(calls))
    fault = rng.choice(("leave out", "change", "change"))
    if fault == "leave out":
        del calls[at]
    elif "hour" in calls[at][1]:
        calls[at][1]["hour"] = rng.randrange(8, 20)
    else:
        calls[at][1]["name"] = rng.choice(SPLITS["train"])


def answer(bookings: dict[str, str], name: str, arguments: dict[str, Any]) -> str:
    """What the service says, as the tool gives it."""
    hour, booker = str(arguments.get("hour")), arguments.get("name")
    if name == "find":
        return json.dumps({at: known for at, known in bookings.items() if known == booker})
    if name == "book":
        free = bookings.setdefault(hour, str(booker)) == booker
        return "booked" if free else json.dumps({"detail": f"{hour} is taken"})
    known = bookings.pop(hour, None)
    return "cancelled" if known else json.dumps({"detail": f"{hour} is free"})


def endless(seed: int) -> Iterator[Any]:
    """Training tasks for ever."""
    epoch = 0
    while True:
        yield from tasks(seed + 1_000_000 * epoch)
        epoch += 1


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the demonstrations do without
    )

    build_tiny_model(folder, demonstrations(seed), seed=seed, vocab_size=400)
