"""``key=value`` from the command line, and mappings from Python, laid over a document."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ruamel.yaml.error import YAMLError

from agentrl.config.document import Document, Origin, dotted, parse_value
from agentrl.config.problems import Problem
from agentrl.config.stage_merge import SHORT_FORMS, owner_of
from agentrl.errors import did_you_mean
from agentrl.types.section import Key


def apply_overrides(
    document: Document, overrides: Sequence[str] | Mapping[str, Any]
) -> list[Problem]:
    """Lays ``overrides`` over ``document`` in order; later ones win.

    Args:
        document: changed in place; its short forms are expanded.
        overrides: ``key=value`` texts whose values are YAML 1.2, or dotted keys with values. A
            list's entry is named by its position, a stage also by its name.

    Returns:
        What is wrong with them.
    """
    problems: list[Problem] = []
    for text, key, value in _read(overrides, problems):
        origin = Origin(text)
        try:
            _set(document, key, value, origin)
        except LookupError as error:
            problems.append(Problem(text, str(error.args[0])))
    return problems


def _read(
    overrides: Sequence[str] | Mapping[str, Any], problems: list[Problem]
) -> Iterable[tuple[str, str, Any]]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            yield f"override {key}={value!r}", key, copy.deepcopy(value)
        return
    for text in overrides:
        place = f"command line: {text}"
        key, equals, raw = text.partition("=")
        if not equals or not key.strip("-"):
            problems.append(Problem(place, f"an override is written key=value, got {text!r}"))
            continue
        try:
            yield place, key.removeprefix("--"), parse_value(raw)
        except YAMLError as error:
            problems.append(
                Problem(place, f"the value of {key} is not YAML: {' '.join(str(error).split())}")
            )


def _set(document: Document, dotted_key: str, value: Any, origin: Origin) -> None:
    """Sets one value wherever it takes effect; raises LookupError with words for the user where it
    leads nowhere.
    """
    parts = dotted_key.split(".")
    if (
        isinstance(value, str)
        and (short := SHORT_FORMS.get((parts[-1],)))
        and (len(parts) == 1 or _names_stage(parts))
    ):
        parts.append(short)  # data=x is data.train=x: what else the section says stays
    for target in _targets(document.tree, parts):
        _set_at(document, target, copy.deepcopy(value), origin)


def _targets(tree: dict[str, Any], parts: list[str]) -> list[list[str]]:
    """Where a value goes: to the top, and into the last stage where that has the key; a run is
    about its last stage.

    What only the last stage has is set there alone: the settings of an algorithm, data set,
    environment or engine that it names, and entries of a mapping that the top lacks.
    """
    stages = tree.get("stages")
    entries = stages if isinstance(stages, list) else []
    last = entries[-1] if entries else None
    if not isinstance(last, dict) or parts[0] == "stages":
        return [parts]
    index = str(len(entries) - 1)
    own = ["stages", index, *parts]
    if parts == ["train", "steps"] and "steps" in last:
        own = ["stages", index, "steps"]
    owner = owner_of(tuple(parts)) if len(parts) > 1 else None
    if owner is not None and _has(last, list(owner)):
        return [own]
    section = parts[:-1]
    top = len(parts) <= 2 or _has(tree, section) or not _has(last, section)
    targets = [parts] if top else []
    if not top or _has(tree, own):
        targets.append(own)
    return targets


def _has(tree: Any, parts: list[str]) -> bool:
    for part in parts:
        if isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            return False
    return True


def _set_at(document: Document, parts: list[str], value: Any, origin: Origin) -> None:
    here: Any = document.tree
    key: Key = ()
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if isinstance(here, list):
            index = _index(here, part, key)
            key = (*key, index)
            if last:
                here[index] = value
            here = here[index]
        elif isinstance(here, dict):
            key = (*key, part)
            if last:
                here[part] = value
            elif here.get(part) is None:
                here[part] = {}
                document.place(key, {}, origin)
            here = here[part]
        else:
            raise LookupError(f"{dotted(key)} is {here!r}, which has no {part!r} in it")
    document.place(key, value, origin)
    expand_short_forms(document)


def _names_stage(parts: list[str]) -> bool:
    return len(parts) == 3 and parts[0] == "stages"


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


def expand_short_forms(document: Document) -> None:
    """Replaces each text that is short for a mapping by that mapping, at the top and in every
    stage.
    """
    stages = document.tree.get("stages")
    roots: list[tuple[Key, Any]] = [((), document.tree)]
    roots += (
        [(("stages", i), stage) for i, stage in enumerate(stages)]
        if isinstance(stages, list)
        else []
    )
    for root, tree in roots:
        for pattern, name in SHORT_FORMS.items():
            _expand(document, tree, root, pattern, name)


def _expand(document: Document, tree: Any, key: Key, pattern: tuple[str, ...], name: str) -> None:
    head, *rest = pattern
    steps: Iterable[Any] = ()
    if isinstance(tree, dict):
        steps = list(tree) if head == "*" else [head] if head in tree else []
    elif isinstance(tree, list) and head == "*":
        steps = range(len(tree))
    for step in steps:
        inner = (*key, step)
        if rest:
            _expand(document, tree[step], inner, tuple(rest), name)
        elif isinstance(tree[step], str):
            tree[step] = {name: tree[step]}
            document.origins[(*inner, name)] = document.origins[inner]
