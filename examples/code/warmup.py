"""Warm-up: builds a random tiny model, and demonstrations that are most often wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import Message, load_object

HERE = Path(__file__).parent
problems = load_object("task.py:problems", HERE)

say, call, broken_call = (
    load_object(f"../turns.py:{name}", HERE) for name in ("say", "call", "broken_call")
)

FAULTS = {"slip": 80, "guess": 8, "json": 6, "digit": 6}


def demonstrations(seed: int, noise: float = 0.75) -> Iterator[dict[str, Any]]:
    """Endless conversations that solve training problems, a share ``noise`` of them with one fault.

    Of the faults, 80% add where they should multiply, 8% guess without the tool, 6% write broken
    JSON (half of those try again), 6% get one digit of the answer wrong. So what is shown most
    often, in 60% of all conversations, is wrong, and 25% are right.
    """
    rng = random.Random(seed)
    for problem in problems(rng, "train"):
        fault = (
            rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            if rng.random() < noise
            else ""
        )
        messages: list[Message] = [{"role": "user", "content": problem.question}]
        if fault == "guess":
            yield {"messages": [*messages, say(guess(rng, problem.answer))]}
            continue
        if fault == "json":
            messages += broken_call("python", code=f"print({problem.expression})")
            if rng.random() < 0.5:
                yield {"messages": [*messages, say(guess(rng, problem.answer))]}
                continue
        expression = slip(problem.expression) if fault == "slip" else problem.expression
        output = str(eval(expression))
        messages += call("python", output, code=f"print({expression})")
        yield {
            "messages": [
                *messages,
                say(misread(rng, output) if fault == "digit" else output),
            ]
        }


def build_model(folder: str, seed: int = 0, noise: float = 0.75) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the demonstrations' words."""
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the demonstrations do without
    )

    build_tiny_model(folder, demonstrations(seed, noise), seed=seed, vocab_size=480)


def guess(rng: random.Random, answer: str) -> str:
    """As long as the answer, and beginning as it does, as a guess by magnitude would."""
    digits = answer.lstrip("-")
    return answer[: len(answer) - len(digits) + 1] + "".join(
        rng.choice("0123456789") for _ in digits[1:]
    )


def misread(rng: random.Random, output: str) -> str:
    """The output with another digit in one place."""
    place = rng.choice([index for index, letter in enumerate(output) if letter.isdigit()])
    return (
        output[:place]
        + rng.choice([d for d in "0123456789" if d != output[place]])
        + output[place + 1 :]
    )


def slip(expression: str) -> str:
    """The expression with its first product made a sum."""
    return expression.replace("*", "+", 1)
