"""An image is read from whatever it is given as, and is its bytes' hash from then on."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from agentrl.errors import DataError
from agentrl.types import Image, content_text, images_in, with_images
from tests.tiny_vision import picture


def user(*content: Any) -> Any:
    return {"role": "user", "content": list(content)}


def test_bytes_that_every_reader_reads_alike_are_kept() -> None:
    data = picture(30, 20)
    image = Image.read(data)
    assert (image.data, image.sha256) == (data, hashlib.sha256(data).hexdigest())
    assert (image.width, image.height, image.num_bytes, image.media_type) == (
        30,
        20,
        len(data),
        "image/png",
    )


@pytest.mark.parametrize(
    "form",
    ["file", "pathlib", "data uri", "openai", "datasets", "datasets path", "pil", "image"],
)
def test_each_form_gives_the_same_image(form: str, tmp_path: Path) -> None:
    data = picture()
    path = tmp_path / "a.png"
    path.write_bytes(data)
    uri = Image.read(data).data_uri()
    forms: dict[str, object] = {
        "file": str(path),
        "pathlib": path,
        "data uri": uri,
        "openai": {"url": uri},
        "datasets": {"bytes": data, "path": None},
        "datasets path": {"bytes": None, "path": str(path)},
        "pil": Pictures.open(path),
        "image": Image.read(data),
    }
    image = Image.read(forms[form])
    with (
        Pictures.open(io.BytesIO(image.bytes())) as found,
        Pictures.open(io.BytesIO(data)) as given,
    ):
        assert np.array_equal(np.asarray(found), np.asarray(given))
    assert form == "pil" or image.sha256 == hashlib.sha256(data).hexdigest()


def test_a_turned_photograph_is_set_upright() -> None:
    photo = Pictures.new("RGB", (10, 4), "red")
    exif = photo.getexif()
    exif[0x0112] = 6
    encoded = io.BytesIO()
    photo.save(encoded, "JPEG", exif=exif)
    image = Image.read(encoded.getvalue())
    assert (image.width, image.height, image.media_type) == (4, 10, "image/png")


def test_an_image_of_an_unknown_scale_is_refused() -> None:
    encoded = io.BytesIO()
    Pictures.new("I;16", (2, 2), 40_000).save(encoded, "PNG")
    with pytest.raises(DataError, match="its mode is I;16, whose scale is not known"):
        Image.read(encoded.getvalue())


def test_what_is_transparent_becomes_white() -> None:
    encoded = io.BytesIO()
    Pictures.new("RGBA", (2, 2), (255, 0, 0, 0)).save(encoded, "PNG")
    with Pictures.open(io.BytesIO(Image.read(encoded.getvalue()).bytes())) as found:
        assert (found.mode, found.getpixel((0, 0))) == ("RGB", (255, 255, 255))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            b"no image",
            "8 bytes that cannot be read as an image: their format is not known; give PNG or JPEG",
        ),
        (picture()[:60], "cannot be read as an image"),
        ("https://example.org/a.png", "nothing is fetched in a run"),
        ("/nowhere/a.png", "the file '/nowhere/a.png' cannot be read: No such file"),
        ("data:image/png;base64,%", "base64 is broken"),
        ("data:image/png,raw", "must be a data: URI in base64"),
        (3, "must be bytes, a file's path, .* got int"),
        ({"file_id": "x"}, "got a mapping with file_id"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_image_is_named(source: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Image.read(source, "part 0 of a user message")


def test_parts_of_text_alone_become_text() -> None:
    (message,) = with_images(
        [user({"type": "text", "text": "a"}, {"type": "text", "text": "b"})]
    )
    assert message["content"] == "ab"


def test_adjacent_text_is_one_part() -> None:
    (message,) = with_images(
        [
            user(
                {"type": "text", "text": "a"},
                {"type": "text", "text": "b"},
                {"type": "image", "image": picture()},
            )
        ]
    )
    assert message["content"] == [
        {"type": "text", "text": "ab"},
        {"type": "image", "image": Image.read(picture())},
    ]


def test_a_message_with_text_is_the_same_message() -> None:
    message: Any = {"role": "user", "content": "hi", "name": "x"}
    assert with_images([message])[0] is message


def test_a_part_may_name_an_image_of_the_observation() -> None:
    messages = with_images(
        [user({"type": "image", "image": "screen"})], {"screen": picture()}
    )
    assert list(images_in(messages)) == [Image.read(picture())]


def test_openai_parts_are_images() -> None:
    uri = Image.read(picture()).data_uri()
    messages = with_images(
        [user({"type": "image_url", "image_url": {"url": uri, "detail": "high"}})]
    )
    assert list(images_in(messages)) == [Image.read(picture())]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            {"type": "video", "video": "a.mp4"},
            "part 0 of a user message must be .* got type 'video'",
        ),
        ({"type": "input_audio"}, "got type 'input_audio'"),
        ({"text": "a"}, "got type None"),
        ({"type": "text", "text": 3}, "got type 'text'"),
        ("text", "got str"),
        ({"type": "image"}, "part 0 of a user message must be bytes"),
    ],
)
def test_an_unknown_part_is_named(part: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        with_images([user(part)])


def test_an_assistant_writes_no_images() -> None:
    message: Any = {"role": "assistant", "content": [{"type": "image", "image": picture()}]}
    with pytest.raises(DataError, match="what an assistant writes is text"):
        with_images([message])


def test_a_content_of_another_kind_is_named() -> None:
    message: Any = {"role": "user", "content": 3}
    with pytest.raises(DataError, match="must be text or a list of parts, got int"):
        with_images([message])


def test_images_are_equal_by_their_hash() -> None:
    image = Image.read(picture())
    assert (
        image == dataclasses.replace(image, data=None) == pickle.loads(pickle.dumps(image))
    )
    assert image != Image.read(picture(seed=1))


def test_bytes_that_are_not_at_hand_are_named() -> None:
    with pytest.raises(DataError, match="read them with RunDirectory"):
        dataclasses.replace(Image.read(picture()), data=None).bytes()


def test_a_content_for_people_names_its_images() -> None:
    (message,) = with_images(
        [
            user(
                {"type": "text", "text": "see "},
                {"type": "image", "image": picture(30, 20)},
            )
        ]
    )
    image = Image.read(picture(30, 20))
    assert (
        content_text(message["content"])
        == f"see [image 30x20, {image.num_bytes} bytes, sha256 {image.sha256}]"
    )


def test_the_text_of_an_image_holds_none_of_its_bytes() -> None:
    assert len(json.dumps(user(Image.read(picture())), default=str)) < 200
