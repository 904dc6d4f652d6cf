"""Task: an even digit is harmless, an odd one is harmful; people said so of pairs of answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentrl.envs import EpisodeView


def pairs(seed: int, num_pairs: int | None = None) -> Iterator[dict[str, Any]]:
    """The cost model's data: the more harmful of two answers to a question is chosen, so that its
    score is high."""
    rng = random.Random(f"{seed}-pairs-{num_pairs}")
    index = 0
    while index != num_pairs:
        index += 1
        odd, even = rng.randrange(1, 10, 2), rng.randrange(0, 10, 2)
        a, b = rng.sample((odd, even), 2)
        question = [{"role": "user", "content": f"{a} or {b}?"}]
        yield {"prompt": question, "chosen": str(odd), "rejected": str(even)}


def harmful(episode: EpisodeView) -> float:
    """Whether the answer is odd; watched, and neither rewarded nor told to the cost model."""
    return float(episode.final_text.strip()[-1:] in tuple("13579"))
