"""Every setting as Markdown tables, made of the schema: the second half of
``docs/configuration.md``.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agentrl.algorithms import ALGORITHMS, PolicyGradientSettings
from agentrl.config.schema import RunConfig, StageEntry
from agentrl.rollouts.samplers.catalog import SAMPLERS
from agentrl.types.section import Section, plain_section, sections_within


def settings_reference() -> str:
    """A table a section: key, default, meaning; then those of each algorithm and task sampler,
    and one for a stage's own keys.
    """
    parts = [
        _table(f"`{key}`", s)
        for key, s in sections_within(RunConfig)
        if s is not StageEntry
    ]
    parts += _algorithms()
    parts += [
        _table(f"`data.sampler` with `name: {name}`", SAMPLERS[name].settings)
        for name in sorted(SAMPLERS)
        if SAMPLERS[name].settings.model_fields
    ]
    own = {
        key: field for key, field in StageEntry.model_fields.items() if field.description
    }
    parts.append(_table("`stages.N`", StageEntry, own))
    return "\n".join(parts)


def _algorithms() -> Iterator[str]:
    """What algorithms that learn from rewards share, then what is each one's own; a section that
    several have stands once, one with defaults of its own by its algorithm's name."""
    shared = PolicyGradientSettings
    told: dict[type[Section], str] = {}
    rows: list[tuple[str, type[Section]]] = [
        ("`algorithm` that learns from rewards", shared)
    ]
    for name in sorted(ALGORITHMS):
        rows.append((f"`algorithm` with `name: {name}`", ALGORITHMS[name].settings))
    for title, settings in rows:
        fields = dict(settings.model_fields)
        if issubclass(settings, shared) and settings is not shared:
            fields = {
                name: field
                for name, field in fields.items()
                if _default(field) != _default(shared.model_fields.get(name, _NEW))
            }
        yield _table(title, settings, fields)
        for key, section in sections_within(settings):
            if section not in told:
                own = title.removeprefix("`algorithm`") if key in told.values() else ""
                told[section] = key
                yield _table(f"`algorithm.{key}`{own}", section)


_NEW = FieldInfo(default=object())


def _table(
    title: str, section: type[Section], fields: Mapping[str, FieldInfo] | None = None
) -> str:
    heading = f"### {title}\n\n{_words(section.__doc__)}\n"
    rows = _rows(section.model_fields if fields is None else fields)
    return "\n".join([heading, "| key | default | meaning |", "|---|---|---|", *rows, ""])


def _rows(fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    for name, field in fields.items():
        if plain_section(field.annotation) is None:
            meaning = f"{_choices(field.annotation)}{_words(field.description)}"
            yield f"| `{field.alias or name}` | {_default(field)} | {meaning} |"


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
        return ", ".join(f"`{choice}`" for choice in typing.get_args(annotation)) + ". "
    return ""


def _words(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`").replace("|", "\\|")
