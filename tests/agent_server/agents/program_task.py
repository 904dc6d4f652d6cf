"""What a tiny model needs to begin inside a program: one conversation of it, recorded, with the
questions of the code example.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Any

from agentrl.envs import EpisodeView
from agentrl.types import ToolSpec, load_object

CODE = Path(__file__).parents[3] / "examples" / "code"
QUESTION = "How much is a fig?"
"""Of the recorded task (``conftest.play_command``)."""
_NUMBERS = count()


def demonstrations(seed: int, recorded: str = "") -> Iterator[dict[str, Any]]:
    """The recorded conversation with one question after the other."""
    text = Path(recorded).read_text(encoding="utf-8")
    assert QUESTION in text
    for task in load_object("task.py:tasks", CODE)(seed):
        told = json.loads(text.replace(QUESTION, str(task.messages[-1]["content"])))
        tools = [ToolSpec(**tool["function"]) for tool in told["tools"]]
        yield {"messages": told["messages"], "tools": tools}


def build_model(folder: str, seed: int = 0, recorded: str = "") -> None:
    """``model.build``: a tiny Qwen3 whose tokenizer knows the program's own words, so that its
    first request fits 16,384 tokens.
    """
    from agentrl.training.models.tiny import build_tiny_model

    told = json.loads(Path(recorded).read_text(encoding="utf-8"))
    tools = {
        "role": "system",
        "content": "\n".join(json.dumps(tool) for tool in told["tools"]),
    }
    build_tiny_model(
        folder,
        repeat({"messages": [tools, *told["messages"]]}),
        seed=seed,
        num_demonstrations=4,
        vocab_size=6000,
        hidden=128,
        layers=2,
        heads=2,
        kv_heads=1,
        ff=256,
        max_tokens=20_000,
    )


def in_turn(view: EpisodeView) -> float:
    """0 and 1 in turn: the model says the same in each episode, and a group needs a difference."""
    return float(next(_NUMBERS) % 2)
