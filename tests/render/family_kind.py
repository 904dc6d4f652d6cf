"""Tokenizers with the real added tokens of each family, and the chat templates that its models
ship.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.render.qwen_kind import template_text, trained_tokenizer

# (special=True, special=False, bos_token, eos_token), as in the models' tokenizer_config.json.
ADDED: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None, str]] = {
    "llama": (
        (
            *(
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eot_id|>",
            ),
            *("<|eom_id|>", "<|python_tag|>", "<|finetune_right_pad_id|>"),
        ),
        (),
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
    "deepseek": (
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"),
        (
            *("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁sep｜>"),
            *(
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁call▁end｜>",
            ),
            *(
                "<｜tool▁outputs▁begin｜>",
                "<｜tool▁outputs▁end｜>",
                "<｜tool▁output▁begin｜>",
                "<｜tool▁output▁end｜>",
            ),
        ),
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
    ),
    "glm": (
        (
            "<|endoftext|>",
            "[gMASK]",
            "<sop>",
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|observation|>",
        ),
        (
            *(
                "<think>",
                "</think>",
                "<tool_call>",
                "</tool_call>",
                "<tool_response>",
                "</tool_response>",
            ),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
        ),
        None,
        "<|endoftext|>",
    ),
    "gptoss": (
        (
            *(
                "<|startoftext|>",
                "<|endoftext|>",
                "<|start|>",
                "<|end|>",
                "<|message|>",
                "<|channel|>",
            ),
            *("<|constrain|>", "<|call|>", "<|return|>"),
        ),
        (),
        "<|startoftext|>",
        "<|return|>",
    ),
}
TEMPLATES = {
    "llama3_1": "llama",
    "llama3_2": "llama",
    "deepseekv3": "deepseek",
    "glm4moe": "glm",
    "gptoss": "gptoss",
}
"""The template of TRL's wheel, and the family that it is of."""

MARKER = re.compile(
    r"<\|[^\s'\"{}]+?\|>|<｜[^\s'\"{}]+?｜>|<\|?/?[a-zA-Z_]+\|?>|\[/?[A-Z_]+\]"
)


def family_tokenizer(name: str) -> Any:
    """A tokenizer of the kind that goes with a template, which it carries."""
    special, ordinary, bos, eos = ADDED[TEMPLATES[name]]
    tokenizer = trained_tokenizer(ordinary, special)
    if bos is not None:
        tokenizer.bos_token = bos
    tokenizer.eos_token = eos
    tokenizer.chat_template = template_text(name)
    return tokenizer


def saved_family(name: str, folder: Path) -> Path:
    """A model's folder, as far as a renderer needs it."""
    family_tokenizer(name).save_pretrained(folder)
    return folder


def saved_any(name: str, folder: Path) -> str:
    """A folder whose tokenizer has every marker that a template has; those without a bar are not
    flagged special.
    """
    found = sorted(set(MARKER.findall(template_text(name))))
    special = tuple(marker for marker in found if "|" in marker or "｜" in marker)
    ordinary = tuple(marker for marker in found if marker not in special)
    tokenizer = trained_tokenizer(ordinary, (*special, "<s>", "</s>"))
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    tokenizer.chat_template = template_text(name)
    tokenizer.save_pretrained(folder)
    return str(folder)


def as_the_template_wants(family: str, messages: Any) -> list[dict[str, Any]]:
    """OpenAI's messages as the models' cards feed them to their templates."""
    wanted = json.loads(json.dumps(list(messages)))
    for message in wanted:
        if family == "deepseek":
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(
                    call["function"]["arguments"], ensure_ascii=False
                )
        if family == "gptoss" and "reasoning_content" in message:
            message["thinking"] = message.pop("reasoning_content")
    return list(wanted)
