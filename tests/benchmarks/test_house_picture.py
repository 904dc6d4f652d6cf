"""The picture of the whole is the one that its script draws."""

from __future__ import annotations

from benchmarks.demo.house import PICTURE, drawn


def test_the_picture_is_drawn_by_its_script() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn()
