"""A YAML 1.2 file as a plain tree, with the place of every key, and what is wrong with it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agentrl.errors import ConfigError
from agentrl.guards.secret_mask import beginning
from agentrl.types.section import Key

_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float"))
MISSING = object()
"""What ``value_at`` finds where there is nothing."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written.

    Args:
        text: ``config.yaml:12:3``, or ``command line: key=value``.
        position: line and column in the file, by which problems are listed; those of the command
            line come last.
    """

    text: str
    position: tuple[int, int] = (sys.maxsize, 0)
    overrides: bool = False
    """Whether it was laid over a file."""


@dataclass(slots=True)
class ConfigDocument:
    """A tree of plain values, and the origin of every key that was written.

    Args:
        tree: the values.
        origins: by key.
        problems: what is wrong: where, and the key, the rule, the value found and the remedy.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)
    problems: list[tuple[Origin, str]] = field(default_factory=list)

    def place(self, key: Key, value: Any, origin: Origin) -> None:
        """Records that ``value`` at ``key``, with everything in it, was written at ``origin``."""
        # What stood in the value before is gone, and no error may name its place.
        for known in [known for known in self.origins if known[: len(key)] == key]:
            del self.origins[known]
        self.origins.update((inner, origin) for inner in _keys_within(key, value))

    def broken(self, origin: Origin, message: str) -> None:
        """Adds a problem."""
        self.problems.append((origin, message))

    def raise_problems(self) -> None:
        """Raises one ConfigError that lists every distinct problem, if there is any."""
        ordered = sorted(self.problems, key=lambda problem: problem[0].position)
        lines = list(
            dict.fromkeys(f"{origin.text}: {message}" for origin, message in ordered)
        )
        if len(lines) == 1:
            raise ConfigError(lines[0])
        if lines:
            raise ConfigError(
                "\n  ".join([f"{len(lines)} problems in the configuration:", *lines])
            )


def value_at(tree: Any, key: Sequence[str | int]) -> Any:
    """What a tree has at ``key``; ``MISSING`` where it has nothing there."""
    for part in key:
        if isinstance(tree, list) and str(part).isdecimal():
            part = int(part)
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return tree


def matching_keys(tree: Any, pattern: Sequence[str | int]) -> list[Key]:
    """The keys of a tree that fit ``pattern``, in which ``*`` is any entry of a list or mapping."""
    found: list[Key] = [()]
    for part in pattern:
        steps = [(key, value_at(tree, key)) for key in found]
        found = [
            (*key, step)
            for key, inner in steps
            for step in (_entries(inner) if part == "*" else [part])
            if value_at(inner, [step]) is not MISSING
        ]
    return found


def _entries(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value)
    return range(len(value)) if isinstance(value, list) else ()


def _keys_within(key: Key, value: Any) -> Iterator[Key]:
    """``key`` and the keys of everything in ``value``."""
    yield key
    for step in _entries(value):
        yield from _keys_within((*key, step), value[step])


def stage_roots(tree: Mapping[str, Any]) -> list[Key]:
    """The keys under which settings stand: the top, and every stage."""
    stages = tree.get("stages")
    return [
        (),
        *(("stages", i) for i in range(len(stages) if isinstance(stages, list) else 0)),
    ]


def parse_document(text: str, name: str) -> ConfigDocument:
    """Reads a configuration file's text.

    Args:
        text: YAML 1.2 with a mapping at the top.
        name: the file's name, as origins show it.

    Returns:
        The document, as far as it could be read. The root's origin is the file.
    """
    file = _File(name)
    document = file.document
    document.origins[()] = Origin(name)
    try:
        node = file.yaml.compose(io.StringIO(text))
    except YAMLError as error:
        document.broken(*_syntax_problem(error, name))
        return document
    except RecursionError:
        document.broken(Origin(name), "is nested too deeply to be read")
        return document
    if isinstance(node, MappingNode):
        document.tree = file.value(node, ())
    elif node is not None:
        document.broken(Origin(f"{name}:1:1"), "the file must be a mapping of settings")
    return document


def parse_value(text: str) -> Any:
    """The value of an override, read as YAML 1.2.

    Raises:
        YAMLError: the text is no YAML.
    """
    file = _File("")
    node = file.yaml.compose(io.StringIO(text))
    value = None if node is None else file.value(node, ())
    for _, message in file.document.problems:
        raise YAMLError(message)
    return value


def _syntax_problem(error: YAMLError, name: str) -> tuple[Origin, str]:
    if not isinstance(error, MarkedYAMLError):
        return Origin(name), f"is not YAML: {error}"
    mark = error.problem_mark or error.context_mark
    place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    words = " ".join(str(part) for part in (error.context, error.problem) if part)
    return Origin(place), f"is not YAML: {words}"


class _File:
    """A file that is read into a document."""

    def __init__(self, name: str) -> None:
        self.document = ConfigDocument()
        self.yaml = YAML(typ="safe", pure=True)
        self._name = name
        # The nodes that are being read: an alias may lead back to one.
        self._open: set[int] = set()

    def value(self, node: Node, key: Key) -> Any:
        """The plain value of a node, whose places and problems go into the document."""
        if id(node) in self._open:
            self.document.broken(
                self._origin(node),
                f"{dotted(key)} must not stand within itself; write it out",
            )
            return None
        self._open.add(id(node))
        value = self._value(node, key)
        self._open.remove(id(node))
        return value

    def _value(self, node: Node, key: Key) -> Any:
        document = self.document
        # a mapping's entries have their key's place already
        document.origins.setdefault(key, self._origin(node))
        if isinstance(node, SequenceNode):
            return [self.value(item, (*key, i)) for i, item in enumerate(node.value)]
        if not isinstance(node, MappingNode):
            return self._scalar(node, key)
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            origin = self._origin(key_node)
            if not isinstance(key_node, ScalarNode):
                where = dotted(key) or "the file"
                document.broken(origin, f"a key in {where} must be a plain text")
                continue
            name = str(key_node.value)
            inner = (*key, name)
            if name in mapping:
                first = document.origins[inner].text
                document.broken(origin, f"{dotted(inner)} is given twice, first at {first}")
                continue
            document.origins[inner] = origin
            mapping[name] = self.value(value_node, inner)
        return mapping

    def _origin(self, node: Node) -> Origin:
        line = node.start_mark.line + 1
        column = node.start_mark.column + 1
        return Origin(f"{self._name}:{line}:{column}", (line, column))

    def _scalar(self, node: Node, key: Key) -> Any:
        """A scalar of YAML 1.2's core schema: null, bool, int, float, and text for everything
        else.
        """
        tag = str(node.tag)
        if tag in _PLAIN:
            try:
                return self.yaml.constructor.construct_object(node)
            except (ValueError, KeyError):
                self.document.broken(
                    self._origin(node),
                    f"{dotted(key)} cannot be read as a YAML {tag.removeprefix(_TAG)}, got "
                    f"{_cut(str(node.value))!r}",
                )
                return None
        if not tag.startswith(_TAG):
            self.document.broken(
                self._origin(node), f"{dotted(key)} must have no YAML tag, got {tag}"
            )
        return str(node.value)


def _cut(text: str) -> str:
    return beginning(text, 80)


def dotted(key: Key) -> str:
    """``("stages", 0, "name")`` as ``stages.0.name``."""
    return ".".join(map(str, key))
