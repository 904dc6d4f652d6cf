"""Stages made whole: a stage's own settings merged over the sections at the top, as plain trees."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from agentrl.config.sections import SamplerConfig
from agentrl.config.train_sections import AlgorithmConfig

Tree: TypeAlias = dict[str, Any]

# Where a text may stand for a mapping, and the key that it is short for; * is any entry of a list
# or mapping.
SHORT_FORMS: Mapping[tuple[str, ...], str] = {
    ("data",): "train",
    ("data", "train", "*"): "data",
    ("data", "sampler"): "name",
    ("algorithm",): "name",
    ("env", "tools", "*"): "function",
    ("env", "wrappers", "*"): "function",
    ("env", "resources", "*"): "function",
    ("reward", "functions", "*"): "function",
    ("eval", "sets", "*"): "data",
}

# A key that says what its neighbours belong to: where a stage changes it, these neighbours do not
# carry over.
_OWNED: Mapping[tuple[str, ...], tuple[str, ...] | None] = {
    ("algorithm", "name"): None,  # all of them
    ("data", "sampler", "name"): None,
    ("data", "train"): ("args", "custom"),
    ("env", "entry_point"): ("args",),
    ("train", "steps"): ("epochs",),
    ("train", "epochs"): ("steps",),
}
_DEFAULTS: Mapping[tuple[str, ...], Any] = {
    ("algorithm", "name"): AlgorithmConfig.model_fields["name"].default,
    ("data", "sampler", "name"): SamplerConfig.model_fields["name"].default,
}


def merge(base: Any, patch: Any) -> Any:
    """``patch`` over ``base``: mappings key by key, anything else replaces."""
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    return {
        **base,
        **{
            key: merge(base[key], value) if key in base else value
            for key, value in patch.items()
        },
    }


def stage_trees(tree: Mapping[str, Any]) -> list[Tree]:
    """The tree of each stage, whole.

    Args:
        tree: a configuration as plain mappings; a well-formed one, or one whose faults the schema
            will name.

    Returns:
        For each entry of ``stages`` the sections at the top with the entry's merged over them, and
        ``name``, ``when`` and ``starts_from``; for a tree without stages one named ``train``.
    """
    top = {key: value for key, value in tree.items() if key != "stages"}
    entries = tree.get("stages") or ()
    if not entries:
        return [{**top, "name": "train"}]
    trees: list[Tree] = []
    previous = "model"
    for entry in entries:
        sections = {
            key: value
            for key, value in entry.items()
            if key not in ("name", "when", "from", "steps")
        }
        if entry.get("steps") is not None:
            sections["train"] = {**sections.get("train", {}), "steps": entry["steps"]}
        whole = merge(_without_owned(top, sections), sections)
        whole["name"] = entry.get("name")
        whole["when"] = entry.get("when", "always")
        whole["starts_from"] = entry.get("from") or previous
        trees.append(whole)
        previous = entry.get("name")
    return trees


def owner_of(key: tuple[str, ...]) -> tuple[str, ...] | None:
    """The setting that ``key`` belongs to, such as ``algorithm.name`` for all other keys of
    ``algorithm``.
    """
    for owner, owned in _OWNED.items():
        *section, name = owner
        inside = len(key) > len(section) and key[: len(section)] == tuple(section)
        own = key[len(section)] if inside else name
        if own != name and (owned is None or own in owned):
            return owner
    return None


def _without_owned(top: Tree, patch: Tree) -> Tree:
    """``top`` without the settings that belong to something that ``patch`` replaces."""
    kept = top
    for owner, owned in _OWNED.items():
        *section, key = owner
        base = _section(kept, section)
        own = _section(patch, section)
        if base is None or own is None or key not in own:
            continue
        if own[key] != base.get(key, _DEFAULTS.get(owner)):
            names = [name for name in base if owned is None or name in owned]
            kept = _without(kept, section, names)
    return kept


def _section(tree: Tree, path: Sequence[str]) -> Tree | None:
    """The mapping at a path; None where there is none."""
    here: Any = tree
    for name in path:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else None


def _without(tree: Tree, path: Sequence[str], names: Collection[str]) -> Tree:
    """A copy of ``tree`` whose mapping at a path lacks some names."""
    if not path:
        return {name: value for name, value in tree.items() if name not in names}
    first, *rest = path
    return {**tree, first: _without(tree[first], rest, names)}
