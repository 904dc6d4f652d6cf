"""Every setting as Markdown tables, made of the schema: the second half of ``docs/configuration.md``."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentrl.algorithms import ALGORITHMS
from agentrl.config.algorithm_section import settings_section
from agentrl.config.schema import RunConfig, StageEntry
from agentrl.types.section import Section, entry_section, plain_section

__all__ = ["settings_reference"]


def settings_reference() -> str:
    """A table a section: key, default, meaning; then one an algorithm, and one for what a stage has beside sections."""
    parts = [_table(name, section) for name, section in _sections(RunConfig, ())]
    parts += [_algorithm_table(name) for name in sorted(ALGORITHMS)]
    parts.append(_stage_table())
    return "\n".join(parts)


def _sections(root: type[Section], prefix: tuple[str, ...]) -> Iterator[tuple[str, type[Section]]]:
    for name, field in root.model_fields.items():
        key = (*prefix, name)
        if (section := plain_section(field.annotation)) is not None:
            yield ".".join(key), section
            yield from _sections(section, key)
        elif name != "stages" and (section := entry_section(field.annotation)) is not None:
            entry = "NAME" if typing.get_origin(field.annotation) is dict else "N"
            yield ".".join((*key, entry)), section


def _table(name: str, section: type[Section]) -> str:
    heading = f"### `{name}`\n\n{_words(section.__doc__)}\n"
    return "\n".join([heading, "| key | default | meaning |", "|---|---|---|", *_rows(section), ""])


def _rows(section: type[Section]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if plain_section(field.annotation) is None:
            choices = f"{_choices(field.annotation)} " if _choices(field.annotation) else ""
            yield f"| `{field.alias or name}` | {_default(field)} | {choices}{_words(field.description)} |"


def _algorithm_table(name: str) -> str:
    summary, _, arguments = (inspect.getdoc(ALGORITHMS[name].settings) or "").partition("Args:")
    meanings = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", arguments, flags=re.MULTILINE))
    rows = [
        f"| `{key}` | {_default(field)} | {_sentence(meanings.get(key))} |"
        for key, field in settings_section(name).model_fields.items()
    ]
    heading = f"### `algorithm` with `name: {name}`\n\n{_words(summary)}\n"
    return "\n".join([heading, "| key | default | meaning |", "|---|---|---|", *rows, ""])


def _stage_table() -> str:
    own = [(key, field) for key, field in StageEntry.model_fields.items() if field.description]
    rows = [
        f"| `{field.alias or key}` | {_default(field)} | {_words(field.description)} |"
        for key, field in own
    ]
    heading = f"### `stages.N`\n\n{_words(StageEntry.__doc__)}\n"
    return "\n".join([heading, "| key | default | meaning |", "|---|---|---|", *rows, ""])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is not PydanticUndefined:
        return f"`{_yaml(field.default)}`"
    made = {dict: "`{}`", tuple: "`[]`"}
    return made.get(typing.cast(Any, field.default_factory), "follows")


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(_yaml(entry) for entry in value)}]"
    return str(value)


def _choices(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(annotation)) + "."
    return ""


def _sentence(text: str | None) -> str:
    words = _words(text)
    return words[:1].upper() + words[1:]


def _words(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`").replace("|", "\\|")
