"""What a renderer is made of: picklable, so that whoever hosts one builds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.render.chatml import ChatMLRenderer, ChatMLStyle
from agentrl.render.recognise import check_ids, recognise_chatml
from agentrl.render.renderer import Renderer

__all__ = ["RendererSpec"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class RendererSpec:
    """How messages become the tokens of one model.

    Args:
        model: folder of a model in Hugging Face's layout, with its tokenizer.
        family: ``auto`` finds the family that renders as the model's chat template does; a name (``chatml``) asks
            for that one.
        chat_template: ``None`` for the tokenizer's own; ``chatml`` for the plain ChatML format, whatever the
            tokenizer has; else a Jinja file, or Jinja text.
        enable_thinking: the switch of that name in templates that have one (Qwen3); None leaves their default.
    """

    model: str
    family: str = "auto"
    chat_template: str | None = None
    enable_thinking: bool | None = None

    def build(self) -> Renderer:
        """The renderer, proved on test conversations against the model's own template and tokenizer.

        Raises:
            DataError: the folder has no usable tokenizer, or the tokenizer lacks the family's markers.
            ConfigError: no chat template is found, or it belongs to no family that agentrl renders.
        """
        if self.family != "auto" and self.family not in _FAMILIES:
            raise ConfigError(f"the template family must be auto or {', '.join(_FAMILIES)}, got {self.family!r}")
        tokenizer = load_tokenizer(self.model)
        # With one family, `auto` and its name ask for the same.
        return _FAMILIES["chatml" if self.family == "auto" else self.family](self, tokenizer)


def load_tokenizer(model: str) -> Any:
    """The fast tokenizer of a model's folder.

    Raises:
        DataError: the folder or its tokenizer is missing or cannot be read.
    """
    folder = Path(model).expanduser()
    mend = "copy the tokenizer of the model that it was made from there (AutoTokenizer.save_pretrained writes it)"
    if not folder.is_dir():
        raise DataError(
            f"model.path: there is no folder {model}; name a folder in Hugging Face's layout "
            "(hf download NAME --local-dir FOLDER makes one)"
        )
    if missing := [name for name in _TOKENIZER_FILES if not (folder / name).is_file()]:
        raise DataError(f"model.path: {model} has no tokenizer: {' and '.join(missing)} missing; {mend}")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"model.path: the tokenizer in {model} cannot be read: {error}; {mend}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(f"model.path: the tokenizer in {model} has no fast version (tokenizer.json); {mend}")
    return tokenizer


def _build_chatml(spec: RendererSpec, tokenizer: Any) -> Renderer:
    if spec.chat_template == "chatml":
        style = ChatMLStyle()
    else:
        template = _template_text(spec, tokenizer)
        style = recognise_chatml(tokenizer, template, spec.enable_thinking, spec.model)
    renderer = ChatMLRenderer(tokenizer, style)
    check_ids(tokenizer, renderer, spec.model)
    return renderer


def _template_text(spec: RendererSpec, tokenizer: Any) -> str:
    """The Jinja text that the setting or the tokenizer gives."""
    given = spec.chat_template
    if given is not None:
        if "{%" in given or "{{" in given:
            return given
        path = Path(os.path.expanduser(given))
        if not path.is_file():
            raise ConfigError(
                f"model.chat_template must be chatml, a Jinja file or Jinja text; there is no file {given!r}"
            )
        return path.read_text(encoding="utf-8")
    own: str | dict[str, str] | None = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("tool_use") or own.get("default")
    if not own:
        raise ConfigError(
            f"{spec.model} has no chat template, as is usual for a base model; set model.chat_template: chatml, or "
            "to the path of a Jinja file"
        )
    return own


_FAMILIES: dict[str, Callable[[RendererSpec, Any], Renderer]] = {"chatml": _build_chatml}
