"""Fresh pictures: pictures of the vision example that no setting was chosen on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from PIL import Image as Pictures

from agentrl.types import Image, Task, images_in
from benchmarks.fresh.unseen import unseen


def tasks(num_tasks: int = 500) -> Iterator[Task]:
    """The data set: always the same."""
    return unseen("vision", num_tasks)


def blank_tasks(num_tasks: int = 500) -> Iterator[Task]:
    """The same questions and answers below white pictures."""
    for task in tasks(num_tasks):
        (message,) = task.messages
        (shown,) = images_in(task.messages)
        white = Image.read(Pictures.new("RGB", (shown.width, shown.height), "white"))
        _, question = message["content"]
        parts = [{"type": "image", "image": white}, question]
        yield replace(task, messages=({"role": "user", "content": parts},))
