"""Vision task: red shapes in a part of a generated picture, which the policy may enlarge.

A task of your own needs the same three things: tasks with images, a tool that returns one, and a
reward.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image as Pictures
from PIL import ImageDraw

from agentrl.envs import EpisodeView, Score
from agentrl.tools import ToolContext, tool
from agentrl.types import Image, Task, images_in

COLOURS = ("red", "green", "blue", "yellow")
ASKED = "red"
SHAPES = ("circle", "square", "triangle")
PARTS = {
    "top left": (0, 0),
    "top right": (2, 0),
    "bottom left": (0, 2),
    "bottom right": (2, 2),
}
SIDE = 4  # shapes in a row of the picture
CELL = 16  # pixels of the square in which a shape lies
COUNTS = range(1, 5)


@dataclass(frozen=True)
class Scene:
    """A picture, the colours of its shapes row by row, and the part that is asked about."""

    colours: tuple[str, ...]
    image: Image
    part: str

    @property
    def message(self) -> dict[str, Any]:
        """The question, below the picture."""
        text = f"How many {ASKED} shapes are in the {self.part}?"
        picture = {"type": "image", "image": self.image}
        return {"role": "user", "content": [picture, {"type": "text", "text": text}]}

    @property
    def answer(self) -> int:
        return self.seen(self.part).count(ASKED)

    def seen(self, part: str) -> list[str]:
        """The colours in a part, row by row."""
        return [self.colours[place] for place in places_of(part)]


@tool
def crop(left: int, top: int, size: int, context: ToolContext) -> Image:
    """Cut a square out of the picture and see it enlarged.

    Args:
        left: its first column, in pixels
        top: its first row
        size: its columns and rows
    """
    assert context.task is not None
    (image,) = images_in(context.task.messages)
    if left < 0 or top < 0 or size < 1 or max(left, top) + size > image.width:
        raise ValueError(f"the square must lie in {image.width} by {image.height} pixels")
    return cut(image, left, top, size)


def tasks(
    seed: int, split: str = "train", num_tasks: int = 800, blank: bool = False
) -> Iterator[Task]:
    """The data set; ``blank`` pictures show nothing, and the questions stay as they were."""
    rng = random.Random(f"{seed}-{split}")
    for index in range(num_tasks):
        scene = drawn(rng, blank)
        yield Task(f"{split}-{index}", (scene.message,), answer=str(scene.answer))  # type: ignore[arg-type]


def correct(episode: EpisodeView) -> Score:
    """The reward: whether the last message is the number, alone or at the end of the count."""
    said = re.fullmatch(r"(?:[a-z]+ \d, )*(?:[a-z]+ )?(\d)", episode.final_text.strip())
    why = {"said": said and said[1], "answer": episode.task.answer}
    return Score(float(said is not None and said[1] == episode.task.answer), why)


def drawn(rng: random.Random, blank: bool = False) -> Scene:
    """A scene: each number from 1 to 4 is as likely."""
    colours = rng.choices(COLOURS, k=SIDE * SIDE)
    part, count = rng.choice(list(PARTS)), rng.choice(COUNTS)
    places, others = places_of(part), [colour for colour in COLOURS if colour != ASKED]
    for number, place in enumerate(rng.sample(places, len(places))):
        colours[place] = ASKED if number < count else rng.choice(others)
    return Scene(tuple(colours), picture(rng, colours, blank), part)


def places_of(part: str) -> list[int]:
    """The places of the shapes in a part, row by row."""
    left, top = PARTS[part]
    return [SIDE * (top + y) + left + x for y in range(2) for x in range(2)]


def picture(rng: random.Random, colours: list[str], blank: bool) -> Image:
    """A shape in each square, of any kind and size and anywhere there."""
    drawing = Pictures.new("RGB", (SIDE * CELL, SIDE * CELL), "white")
    pen = ImageDraw.Draw(drawing)
    for place, colour in enumerate(colours):
        shape, size = rng.choice(SHAPES), rng.randrange(9, 14)
        x = place % SIDE * CELL + rng.randrange(CELL - size)
        y = place // SIDE * CELL + rng.randrange(CELL - size)
        box = (x, y, x + size, y + size)
        if blank:
            continue
        if shape == "circle":
            pen.ellipse(box, colour)
        elif shape == "square":
            pen.rectangle(box, colour)
        else:
            pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], colour)
    return encoded(drawing)


def cut(image: Image, left: int, top: int, size: int) -> Image:
    """A square of an image."""
    with Pictures.open(io.BytesIO(image.bytes())) as whole:
        return encoded(whole.crop((left, top, left + size, top + size)))


def encoded(drawing: Pictures.Image) -> Image:
    png = io.BytesIO()
    drawing.save(png, "PNG")
    return Image.read(png.getvalue())
