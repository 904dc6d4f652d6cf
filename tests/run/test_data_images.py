"""Images in data sets: in the messages, beside them, and as files next to the rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pictures

from agentrl.errors import DataError
from agentrl.render import RendererSpec
from agentrl.run.data.datasets import DataSet, rows_hash
from agentrl.training.data.demonstrations import demonstration_group, read_demonstration
from agentrl.training.data.preferences import check_pair
from agentrl.types import Image, Task, images_in, with_images
from tests.render.family_kind import saved_any
from tests.tiny_vision import picture

HERE: dict[str, Any] = {"type": "image"}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def load(folder: Path, reference: str = "rows.jsonl") -> list[Task]:
    return DataSet(reference, base_dir=folder).tasks()


def written(folder: Path, *rows: dict[str, Any]) -> list[Task]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return load(folder)


def seen(task: Task) -> list[Image]:
    return list(images_in(with_images(task.messages)))


def test_files_are_named_from_the_data_sets_folder(tmp_path: Path) -> None:
    (tmp_path / "data" / "pictures").mkdir(parents=True)
    (tmp_path / "data" / "pictures" / "a.png").write_bytes(picture())
    row = {
        "messages": user(
            {"type": "text", "text": "?"}, {"type": "image", "image": "pictures/a.png"}
        )
    }
    (tmp_path / "data" / "rows.jsonl").write_text(json.dumps(row))
    (task,) = load(tmp_path, "data/rows.jsonl")
    assert seen(task) == [Image.read(picture())]


def test_parts_without_an_image_take_those_of_the_column(tmp_path: Path) -> None:
    uris = [Image.read(picture(seed=seed)).data_uri() for seed in (1, 2)]
    (task,) = written(
        tmp_path,
        {"messages": user(HERE, {"type": "text", "text": "or"}, HERE), "images": uris},
    )
    assert seen(task) == [Image.read(picture(seed=1)), Image.read(picture(seed=2))]
    assert "images" not in task.info


def test_a_saved_hugging_face_data_set_may_hold_images(tmp_path: Path) -> None:
    from datasets import Dataset, Features, Sequence, Value
    from datasets import Image as ImageFeature

    parts = Features(
        {
            "role": Value("string"),
            "content": [{"type": Value("string"), "text": Value("string")}],
        }
    )
    features = Features({"messages": [dict(parts)], "images": Sequence(ImageFeature())})
    content = [{"type": "text", "text": "What?"}, {"type": "image", "text": None}]
    shown = Pictures.new("RGB", (30, 20), "red")
    rows = [{"messages": [{"role": "user", "content": content}], "images": [shown]}]
    Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    (task,) = load(tmp_path, "saved")
    assert seen(task) == [Image.read(shown)]
    assert rows_hash([task]) == rows_hash(load(tmp_path, "saved"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"messages": user(HERE, HERE), "images": ["a.png"]},
            "rows.jsonl:1: .* 'images' has none left",
        ),
        (
            {"messages": user(HERE), "images": ["a.png", "b.png"]},
            "holds 2 images, 1 more than",
        ),
        ({"messages": user(HERE)}, "a part of type image has no image"),
        (
            {"messages": user(HERE), "images": "a.png"},
            "'images' must be a list of images, got str",
        ),
        (
            {"messages": user({"type": "image", "image": "data:image/png;base64,eA=="})},
            "rows.jsonl:1: .* cannot be read as",
        ),
        (
            {"messages": user({"type": "image", "image": "http://example.org/a.png"})},
            "nothing is fetched in a run",
        ),
    ],
)
def test_a_row_whose_images_do_not_fit_is_named(
    row: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        written(tmp_path, row)


def conversations(folder: Path, *rows: Any) -> list[Any]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = DataSet("rows.jsonl", base_dir=folder)
    assert [
        row for _, row in itertools.islice(data.endless_rows(0), len(rows))
    ] == data.rows()
    return data.rows()


SAID: list[dict[str, Any]] = [{"role": "assistant", "content": "A cat."}]


@pytest.mark.parametrize(
    "content", ["Look: <image>", [{"type": "text", "text": "Look: "}, HERE]]
)
def test_a_conversation_to_imitate_has_its_images_in_their_places(
    content: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    asked = [{"role": "user", "content": content}]
    (row,) = conversations(tmp_path, {"messages": asked + SAID, "images": ["a.png"]})
    messages, _ = read_demonstration(row, 0)
    assert messages[0]["content"] == [
        {"type": "text", "text": "Look: "},
        {"type": "image", "image": Image.read(picture())},
    ]


def test_a_conversation_without_images_stays_as_it_is(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "<image> is a tag"}, *SAID]},
        [{"role": "user", "content": "As a list."}, *SAID],
        {"messages": "none"},
    ]
    assert conversations(tmp_path, *rows) == rows


@pytest.mark.parametrize(
    ("content", "images", "said"),
    [
        ("<image><image>", ["a.png"], r"rows.jsonl:1: .* 'images' has none left"),
        ("<image>", [], "'images' has none left"),
        ("What?", ["a.png"], "holds 1 images, 1 more than"),
        ("<image>", "a.png", "must be a list of images, got str"),
        ([HERE], None, "a part of type image has no image"),
    ],
)
def test_a_conversation_whose_images_do_not_fit_is_named(
    content: Any, images: Any, said: str, tmp_path: Path
) -> None:
    asked = [{"role": "user", "content": content}]
    with pytest.raises(DataError, match=said):
        conversations(tmp_path, {"messages": asked + SAID, "images": images})


def test_a_model_of_text_alone_imitates_no_image(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": [{"type": "image", "image": picture()}]}]
    renderer = RendererSpec(saved_any("qwen2_5", tmp_path)).build()
    with pytest.raises(DataError, match="image"):
        demonstration_group(asked + SAID, 0, renderer, max_tokens=100)


def test_pairs_to_compare_have_no_images() -> None:
    pair = {"chosen": "a", "rejected": "b", "prompt": "<image>?", "images": ["a.png"]}
    with pytest.raises(
        DataError, match="pair 3 has 'images', and reward models read text alone"
    ):
        check_pair(pair, 3)
