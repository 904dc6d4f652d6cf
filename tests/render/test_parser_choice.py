"""The parser that goes with a model is the one that reads what its chat template writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.render import RendererSpec
from agentrl.tools.parsers import (
    DeepSeekParser,
    GLMParser,
    HarmonyParser,
    HermesParser,
    LlamaParser,
    PlainParser,
    QwenCoderParser,
    parser_for,
)
from tests.render.family_kind import saved_family
from tests.render.qwen_kind import template_text


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("llama3_1", LlamaParser),
        ("llama3_2", LlamaParser),
        ("deepseekv3", DeepSeekParser),
        ("glm4moe", GLMParser),
        ("gptoss", HarmonyParser),
    ],
)
def test_each_family_has_its_parser(name: str, parser: type, tmp_path: Path) -> None:
    renderer = RendererSpec(str(saved_family(name, tmp_path))).build()
    assert isinstance(parser_for(renderer), parser)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_instruct"])
def test_qwens_parser_is_hermes(built: Callable[..., Any], name: str) -> None:
    assert isinstance(parser_for(built(name)[0]), HermesParser)


@pytest.mark.parametrize(
    "name", ["qwen3_5_nothink", "qwen3_6", "qwen3_8", "nemotron_3_nano"]
)
def test_newer_qwens_and_nemotrons_parser_is_qwen_coders(
    model_folder: Callable[[str], Path], name: str
) -> None:
    spec = RendererSpec(str(model_folder("qwen3")), chat_template=template_text(name))
    assert isinstance(parser_for(spec.build()), QwenCoderParser)


def test_a_parser_that_is_named_is_taken(built: Callable[..., Any]) -> None:
    assert isinstance(parser_for(built("qwen3")[0], "glm"), GLMParser)


def test_a_template_without_calls_needs_none(
    built: Callable[..., Any], model_folder: Callable[[str], Path]
) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = RendererSpec(str(model_folder("qwen3")), chat_template=template).build()
    assert isinstance(parser_for(renderer), PlainParser)


def test_calls_that_no_parser_reads_are_refused(
    model_folder: Callable[[str], Path],
) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} WITH {{ c.function.arguments "
        "}}{% endfor %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = RendererSpec(str(model_folder("qwen3")), chat_template=template).build()
    with pytest.raises(
        ConfigError,
        match=r"finds no parser for the calls .*CALL probe_tool WITH.*package\.module:Class",
    ):
        parser_for(renderer)


def test_a_template_that_tells_of_tools_and_writes_no_calls_is_refused(
    model_folder: Callable[[str], Path],
) -> None:
    template = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = RendererSpec(str(model_folder("qwen3")), chat_template=template).build()
    with pytest.raises(ConfigError, match="finds no parser for the calls"):
        parser_for(renderer)


def test_without_a_renderer_the_server_reads_the_calls() -> None:
    assert isinstance(parser_for(None), PlainParser)
