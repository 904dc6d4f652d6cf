"""Renderer spec: selects and builds the renderer of a model; picklable, built by its host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate
from agentrl.render.families.chatml import ChatMLStyle
from agentrl.render.families.deepseek import DEEPSEEK
from agentrl.render.families.detect_family import (
    checked_chatml,
    checked_renderer,
    detect_chatml,
)
from agentrl.render.families.family import Family
from agentrl.render.families.generic import GENERIC
from agentrl.render.families.glm import GLM
from agentrl.render.families.gptoss import GPTOSS
from agentrl.render.families.llama import LLAMA
from agentrl.render.renderer import Renderer
from agentrl.render.vision import read_vision

_FAMILIES = (LLAMA, DEEPSEEK, GLM, GPTOSS, GENERIC)
_NAMES = ("chatml", *(family.name for family in _FAMILIES))
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class RendererSpec:
    """The specification of one model's renderer.

    Args:
        model: folder of a model in Hugging Face's layout, with its tokenizer.
        family: ``auto`` detects the family of the model's chat template and tokenizer, and falls
            back to ``generic``. Otherwise a family's name: chatml, llama, deepseek, glm, gptoss,
            generic.
        chat_template: ``None`` for the tokenizer's own; ``chatml`` for the plain ChatML format;
            else a Jinja file, or Jinja text.
        enable_thinking: the template's switch of that name (Qwen3, GLM); None leaves its default.
    """

    model: str
    family: str = "auto"
    chat_template: str | None = None
    enable_thinking: bool | None = None

    def build(self) -> Renderer:
        """The renderer, checked on test conversations against the model's own template and
        tokenizer.

        Raises:
            DataError: the folder has no usable tokenizer, the tokenizer lacks the family's markers,
                or the model takes images and the folder has no image processor.
            ConfigError: no chat template is found, it is not of the requested family, or it cannot
                be rendered with every token accounted for.
        """
        if self.family not in ("auto", *_NAMES):
            raise ConfigError(
                f"RendererSpec.family must be auto, {', '.join(_NAMES)}, got {self.family!r}"
            )
        tokenizer = load_tokenizer(self.model)
        vision = read_vision(Path(self.model).expanduser(), tokenizer)
        if self.chat_template == "chatml":
            if self.family not in ("auto", "chatml"):
                raise ConfigError(
                    "RendererSpec.chat_template: chatml is rendered by RendererSpec.family: "
                    f"chatml, got {self.family!r}; set RendererSpec.family: auto"
                )
            return checked_chatml(tokenizer, ChatMLStyle(), self.model, vision)
        thinking = self.enable_thinking
        variables = {} if thinking is None else {"enable_thinking": thinking}
        chat = ChatTemplate(
            tokenizer, _template_text(self, tokenizer), self.model, variables
        )
        if self.family in ("auto", "chatml"):
            try:
                style = detect_chatml(chat, images=vision is not None)
                return checked_chatml(tokenizer, style, self.model, vision)
            except ConfigError:
                if self.family == "chatml":
                    raise
        return checked_renderer(chat, self._family_of(chat), vision)

    def _family_of(self, chat: ChatTemplate) -> Family:
        """The requested family, or the first whose signs the tokenizer and the template have."""
        added = chat.tokenizer.get_added_vocab()
        for family in _FAMILIES:
            missing = [
                sign for sign in family.signs if sign not in added or sign not in chat.text
            ]
            if family.name == self.family and missing:
                raise ConfigError(
                    f"RendererSpec.family: {family.name} needs {', '.join(missing)} in the chat "
                    f"template and among the added tokens of {self.model}; set "
                    "RendererSpec.family: auto"
                )
            if family.name == self.family or (self.family == "auto" and not missing):
                break
        return family


def load_tokenizer(model: str) -> Any:
    """The fast tokenizer of a model's folder.

    Raises:
        DataError: the folder or its tokenizer is missing or cannot be read.
    """
    folder = Path(model).expanduser()
    remedy = (
        "copy the tokenizer of the model that it was made from there "
        "(AutoTokenizer.save_pretrained writes it)"
    )
    if not folder.is_dir():
        raise DataError(
            f"RendererSpec.model: there is no folder {model}; name a folder in Hugging Face's "
            "layout (`hf download NAME --local-dir FOLDER` makes one)"
        )
    if missing := [name for name in _TOKENIZER_FILES if not (folder / name).is_file()]:
        raise DataError(
            f"RendererSpec.model: {model} has no tokenizer: {' and '.join(missing)} missing; "
            f"{remedy}"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"RendererSpec.model: the tokenizer in {model} cannot be read: {error}; {remedy}"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"RendererSpec.model: the tokenizer in {model} has no fast version (tokenizer.json); "
            f"{remedy}"
        )
    return tokenizer


def _template_text(spec: RendererSpec, tokenizer: Any) -> str:
    """The Jinja text of the setting or the tokenizer."""
    given = spec.chat_template
    if given is not None:
        if "{%" in given or "{{" in given:
            return given
        path = Path(os.path.expanduser(given))
        if not path.is_file():
            raise ConfigError(
                "RendererSpec.chat_template must be chatml, a Jinja file or Jinja text; there is "
                f"no file {given!r}"
            )
        return path.read_text(encoding="utf-8")
    own: str | dict[str, str] | None = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("tool_use") or own.get("default")
    if not own:
        raise ConfigError(
            f"{spec.model} has no chat template, as is usual for a base model; set "
            f"RendererSpec.chat_template: chatml, or to the path of a Jinja file"
        )
    return own
