"""Tokenizers that are Qwen's in kind: byte-level BPE behind Qwen's pattern, trained here on a few
lines.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

# The pre-tokenizer pattern of Qwen2, Qwen2.5 and Qwen3 (tokenizer.json of those models).
QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|vision_pad|>",
)
# What Qwen marks special=False; Qwen2.5 has no <tool_response> and no <think> among them.
ORDINARY = {
    "qwen2_5": ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|file_sep|>"),
    "qwen3": (
        *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|file_sep|>"),
        *("<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
}
TEXT = (
    "user assistant system tool You are Qwen, created by Alibaba Cloud. You are a helpful "
    "assistant.",
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\n\nfunction "
    "signatures <tools>",
    'return a json object {"name": <function-name>, "arguments": <args-json-object>}\n</tool_call> '
    "<tool_response>",
    "<|im_start|> <|im_end|> <tool_call> <think> the end of it\n\n  indented\n\ttabs, naïve café, "
    "日本語, über 🙂",
) * 4
TEMPLATES = {
    "qwen2_5": "qwen2_5",
    "qwen3": "qwen3",
    "qwen3_instruct": "qwen3_instruct_2507",
}


def chat_templates() -> Path:
    """The folder of chat templates, as their models ship them, in TRL's wheel; TRL itself is not
    imported.
    """
    spec = importlib.util.find_spec("trl")
    assert spec is not None, "install the [test] extra"
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"


def template_text(name: str) -> str:
    """One of TRL's templates by its own name."""
    return (chat_templates() / f"{name}.jinja").read_text(encoding="utf-8")


def real_template(name: str) -> str:
    """The template of a model of Qwen's."""
    return template_text(TEMPLATES[name])


def trained_tokenizer(ordinary: tuple[str, ...], special: tuple[str, ...] = SPECIAL) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special]
    )
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ordinary]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
