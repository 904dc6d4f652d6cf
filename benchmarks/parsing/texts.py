"""Adversarial texts: completions on which a naive parser takes more than linear time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentrl.tools.parsers import (
    DeepSeekParser,
    FenceParser,
    GLMParser,
    HarmonyParser,
    HermesParser,
    LlamaParser,
    MistralParser,
    PlainParser,
    PythonicParser,
    QwenCoderParser,
    ToolCallParser,
)

__all__ = ["PARSERS", "TEXTS", "of_length"]

PARSERS: Mapping[str, Callable[[], ToolCallParser]] = {
    "hermes": HermesParser,
    "llama": LlamaParser,
    "deepseek": DeepSeekParser,
    "glm": GLMParser,
    "harmony": HarmonyParser,
    "qwen_coder": QwenCoderParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
    "fences": FenceParser,
    "none": PlainParser,
}
"""Every parser of agentrl."""

_OPEN = "<｜tool▁call▁begin｜>"
_CLOSE = "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"

TEXTS: Mapping[str, tuple[str, str, str]] = {
    "GLM: values never closed": ("", "<tool_call>f<arg_key>a</arg_key><arg_value>", ""),
    "GLM: keys never closed": ("<tool_call>f", "<arg_key>a", ""),
    "GLM: one value, many calls": (
        "<tool_call>f<arg_key>a</arg_key><arg_value>",
        "<tool_call>f ",
        "",
    ),
    "GLM: a slip in each call": (
        "",
        "<tool_call>f<arg_key>a<arg_value>1</arg_value></tool_call>",
        "",
    ),
    "GLM: many pairs": (
        "<tool_call>f",
        "<arg_key>k#</arg_key><arg_value>1</arg_value>",
        "</tool_call>",
    ),
    "Qwen3-Coder: values never closed": ("", "<tool_call><function=f><parameter=a>", ""),
    "Qwen3-Coder: one value, many parameters": (
        "<tool_call><function=f><parameter=a>",
        "<tool_call><parameter",
        "",
    ),
    "Qwen3-Coder: many parameters": (
        "<tool_call><function=f>",
        "<parameter=k#>1</parameter>",
        "</function></tool_call>",
    ),
    "Mistral: marks only": ("", "[TOOL_CALLS]", ""),
    "Mistral: lists never closed": ("", "[TOOL_CALLS][{", ""),
    "Mistral: one list": ("[TOOL_CALLS][", '{"name":"f"},', ""),
    "Mistral: names without arguments": ("", "[TOOL_CALLS]f[ARGS]", ""),
    "Python: lists never closed": ("", "[f(\n", ""),
    "Python: one list": ("[", "f(a=1),", "]"),
    "Python: strings": ("[f(a=", "'x' ", ")]"),
    "Python: sums": ("[f(a=1", "+1", ")]"),
    "Python: signs": ("[f(a=", "-", "1)]"),
    "Python: line beginnings": ("", "\n[f", ""),
    "fences: opened only": ("", "```python\n", ""),
    "fences: short blocks": ("", "```python\n```\n", ""),
    "fences: blanks": ("", "   ", "```python"),
    "fences: a language that never ends": ("```", "a", "`"),
    "tags: opened only": ("", "<tool_call>", ""),
    "tags: closed only": ("", "</tool_call>", ""),
    "Hermes: short calls": ("", '<tool_call>{"name":"f"}</tool_call>', ""),
    "Hermes: tags within strings": ("", '<tool_call>["a","', ""),
    "Hermes: faults behind each other": ("", "<tool_call>{]\n", ""),
    "JSON: objects never closed": ("", '{"name":', ""),
    "JSON: lists within objects, never closed": ("", '{"name":"a","x":[', ""),
    "JSON: long levels, never closed": ("", '{"name":' + "[0]," * 500, ""),
    "JSON: brackets": ("<tool_call>", "[", ""),
    "JSON: braces": ("", "{ ", ""),
    "JSON: a key given twice at the end": (
        '<tool_call>{"name":0',
        ',"k#":0',
        ',"z":1,"z":2}</tool_call>',
    ),
    "JSON: small objects": ('{"name":"f","parameters":{"a":[1', ",{}", "]}}"),
    "JSON: long whole numbers": (
        '<tool_call>{"name":"f","arguments":[1',
        "," + "9" * 4200,
        "]}</tool_call>",
    ),
    "JSON: escaped quotes": ('<tool_call>{"name":"', '\\"', '"}</tool_call>'),
    "JSON: numbers too long": ("", '{"name":' + "9" * 4400 + " ", ""),
    "JSON: keys given twice, nested": ("", '{"name":{"name":{"a":1,"a":2},', ""),
    "Llama: many calls": ("", '{"name":"f"};', ""),
    "Llama: tags": ("", "<|python_tag|>{}", ""),
    "Llama: brackets of a call": ("<|python_tag|>f.call(", "(", ")"),
    "Llama: pairs of a call": ("<|python_tag|>f.call(a=1", ",k#=1", ")"),
    "Llama: a call behind spaces": ("<|python_tag|>f.call(", ") ", "x"),
    "DeepSeek: fences": (f"{_OPEN}f{_SEP}", "```   ", _CLOSE),
    "DeepSeek: spaces in a fence": (f"{_OPEN}f{_SEP}```json", " ", f"x{_CLOSE}"),
    "DeepSeek: lines in a fence": (f"{_OPEN}f{_SEP}```json", "\n \t", f"```x{_CLOSE}"),
    "DeepSeek: opened only": ("", _OPEN, ""),
    "harmony: messages that say nothing": ("", "<|message|><|end|>", ""),
    "harmony: recipients": ("", "to=", ""),
    "harmony: starts": ("", "<|start|>", ""),
    "harmony: calls": ("", "<|channel|>commentary to=functions.f<|message|>{}<|call|>", ""),
    "harmony: channels": ("", "<|channel|>   ", ""),
    "thoughts: opened only": ("", "<think>", ""),
    "thoughts: closed only": ("x", "</think>", ""),
    "spaces": ("", " ", ""),
    "words": ("", "lorem ipsum ", ""),
}
"""By name: how a text begins, what is repeated in it (``#`` counts), and how it ends."""


def of_length(name: str, characters: int) -> str:
    """The text of that name, of about so many characters.

    Args:
        name: among ``TEXTS``.
        characters: wanted.
    """
    begins, repeated, ends = TEXTS[name]
    parts = [begins]
    length = len(begins) + len(ends)
    while length < characters:
        parts.append(repeated.replace("#", str(len(parts))))
        length += len(parts[-1])
    return "".join([*parts, ends])
