"""What the vision example promises of its pictures, its tool and its demonstrations."""

from __future__ import annotations

import io
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from agentrl.config.load import load_config
from agentrl.envs import EpisodeView, ToolEnv
from agentrl.render import RendererSpec
from agentrl.types import (
    Action,
    Image,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    images_in,
    load_object,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "vision"
tasks, crop, correct, drawn, COUNTS = (
    load_object(f"task.py:{name}", EXAMPLE)
    for name in ("tasks", "crop", "correct", "drawn", "COUNTS")
)
demonstrations, box_of = (
    load_object(f"warmup.py:{name}", EXAMPLE) for name in ("demonstrations", "box_of")
)


def pixels(image: Image) -> np.ndarray:
    return np.asarray(Pictures.open(io.BytesIO(image.bytes())).convert("RGB"))


def test_the_configuration_names_what_exists_and_trains_the_tower() -> None:
    warmup, rl = load_config(EXAMPLE / "config.yaml").resolved_stages()
    assert (warmup.train.vision, rl.train.vision) == ("trained", "trained")
    assert rl.rollout.engine == "torch"
    assert callable(load_object(str(warmup.data.train), EXAMPLE))


def test_pictures_are_the_same_for_the_same_seed_and_of_each_number_there_are_as_many() -> (
    None
):
    first = list(tasks(3, num_tasks=400))
    assert first == list(tasks(3, num_tasks=400))
    assert (
        len({images[0].sha256 for task in first if (images := [*images_in(task.messages)])})
        == 400
    )
    held_out = {
        next(images_in(task.messages)) for task in tasks(3, "held_out", num_tasks=400)
    }
    assert held_out.isdisjoint(next(images_in(task.messages)) for task in first)
    answers = Counter(int(task.answer) for task in first)
    assert set(answers) == set(COUNTS)
    assert min(answers.values()) > 75  # of 100


def test_blank_pictures_have_the_questions_and_answers_of_the_others() -> None:
    for seen, blank in zip(
        tasks(3, num_tasks=50), tasks(3, num_tasks=50, blank=True), strict=True
    ):
        assert seen.answer == blank.answer
        assert seen.messages[0]["content"][1] == blank.messages[0]["content"][1]
        assert (pixels(next(images_in(blank.messages))) == 255).all()
        assert not (pixels(next(images_in(seen.messages))) == 255).all()


def asked(task: Task, **arguments: Any) -> Action:
    call = ToolCall("call_0", "crop", arguments)
    message: Any = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
    return Action("", message, (call,))


async def told(**arguments: Any) -> Any:
    (task,) = tasks(3, num_tasks=1)
    env = ToolEnv(task, tools=[crop])
    await env.reset(seed=0)
    (message,) = (await env.step(asked(task, **arguments))).observation.messages
    return task, message


async def test_a_crop_is_shown_as_an_image() -> None:
    task, message = await told(left=32, top=8, size=24)
    (image,) = images_in([message])
    whole = pixels(next(images_in(task.messages)))
    assert (pixels(image) == whole[8:32, 32:56]).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"left": 40, "top": 0, "size": 32},
        {"left": 0, "top": 63, "size": 2},
        {"left": -1, "top": 0, "size": 8},
        {"left": 0, "top": 0, "size": 0},
    ],
)
async def test_a_crop_beyond_the_picture_is_told_so(arguments: dict[str, int]) -> None:
    _, message = await told(**arguments)
    assert "the square must lie in 64 by 64 pixels" in str(message["content"])


async def test_a_demonstrated_crop_shows_what_the_tool_shows() -> None:
    shown = 0
    for row in islice(demonstrations(0), 40):
        messages = row["messages"]
        task = Task("shown", (messages[0],))
        for message, answer in pairwise(messages):
            for call in message.get("tool_calls", ()):
                env = ToolEnv(task, tools=[crop])
                await env.reset(seed=0)
                told = await env.step(asked(task, **call["function"]["arguments"]))
                assert told.observation.messages[0]["content"] == answer["content"]
                shown += 1
    assert shown > 10


def test_most_demonstrations_guess_and_three_in_ten_are_right() -> None:
    kinds = Counter[str]()
    total = 2000
    for row in islice(demonstrations(0), total):
        first, *others = row["messages"]
        kinds["guess"] += len(others) == 1
        kinds["broken"] += "Error: " in str(others)
        if len(others) == 3:
            box = others[0]["tool_calls"][0]["function"]["arguments"]
            part = first["content"][1]["text"].split(" in the ")[1].rstrip("?")
            kinds["part"] += box != box_of(part)
            *_, number = counted = others[-1]["content"].split()
            kinds["right"] += box == box_of(part) and counted.count("red") == int(number)
    assert {kind: count / total for kind, count in kinds.items()} == pytest.approx(
        {"guess": 0.7 * 0.8, "broken": 0.7 * 0.05, "part": 0.7 * 0.1, "right": 0.3},
        abs=0.03,
    )


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("red 1, blue 1, red 2, red 3", 1.0),
        ("3", 1.0),
        ("1 2 3", 0.0),
        ("red 1, red 2", 0.0),
        ("", 0.0),
    ],
)
def test_the_number_alone_or_behind_what_was_seen_is_right(said: str, score: float) -> None:
    message: Any = {"role": "assistant", "content": said}
    view = EpisodeView(Task("t", answer="3"), (message,), (), Status("terminated"))
    assert correct(view).value == score


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vision")
    load_object("warmup.py:build_model", EXAMPLE)(str(made))
    return made


def test_the_tiny_model_reads_a_picture_as_four_tokens_by_its_own_template(
    folder: Path,
) -> None:
    renderer = RendererSpec(str(folder)).build()
    (task,) = tasks(3, num_tasks=1)
    (segment,) = renderer.prompt(task.messages)
    assert segment.kind == SegmentKind.PROMPT
    assert [span.num_tokens for span in segment.media] == [4]
    assert renderer.family == "chatml"


def test_the_tiny_model_is_one_that_transformers_loads(folder: Path) -> None:
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert type(model).__name__ == "Qwen3VLForConditionalGeneration"
    assert sum(one.numel() for one in model.parameters()) < 500_000
