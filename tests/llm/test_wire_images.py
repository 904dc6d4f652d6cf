"""Images over the wire: data URIs both ways, and no way to name a file of the server's machine."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.llm import WireFault, from_wire, to_wire
from agentrl.types import Image, with_images
from tests.tiny_vision import picture

URI = Image.read(picture()).data_uri()


def wire(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_an_image_goes_out_as_a_data_uri_and_comes_back() -> None:
    content = [{"type": "text", "text": "What?"}, {"type": "image", "image": picture()}]
    (message,) = with_images(({"role": "user", "content": content},))
    sent = to_wire(message)
    assert sent["content"] == [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": URI}},
    ]
    assert from_wire(sent, "messages[0]") == message


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            {"type": "image_url", "image_url": {"url": "http://example.org/a.png"}},
            r"must be a data: URI",
        ),
        (
            {"type": "image_url", "image_url": {"url": "/etc/hostname"}},
            r"must be a data: URI",
        ),
        ({"type": "image_url", "url": "/etc/hostname"}, r"must be a data: URI"),
        (
            {"type": "image_url", "image": "/etc/hostname", "image_url": "/x"},
            r"must be a data: URI",
        ),
        (
            {"type": "image", "image": "/etc/hostname"},
            r"content\[0\] must be a part of type text or image_url",
        ),
        (
            {"type": "input_audio", "input_audio": {}},
            r"content\[0\] must be a part of type text or image_url",
        ),
        ("text", r"content\[0\] must be a part of type text or image_url"),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}},
            "cannot be read as an image",
        ),
    ],
)
def test_what_a_client_may_not_send_is_named(part: Any, said: str) -> None:
    with pytest.raises(WireFault, match=said):
        from_wire(wire(part), "messages[0]")


def test_what_was_not_looked_at_is_dropped() -> None:
    message = from_wire(
        wire(
            {
                "type": "image_url",
                "image": "/etc/hostname",
                "image_url": {"url": URI},
                "path": "/etc/hostname",
            }
        ),
        "m",
    )
    assert message["content"] == [{"type": "image", "image": Image.read(picture())}]


def test_parts_of_text_alone_are_text() -> None:
    assert (
        from_wire(wire({"type": "text", "text": "a"}, {"type": "text", "text": "b"}), "m")[
            "content"
        ]
        == "ab"
    )
