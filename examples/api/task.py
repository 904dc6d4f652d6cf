"""API task: the policy books, cancels and moves over HTTP; the final state counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx

from agentrl.envs import EpisodeView, Score
from agentrl.errors import ToolError
from agentrl.tools import ToolContext, tool
from agentrl.types import Message, Task

NAMES = ["".join(letters) for letters in product(*["bdfgklmnprstvz", "aeiou"] * 2)]
random.Random(0).shuffle(NAMES)
SPLITS = {"train": NAMES[:4000], "held_out": NAMES[4000:]}
http = httpx.Client(timeout=10)  # of all threads; the service is the resource


class Desk:
    """Bookings of one episode, in a calendar of its own."""

    def __init__(self, task: Task, service: Any) -> None:
        self.bookings = task.info["bookings"]
        self.url = service.url

    def setup(self, context: ToolContext) -> None:
        """Fill the calendar, and tell the reward where it is."""
        made = http.post(self.url, json=self.bookings).raise_for_status()
        self.url = context.state["url"] = f"{self.url}/{made.json()}"

    @tool
    def find(self, name: str) -> Any:
        """Find what is booked for a name."""
        return self.ask("GET", params={"name": name})

    @tool
    def book(self, hour: int, name: str) -> Any:
        """Book an hour for a name."""
        return self.ask("PUT", f"/{hour}", params={"name": name})

    @tool
    def cancel(self, hour: int) -> Any:
        """Cancel what is booked for an hour."""
        return self.ask("DELETE", f"/{hour}")

    def close(self) -> None:
        """Drop the calendar, behind the reward; where none was made, the service refuses."""
        self.ask("DELETE")

    def ask(self, method: str, path: str = "", **request: Any) -> Any:
        """What the service answers, refusals too; that it does not is no doing of the policy."""
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
            calls += [call("find", name=names[0]), call("cancel", hour=hours[0])]
            del after[str(hours[0])]
        if not kind.startswith("Cancel"):
            calls += [call("book", hour=hour, name=names[0])]
            after[str(hour)] = names[0]
        prompt: Message = {"role": "user", "content": kind.format(names[0], hour)}
        info = {"bookings": before, "solution": [*({"tool_calls": [c]} for c in calls), "done"]}
        yield Task(f"{split}-{index}", (prompt,), answer=after, info=info)


def call(tool_name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": tool_name, "arguments": arguments}


def correct(episode: EpisodeView) -> Score:
    """The reward: whether the calendar is as it should be, whatever was said."""
    env: Any = episode.env
    found = http.get(env.tool_state["url"]).raise_for_status().json()
    return Score(float(found == episode.task.answer), {"found": found})
