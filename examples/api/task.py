"""API task: the policy books, cancels and moves over HTTP; the final state counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx

from agentrl.envs import EpisodeView
from agentrl.errors import ToolError
from agentrl.tools import ToolContext, tool
from agentrl.types import Message, Task

NAMES = ["".join(letters) for letters in product("bdfgklmnprstvz", "aeiou", repeat=2)]
random.Random(0).shuffle(NAMES)
SPLITS = {"train": NAMES[:4000], "held_out": NAMES[4000:]}
http = httpx.Client(timeout=10)  # of all threads; the service is the resource


class Desk:
    """Bookings of one episode, in a calendar of its own."""

    def __init__(self, task: Task, context: ToolContext, service: Any) -> None:
        made = http.post(service.url, json=task.info["bookings"]).raise_for_status()
        self.url = context.state["url"] = (
            f"{service.url}/{made.json()}"  # where the reward looks
        )

    @tool
    def find(self, name: str) -> Any:
        """Find what is booked for a name."""
        return self._ask("GET", params={"name": name})

    @tool
    def book(self, hour: int, name: str) -> Any:
        """Book an hour for a name."""
        return self._ask("PUT", f"/{hour}", params={"name": name})

    @tool
    def cancel(self, hour: int) -> Any:
        """Cancel what is booked for an hour."""
        return self._ask("DELETE", f"/{hour}")

    # A refusal is an answer too; that the service gives none is no doing of the policy.
    def _ask(self, method: str, path: str = "", **request: Any) -> Any:
        try:
            return http.request(method, self.url + path, **request).json()
        except httpx.HTTPError as error:
            raise ToolError(f"the service: {error!r}", retryable=True) from error


def tasks(seed: int, split: str = "train", num_tasks: int = 2000) -> Iterator[Task]:
    """The data set: ``split`` is ``train`` or ``held_out``. The answer is the final state."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        names = rng.sample(SPLITS[split], 3)
        *hours, hour = rng.sample(range(8, 20), 4)
        kind = rng.choice(("Book {} at {}.", "Cancel {}.", "Move {} to {}."))
        before = {str(at): name for at, name in zip(hours, names, strict=True)}
        after, calls = dict(before), []
        if not kind.startswith("Book"):
            del after[str(hours[0])]
            calls = [("find", {"name": names[0]}), ("cancel", {"hour": hours[0]})]
        if not kind.startswith("Cancel"):
            after[str(hour)] = names[0]
            calls += [("book", {"hour": hour, "name": names[0]})]
        turns = [{"tool_calls": [{"name": name, "arguments": of}]} for name, of in calls]
        info = {"bookings": before, "solution": [*turns, "done"]}
        prompt: Message = {"role": "user", "content": kind.format(names[0], hour)}
        yield Task(f"{split}-{index}", (prompt,), after, info=info)


def correct(episode: EpisodeView) -> float:
    """The reward: whether the calendar is as it should be, whatever was said."""
    url = episode.tool_state["url"]
    return float(http.get(url).raise_for_status().json() == episode.task.answer)
