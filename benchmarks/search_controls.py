"""Search controls: a retriever that answers at random, and a price of each search.

``benchmarks.learning`` puts them into the search example by their names.
"""

from __future__ import annotations

import random
from pathlib import Path

from agentrl.envs import EpisodeView
from agentrl.tools import Hit, SearchIndex, SearchTool
from agentrl.types import load_object

__all__ = ["price", "search"]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "search"
PRICE = 0.05


class RandomIndex(SearchIndex):
    """Finds documents that have nothing to do with the query; equal queries find equal ones."""

    def __init__(self, documents: SearchIndex) -> None:
        self._index = documents

    def __len__(self) -> int:
        return len(self._index)

    def search(self, query: str, top_k: int) -> list[Hit]:
        return [
            Hit(one, 1.0)
            for one in random.Random(query).sample(self._index.documents, top_k)
        ]

    def __reduce__(self) -> tuple[object, ...]:
        return RandomIndex, (self._index,)


search = SearchTool(RandomIndex(load_object("task.py:INDEX", EXAMPLE)), top_k=2)


def price(episode: EpisodeView) -> float:
    """A reward part: less for each call."""
    return -PRICE * sum(len(turn.calls) for turn in episode.turns)
