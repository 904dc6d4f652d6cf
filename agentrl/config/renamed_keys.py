"""Renamed keys: what a setting is called now.

- A user's file or override that has an old key is refused with its new name.
- A run's own ``config.resolved.yaml`` is read by the new names, so that runs of older versions open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.config.document import Document
from agentrl.engines.servers.section import RENAMED_VALUES
from agentrl.engines.sglang.sglang_spec import RENAMED_KEYS
from agentrl.types.section import Fault, Key

__all__ = ["rename_keys", "with_new_name"]

RENAMED: Mapping[str, str] = {  # * is any entry of a mapping
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
    """The fault of an unknown key, in words that say what the key is called now if it had another name."""
    for old, new in RENAMED.items():
        stars = _match(old, fault.keys[0])
        if stars is not None:
            now = tuple(_filled(new, stars))
            return Fault(
                (fault.keys[0], now),
                f"{{key}} is called {'.'.join(now)} now; rename it, got {fault.value!r}",
            )
    return fault


def rename_keys(document: Document) -> None:
    """Gives every old key of ``document`` its new name, at the top and in every stage; changes it in place."""
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
        for key in list(_keys_like(old.split("."), tree)):
            stars = _match(old, key) or []
            holder: Any = tree
            for part in key[:-1]:
                holder = holder[part]
            value = holder.pop(key[-1])
            origin = document.origins[(*root, *key)]
            document.forget((*root, *key))
            renamed = _filled(new, stars)
            holder = tree
            for part in renamed[:-1]:
                holder = holder.setdefault(part, {})
            holder[renamed[-1]] = value
            document.place((*root, *renamed), value, origin)


def _rename_values(tree: dict[str, Any]) -> None:
    """Gives old values of ``rollout.sglang`` their new names."""
    own = (tree.get("rollout") or {}).get("sglang") or {}
    for name, renamed in RENAMED_VALUES.items():
        if name in own:
            own[name] = renamed.get(own[name], own[name])


def _keys_like(pattern: list[str], tree: Any, key: Key = ()) -> Iterator[Key]:
    if not pattern:
        yield key
    elif isinstance(tree, dict):
        head, *rest = pattern
        for name in list(tree) if head == "*" else [head]:
            if name in tree:
                yield from _keys_like(rest, tree[name], (*key, name))


def _match(pattern: str, key: Key) -> list[str] | None:
    """What the stars of ``pattern`` stand for in ``key``; None where it is another key."""
    parts = pattern.split(".")
    if len(parts) != len(key):
        return None
    pairs = list(zip(parts, map(str, key), strict=True))
    if any(part not in ("*", name) for part, name in pairs):
        return None
    return [name for part, name in pairs if part == "*"]


def _filled(pattern: str, stars: list[str]) -> list[str]:
    rest = iter(stars)
    return [next(rest) if part == "*" else part for part in pattern.split(".")]
