"""A YAML 1.2 file as a plain tree, with the place of every key."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agentrl.config.problems import Problem
from agentrl.types.section import Key

_TAG = "tag:yaml.org,2002:"
_BASES = {"0b": 2, "0o": 8, "0x": 16}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: ``config.yaml:12:3``, or ``command line: key=value``."""

    text: str
    position: tuple[int, int] = (sys.maxsize, 0)

    def problem(self, message: str) -> Problem:
        """Something wrong with what was written here."""
        return Problem(self.text, message, self.position)


@dataclass(slots=True)
class Document:
    """A tree of plain values, and the origin of every key that was written."""

    tree: dict[str, Any]
    origins: dict[Key, Origin] = field(default_factory=dict)

    def forget(self, key: Key) -> None:
        """Drops the origins of ``key`` and of everything in it."""
        for known in [known for known in self.origins if known[: len(key)] == key]:
            del self.origins[known]

    def place(self, key: Key, value: Any, origin: Origin) -> None:
        """Records that ``value`` at ``key``, with everything in it, was written at ``origin``."""
        self.forget(key)
        self.origins.update((inner, origin) for inner in keys_within(key, value))


def keys_within(key: Key, value: Any) -> Iterator[Key]:
    """``key`` and the keys of everything in ``value``."""
    yield key
    items = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in items:
        yield from keys_within((*key, name), inner)


def parse_document(text: str, name: str) -> tuple[Document, list[Problem]]:
    """Reads a configuration file's text.

    Args:
        text: YAML 1.2 with a mapping at the top.
        name: the file's name, as origins show it.

    Returns:
        The document, as far as it could be read, and what is wrong with it. The root's origin is
        the file.
    """
    document = Document({}, {(): Origin(name)})
    try:
        node = YAML(typ="safe", pure=True).compose(io.StringIO(text))
    except YAMLError as error:
        return document, [_syntax_problem(error, name)]
    if node is None:
        return document, []
    if not isinstance(node, MappingNode):
        return document, [Problem(f"{name}:1:1", "the file must be a mapping of settings")]
    problems: list[Problem] = []
    tree = _convert(node, (), document.origins, problems, name)
    return Document(tree, document.origins), problems


def parse_value(text: str) -> Any:
    """The value of an override, read as YAML 1.2.

    Raises:
        YAMLError: the text is no YAML.
    """
    node = YAML(typ="safe", pure=True).compose(io.StringIO(text))
    problems: list[Problem] = []
    value = None if node is None else _convert(node, (), {}, problems, "")
    if problems:
        raise YAMLError(problems[0].message)
    return value


def _syntax_problem(error: YAMLError, name: str) -> Problem:
    place = name
    words = "is not YAML"
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        words = ": ".join(
            ["is not YAML", " ".join(str(part) for part in (error.context, error.problem) if part)]
        )
    else:
        words = f"is not YAML: {error}"
    return Problem(place, words)


def _convert(
    node: Node, key: Key, origins: dict[Key, Origin], problems: list[Problem], name: str
) -> Any:
    # a mapping's entries have their key's place already
    origins.setdefault(key, _origin(node, name))
    if isinstance(node, SequenceNode):
        return [
            _convert(item, (*key, i), origins, problems, name) for i, item in enumerate(node.value)
        ]
    if not isinstance(node, MappingNode):
        return _scalar(node, key, problems, name)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, ScalarNode):
            problems.append(
                _origin(key_node, name).problem(
                    f"a key in {dotted(key) or 'the file'} must be a plain text"
                )
            )
            continue
        inner = (*key, str(key_node.value))
        if inner[-1] in mapping:
            first = origins[inner].text
            problems.append(
                _origin(key_node, name).problem(f"{dotted(inner)} is given twice, first at {first}")
            )
            continue
        origins[inner] = _origin(key_node, name)
        mapping[str(key_node.value)] = _convert(value_node, inner, origins, problems, name)
    return mapping


def _origin(node: Node, name: str) -> Origin:
    line = node.start_mark.line + 1
    column = node.start_mark.column + 1
    return Origin(f"{name}:{line}:{column}", (line, column))


def _scalar(node: Node, key: Key, problems: list[Problem], name: str) -> Any:
    """A scalar of YAML 1.2's core schema: null, bool, int, float, and text for everything else."""
    text = str(node.value)
    tag = str(node.tag)
    if tag == f"{_TAG}null":
        return None
    if tag == f"{_TAG}bool":
        return text.lower() == "true"
    if tag == f"{_TAG}int":
        digits = text.lstrip("+-")
        size = int(digits[2:], _BASES[digits[:2]]) if digits[:2] in _BASES else int(digits, 10)
        return -size if text.startswith("-") else size
    if tag == f"{_TAG}float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if not tag.startswith(_TAG):
        problems.append(
            _origin(node, name).problem(f"{dotted(key)} must have no YAML tag, got {tag}")
        )
    return text


def dotted(key: Key) -> str:
    """``("stages", 0, "name")`` as ``stages.0.name``."""
    return ".".join(str(part) for part in key)
