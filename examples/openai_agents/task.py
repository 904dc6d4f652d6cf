"""Task: questions about trains, imperfect demonstrations and a tiny model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.types import Task, ToolSpec, load_object

HERE = Path(__file__).parent
say, call = (load_object(f"../turns.py:{name}", HERE) for name in ("say", "call"))

TRAINS = {
    "Bern": "7:40",
    "Genoa": "9:05",
    "Lyon": "6:52",
    "Milan": "8:18",
    "Paris": "5:31",
    "Turin": "9:47",
}
"""The same as in agent.py, which is not loaded here: training does not need the agent's
packages.
"""

SYSTEM = "Look up departures."
"""The agent's instructions."""

TOOL = ToolSpec(
    "departure",
    "When the next train to a city leaves.",
    {
        "properties": {"city": {"title": "City", "type": "string"}},
        "required": ["city"],
        "title": "departure_args",
        "type": "object",
        "additionalProperties": False,
    },
)
"""What the SDK tells of the agent's tool: a demonstration's prompt is that of an episode, token by
token.
"""


def tasks(seed: int, split: str = "train", num_tasks: int = 200) -> Iterator[Task]:
    """``data.train``: when does the train leave? The answer stays with the reward."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        city = rng.choice(sorted(TRAINS))
        yield Task(
            f"{split}-{index}",
            ({"role": "user", "content": question(rng, city)},),
            answer=TRAINS[city],
        )


def question(rng: random.Random, city: str) -> str:
    """One of the ways to ask."""
    return rng.choice(["When to {}?", "Next train to {}?", "I must go to {}."]).format(city)


def demonstrations(seed: int, noise: float = 0.6) -> Iterator[dict[str, Any]]:
    """Endless conversations; a share ``noise`` of them look up another city, or guess without
    looking.
    """
    rng = random.Random(seed)
    while True:
        city = asked = rng.choice(sorted(TRAINS))
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question(rng, city)},
        ]
        fault = rng.choice(["guess", "other"]) if rng.random() < noise else ""
        if fault == "guess":
            yield {
                "messages": [
                    *messages,
                    say(f"{rng.randrange(10)}:{rng.randrange(10, 60)}"),
                ],
                "tools": [TOOL],
            }
            continue
        if fault == "other":
            asked = rng.choice(sorted(TRAINS))
        leaves = TRAINS[asked]
        yield {
            "messages": [*messages, *call("departure", leaves, city=asked), say(leaves)],
            "tools": [TOOL],
        }


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the words of the demonstrations and of
    the tool.
    """
    from agentrl.render.families.chatml import (  # what the template says around it
        TOOLS_HEAD,
        TOOLS_TAIL,
    )
    from agentrl.training.models.tiny import (
        build_tiny_model,  # loads torch, which the tasks do without
    )

    def read() -> Iterator[dict[str, Any]]:
        told = {
            "role": "system",
            "content": f"{SYSTEM}\n\n{TOOLS_HEAD}\n{json.dumps(TOOL.openai())}{TOOLS_TAIL}",
        }
        for row in demonstrations(seed):
            yield {"messages": [told, *row["messages"][1:]]}

    build_tiny_model(folder, read(), seed=seed, num_demonstrations=300, vocab_size=640)
