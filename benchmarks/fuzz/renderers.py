"""Fuzzed renderers: each family on its real template, and templates of no known family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.render import Renderer, RendererSpec
from agentrl.types import Message, Segment, SegmentKind, ToolSpec, concat_ids
from tests.render.family_kind import TEMPLATES, family_tokenizer, saved_any
from tests.render.qwen_kind import ORDINARY, real_template, trained_tokenizer

__all__ = ["VARIANTS", "Variant", "Watched", "built_variant"]


@dataclass(frozen=True)
class Variant:
    """A template with its switch.

    Args:
        name: a model of Qwen's, a family's template, or any of TRL's wheel.
        enable_thinking: given to the template.
        changes: texts replaced in the template.
        max_calls: calls that it has room for in a turn.
        tools: whether it tells the model of tools.
        parser: of its calls.
    """

    name: str
    enable_thinking: bool | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    max_calls: int = 3
    tools: bool = True
    parser: str = "auto"


VARIANTS: Mapping[str, Variant] = {
    "qwen2_5": Variant("qwen2_5"),
    "qwen3": Variant("qwen3"),
    "qwen3, thinking off": Variant("qwen3", enable_thinking=False),
    "qwen3_instruct": Variant("qwen3_instruct"),
    "llama3_1": Variant("llama3_1", max_calls=1),
    "llama3_2": Variant("llama3_2", max_calls=1),
    "deepseekv3": Variant("deepseekv3", tools=False),
    "deepseekv3, no thinking": Variant(
        "deepseekv3",
        tools=False,
        changes={"'<｜Assistant｜><think>\\n'": "'<｜Assistant｜>'"},
    ),
    "glm4moe": Variant("glm4moe"),
    "glm4moe, thinking off": Variant("glm4moe", enable_thinking=False),
    "gptoss": Variant("gptoss", max_calls=1),
    "qwen3_vl": Variant("qwen3_vl"),
    "lfm2_2_5": Variant("lfm2_2_5", parser="none"),
    "gemma4": Variant("gemma4", parser="none"),
    "cohere": Variant("cohere", tools=False, max_calls=0),
    "gemma": Variant("gemma", tools=False, max_calls=0),
}
"""By the name that figures have."""


def built_variant(variant: Variant, folder: Path) -> tuple[Renderer, Any]:
    """The renderer of a variant and its tokenizer, whose files are written to ``folder``."""
    from transformers import AutoTokenizer

    if variant.name in TEMPLATES:
        family_tokenizer(variant.name).save_pretrained(folder)
    elif variant.name.startswith("qwen") and variant.name != "qwen3_vl":
        tokenizer = trained_tokenizer(
            ORDINARY["qwen2_5" if variant.name == "qwen2_5" else "qwen3"]
        )
        tokenizer.chat_template = real_template(variant.name)
        tokenizer.save_pretrained(folder)
    else:
        saved_any(variant.name, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template: str = tokenizer.chat_template
    for old, new in variant.changes.items():
        if old not in template:
            raise ValueError(f"the template of {variant.name} has no {old!r} to change")
        template = template.replace(old, new)
    spec = RendererSpec(
        str(folder), chat_template=template, enable_thinking=variant.enable_thinking
    )
    return spec.build(), tokenizer


class Watched:
    """A renderer that is held to its promise at each call: what others say becomes no added token.

    The same conversation with the text of added tokens taken out of what others say must give the
    same added tokens in the same order, and an OBSERVATION holds none at all. There are never fewer
    tokens than ``fewest_tokens`` says.

    Args:
        renderer: what renders.
        added: text and id of every added token.
    """

    def __init__(self, renderer: Renderer, added: Mapping[str, int]) -> None:
        self.violations: list[str] = []
        self.contexts = 0
        self._renderer = renderer
        self._texts = sorted(added, key=len, reverse=True)
        self._ids = np.asarray(sorted(added.values()), dtype=np.int32)
        self.family = renderer.family
        self.vocab_size = renderer.vocab_size
        self.stop_token_ids = renderer.stop_token_ids
        self.image_token_ids = renderer.image_token_ids
        self.target = renderer.target
        self.decode = renderer.decode
        self.tokenize = renderer.tokenize
        self.token_ends = renderer.token_ends
        self.fewest_tokens = renderer.fewest_tokens

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Segment, ...]:
        """The renderer's own, watched."""
        found = self._renderer.prompt(messages, tools)
        clean = self._renderer.prompt(self._cleaned(messages), self._cleaned_tools(tools))
        self._compare("prompt", found, clean)
        self._bound("prompt", found, messages)
        return found

    def extend(
        self,
        completion: npt.NDArray[np.int32],
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        """The renderer's own, watched."""
        found = self._renderer.extend(completion, messages, history, tools)
        clean = self._renderer.extend(
            completion,
            self._cleaned(messages),
            self._cleaned(history),
            self._cleaned_tools(tools),
        )
        self._compare("extend", found, clean)
        if found is not None:
            self._bound("extend", found, messages)
        return found

    def _bound(
        self, what: str, found: Sequence[Segment], messages: Sequence[Message]
    ) -> None:
        if self.fewest_tokens(messages) > sum(map(len, found)):
            self.violations.append(f"{what}: it has fewer tokens than the fewest")

    def _compare(
        self,
        what: str,
        found: tuple[Segment, ...] | None,
        clean: tuple[Segment, ...] | None,
    ) -> None:
        self.contexts += 1
        if found is None or clean is None:
            if found is not clean:
                self.violations.append(
                    f"{what}: the text of an added token decides whether the sequence goes on"
                )
            return
        for segment in found:
            if (
                segment.kind is SegmentKind.OBSERVATION
                and np.isin(segment.token_ids, self._ids).any()
            ):
                self.violations.append(f"{what}: an OBSERVATION holds an added token")
        ours = concat_ids(found)
        theirs = concat_ids(clean)
        if (
            ours[np.isin(ours, self._ids)].tolist()
            != theirs[np.isin(theirs, self._ids)].tolist()
        ):
            self.violations.append(f"{what}: the text of an added token became that token")

    def _cleaned(self, messages: Sequence[Message]) -> list[Message]:
        cleaned = []
        for message in messages:
            if message["role"] != "assistant":
                message = message.copy()
                message["content"] = self._clean(message["content"])
                if "name" in message:
                    message["name"] = self._clean(message["name"])
            cleaned.append(message)
        return cleaned

    def _cleaned_tools(self, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
        return [
            ToolSpec(tool.name, self._clean(tool.description), tool.parameters)
            for tool in tools
        ]

    def _clean(self, text: str) -> str:
        for marker in self._texts:
            text = text.replace(marker, "x")
        return text
