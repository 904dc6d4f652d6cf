"""Renderers and tokenizers of Qwen's kind, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.render import ChatMLRenderer, ChatMLStyle, RendererSpec
from tests.render.qwen_kind import ORDINARY, real_template, trained_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``model_folder("qwen3")``: a folder with that model's kind of tokenizer and its real chat
    template.
    """
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            tokenizer = trained_tokenizer(
                ORDINARY["qwen2_5" if name == "qwen2_5" else "qwen3"]
            )
            tokenizer.chat_template = real_template(name)
            made[name] = tmp_path_factory.mktemp(name)
            tokenizer.save_pretrained(made[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def built(model_folder: Callable[[str], Path]) -> Callable[..., tuple[ChatMLRenderer, Any]]:
    """``built("qwen3", enable_thinking=False)``: the renderer and the tokenizer that proves it."""
    from transformers import AutoTokenizer

    made: dict[tuple[str, bool | None], tuple[ChatMLRenderer, Any]] = {}

    def build(name: str, enable_thinking: bool | None = None) -> tuple[ChatMLRenderer, Any]:
        key = (name, enable_thinking)
        if key not in made:
            renderer = RendererSpec(
                str(model_folder(name)), enable_thinking=enable_thinking
            ).build()
            assert isinstance(renderer, ChatMLRenderer)
            made[key] = renderer, AutoTokenizer.from_pretrained(model_folder(name))
        return made[key]

    return build


@pytest.fixture(scope="session")
def chatml(built: Callable[..., tuple[ChatMLRenderer, Any]]) -> ChatMLRenderer:
    """The plain style over a tokenizer of Qwen3's kind."""
    renderer, _ = built("qwen3_instruct")
    assert renderer.style == ChatMLStyle()
    return renderer
