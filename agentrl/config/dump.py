"""A configuration as YAML: every value written out, and on request where each one came from."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import BaseRepresenter

from agentrl.config.schema import RunConfig, StageConfig
from agentrl.types.section import Key

Origin: TypeAlias = Callable[[Key, int | None], str] | None
"""Where the value of a key (of a stage) was written."""
SHARED_SECTIONS = ("run", "placement", "model", "metrics", "store")
"""What belongs to the run and not to a stage."""


def to_yaml(
    config: RunConfig,
    origin: Origin = None,
    *,
    stages: Sequence[StageConfig] | None = None,
) -> str:
    """The whole configuration, defaults and merged stages written out.

    Args:
        config: as loaded.
        origin: shown behind each value.
        stages: its stages as they run, skipped ones included; by default as written.

    Returns:
        YAML 1.2 that ``load_config`` reads as a configuration with equal ``resolved_stages()``.
    """
    shared = config.model_dump(include=set(SHARED_SECTIONS))
    tree = _commented({name: shared[name] for name in SHARED_SECTIONS}, (), None, origin)
    trees = []
    for index, stage in enumerate(stages or config.resolved_stages(include_skipped=True)):
        head = {"name": stage.name, "when": stage.when, "from": stage.starts_from}
        own = stage.model_dump(
            by_alias=True, exclude={*SHARED_SECTIONS, "name", "when", "starts_from"}
        )
        if config.stages:
            trees.append(_commented({**head, **own}, (), index, origin))
        else:
            tree.update(_commented(own, (), None, origin))
    if trees:
        tree["stages"] = trees
    yaml = YAML(pure=True)
    # A wrapped value would be cut by the note behind it.
    yaml.width = 1_000_000
    # ruamel's own way to write a null is an empty value.
    yaml.representer.add_representer(
        type(None), lambda own, _: own.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    yaml.representer.add_representer(str, _text)
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()


def flat_settings(
    config: RunConfig, stages: Sequence[StageConfig]
) -> dict[str, Mapping[str, Any]]:
    """The settings of the whole run, under no name, and of each stage, by dotted key."""
    shared = config.model_dump(include=set(SHARED_SECTIONS))
    own = {
        stage.name: stage.model_dump(by_alias=True, exclude={*SHARED_SECTIONS, "name"})
        for stage in stages
    }
    trees = {"": shared, **own}
    return {
        name: {".".join(key): value for key, value in flat(tree)}
        for name, tree in trees.items()
    }


def flat(
    tree: Mapping[str, Any], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values by key; a list is one value, and so are a function's arguments."""
    for name, value in tree.items():
        if isinstance(value, dict) and value and name not in ("args", "build_args"):
            yield from flat(value, (*at, name))
        else:
            yield (*at, name), value


def _commented(
    tree: dict[str, Any],
    key: Key,
    stage: int | None,
    origin: Origin,
) -> CommentedMap:
    commented = CommentedMap()
    for name, value in tree.items():
        inner = (*key, name)
        if isinstance(value, dict) and value:
            commented[name] = _commented(value, inner, stage, origin)
            continue
        if _of_mappings(value):
            commented[name] = [
                _commented(entry, (*inner, i), stage, origin)
                for i, entry in enumerate(value)
            ]
            continue
        commented[name] = _flow(value)
        if origin is not None:
            commented.yaml_add_eol_comment(origin(inner, stage), name, column=48)
    return commented


def _of_mappings(value: Any) -> bool:
    """Whether it is a list, not empty, of mappings alone."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(entry, dict) for entry in value)
    )


def _text(representer: BaseRepresenter, value: str) -> ScalarNode:
    # ruamel writes `? x` plain in a list, where it begins a key, and folds U+0085 into a space.
    quoted = value.startswith(("?", ":")) or not value.isprintable()
    node: ScalarNode = representer.represent_scalar(
        "tag:yaml.org,2002:str", value, style='"' if quoted else None
    )
    return node


def _flow(value: Any) -> Any:
    """Lists and mappings on one line."""
    if isinstance(value, dict) and value:
        mapping = CommentedMap((name, _flow(entry)) for name, entry in value.items())
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        sequence = CommentedSeq(_flow(entry) for entry in value)
        sequence.fa.set_flow_style()
        return sequence
    return value
