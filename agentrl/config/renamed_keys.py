"""Renamed keys: what a setting is called now.

- A user's file or override that has an old key is refused with its new name.
- A run's own ``config.resolved.yaml`` is read by the new names, so that runs of older versions
  open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.config.document import Document
from agentrl.engines.servers.section import RENAMED_VALUES
from agentrl.engines.sglang.sglang_spec import RENAMED_KEYS
from agentrl.types.section import Fault, Key

RENAMED: Mapping[str, str] = {  # * is any entry of eval.sets
    "algorithm.correction": "algorithm.rollout_correction.level",
    "algorithm.correction_cap": "algorithm.rollout_correction.cap",
    "algorithm.drop_zero_spread": "algorithm.filter_zero_variance",
    "algorithm.num_epochs": "train.updates_per_batch",
    "algorithm.scale": "algorithm.scale_rewards",
    "env.announce_tools": "env.describe_tools_in_prompt",
    "env.entry": "env.entry_point",
    "env.program": "env.agent_command",
    "eval.sets.*.only_before": "eval.sets.*.baseline_only",
    "reward.shuffle": "debug.shuffle_rewards",
    "rollout.allow_truncated_sampling": "rollout.allow_biased_sampling",
    "rollout.extra_siblings": "rollout.oversample_per_group",
    "rollout.max_refill": "rollout.max_resample_ratio",
    "rollout.min_siblings": "rollout.min_group_size",
    "rollout.on_publish": "rollout.pause_mode",
    "rollout.retries": "rollout.max_retries",
    "rollout.stale": "rollout.on_stale",
    "rollout.worker_timeout_s": "rollout.worker_liveness_timeout_s",
    "train.tool_tokens": "debug.train_on_tool_tokens",
    **RENAMED_KEYS,
}


def with_new_name(fault: Fault) -> Fault:
    """The fault of an unknown key, in words that say what the key is called now if it had another
    name.
    """
    key = fault.keys[0]
    entry = str(key[2]) if len(key) > 2 else ""
    for old, new in RENAMED.items():
        if key == _key(old, entry):
            now = _key(new, entry)
            name = ".".join(map(str, now))
            return Fault(
                (key, now), f"{{key}} is called {name} now; rename it, got {fault.value!r}"
            )
    return fault


def rename_keys(document: Document) -> None:
    """Gives every old key of ``document`` its new name, at the top and in every stage; changes it
    in place.
    """
    stages = document.tree.get("stages") or ()
    _rename_in(document, (), document.tree)
    _rename_values(document.tree)
    for index, stage in enumerate(stages):
        _rename_in(document, ("stages", index), stage)
        _rename_values(stage)


def _rename_in(document: Document, root: Key, tree: dict[str, Any]) -> None:
    own = ":" in str((tree.get("algorithm") or {}).get("name", ""))
    for old, new in RENAMED.items():
        if own and old.startswith("algorithm."):
            continue  # a user's own algorithm may have a setting of that name
        entries = list(_at(tree, ("eval", "sets")) or {}) if "*" in old else [""]
        for entry in entries:
            _move(document, root, tree, _key(old, entry), _key(new, entry))


def _move(document: Document, root: Key, tree: dict[str, Any], old: Key, new: Key) -> None:
    holder = _at(tree, old[:-1])
    if not isinstance(holder, dict) or old[-1] not in holder:
        return
    value = holder.pop(old[-1])
    origin = document.origins[(*root, *old)]
    document.forget((*root, *old))
    for part in new[:-1]:
        tree = tree.setdefault(str(part), {})
    tree[str(new[-1])] = value
    document.place((*root, *new), value, origin)


def _at(tree: Any, key: Key) -> Any:
    for part in key:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _rename_values(tree: dict[str, Any]) -> None:
    """Gives old values of ``rollout.sglang`` their new names."""
    own = (tree.get("rollout") or {}).get("sglang") or {}
    for name, renamed in RENAMED_VALUES.items():
        if name in own:
            own[name] = renamed.get(own[name], own[name])


def _key(pattern: str, entry: str) -> Key:
    return tuple(entry if part == "*" else part for part in pattern.split("."))
