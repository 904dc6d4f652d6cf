"""``key=value`` from the command line, and mappings from Python, laid over a document."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ruamel.yaml.error import YAMLError

from agentrl.config.document import (
    MISSING,
    ConfigDocument,
    Origin,
    dotted,
    matching_keys,
    parse_value,
    stage_roots,
    value_at,
)
from agentrl.config.stage_merge import SHORT_FORMS, owner_of
from agentrl.errors import did_you_mean
from agentrl.types.section import Key


def apply_overrides(
    document: ConfigDocument, overrides: Sequence[str] | Mapping[str, Any]
) -> None:
    """Lays ``overrides`` over ``document`` in order; later ones win.

    Args:
        document: changed in place, its problems too; its short forms are expanded.
        overrides: ``key=value`` texts whose values are YAML 1.2, or dotted keys with values. A
            list's entry is named by its position, a stage also by its name.
    """
    for origin, key, value in _read(document, overrides):
        try:
            _set(document, key, value, origin)
        except LookupError as error:
            document.broken(origin, str(error.args[0]))


def _read(
    document: ConfigDocument, overrides: Sequence[str] | Mapping[str, Any]
) -> Iterator[tuple[Origin, str, Any]]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            yield Origin(f"override {key}={value!r}", overrides=True), key, value
        return
    for text in overrides:
        origin = Origin(f"command line: {text}", overrides=True)
        key, equals, raw = text.partition("=")
        if not equals or not key.strip("-"):
            document.broken(origin, f"an override is written key=value, got {text!r}")
            continue
        try:
            yield origin, key.removeprefix("--"), parse_value(raw)
        except YAMLError as error:
            words = " ".join(str(error).split())
            document.broken(origin, f"the value of {key} is not YAML: {words}")


def _set(document: ConfigDocument, dotted_key: str, value: Any, origin: Origin) -> None:
    """Sets one value wherever it takes effect; raises LookupError with words for the user where it
    leads nowhere.
    """
    parts = dotted_key.split(".")
    names_stage = len(parts) == 3 and parts[0] == "stages"
    short = SHORT_FORMS.get((parts[-1],))
    if isinstance(value, str) and short and (len(parts) == 1 or names_stage):
        # ``data=x`` means ``data.train=x``: what else the section says stays.
        parts.append(short)
    for target in _targets(document.tree, parts):
        # Each place has a copy of its own, since a later override may change one of them.
        _set_at(document, target, copy.deepcopy(value), origin)


def _targets(tree: dict[str, Any], parts: list[str]) -> list[list[str]]:
    """Where a value goes: to the top, and into the last stage where that has the key; a run is
    about its last stage.

    What only the last stage has is set there alone: the settings of an algorithm, data set,
    environment or engine that it names, and entries of a mapping that the top lacks.
    """
    root = stage_roots(tree)[-1]
    last = value_at(tree, root)
    if not root or not isinstance(last, dict) or parts[0] == "stages":
        return [parts]
    short = parts == ["train", "steps"] and "steps" in last
    own = [*map(str, root), *(parts[1:] if short else parts)]
    owner = owner_of(tuple(parts)) if len(parts) > 1 else None
    if owner is not None and value_at(last, owner) is not MISSING:
        return [own]
    section = parts[:-1]
    at_top = len(parts) <= 2 or value_at(tree, section) is not MISSING
    if not at_top and value_at(last, section) is not MISSING:
        return [own]
    return [parts] if value_at(tree, own) is MISSING else [parts, own]


def _set_at(document: ConfigDocument, parts: list[str], value: Any, origin: Origin) -> None:
    here: Any = document.tree
    key: Key = ()
    for depth, part in enumerate(parts, 1):
        if not isinstance(here, list | dict):
            raise LookupError(f"{dotted(key)} is {here!r}, which has no {part!r} in it")
        step: Any = _index(here, part, key) if isinstance(here, list) else part
        key = (*key, step)
        if depth == len(parts):
            here[step] = value
        elif isinstance(here, dict) and here.get(step) is None:
            here[step] = {}
            document.place(key, {}, origin)
        here = here[step]
    document.place(key, value, origin)
    expand_short_forms(document)


def _index(entries: list[Any], part: str, key: Key) -> int:
    if part.isdecimal():
        if int(part) >= len(entries):
            raise LookupError(
                f"{dotted(key)} has {len(entries)} entries, counted from 0, so there is no {part}"
            )
        return int(part)
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if part not in names:
        known = [name for name in names if isinstance(name, str)]
        raise LookupError(
            f"{dotted(key)} has no entry named {part!r}{did_you_mean(part, known)} "
            f"(entries are named by position{', or ' + ', '.join(known) if known else ''})"
        )
    return names.index(part)


def expand_short_forms(document: ConfigDocument) -> None:
    """Replaces each text that is short for a mapping by that mapping, at the top and in every
    stage.
    """
    for root in stage_roots(document.tree):
        for pattern, name in SHORT_FORMS.items():
            for key in matching_keys(document.tree, (*root, *pattern)):
                value = value_at(document.tree, key)
                if isinstance(value, str):
                    value_at(document.tree, key[:-1])[key[-1]] = {name: value}
                    document.origins[(*key, name)] = document.origins[key]
