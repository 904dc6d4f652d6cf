"""Renamed keys: what a setting is called now.

- A user's file or override that has an old key is refused with its new name.
- A run's own ``config.resolved.yaml`` is read by the new names, so that runs of older versions
  open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentrl.algorithms import ALGORITHMS, KLInReward
from agentrl.config.document import Document, dotted, matching_keys, stage_roots, value_at
from agentrl.config.foreign_keys import foreign_names
from agentrl.config.stage_merge import merge
from agentrl.engines.find import BUILT_IN
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
    name, or has one in verl or TRL.
    """
    key = fault.keys[0]
    entry = str(key[2]) if len(key) > 2 else ""
    for old, new in RENAMED.items():
        if key == _key(old, entry):
            now = _key(new, entry)
            return Fault(
                (key, now), f"{{key}} is called {dotted(now)} now; rename it, got {fault.value!r}"
            )
    foreign = foreign_names(dotted(key), fault.value)
    if foreign and fault.message.startswith("unknown key"):
        return replace(fault, message=f"unknown key {{key}}{foreign}")
    return fault


def rename_keys(document: Document) -> None:
    """Gives every old key and value of ``document`` its new name, at the top and in every stage;
    changes it in place.
    """
    for root in stage_roots(document.tree):
        tree = value_at(document.tree, root)
        rollout = tree.get("rollout") or {}
        engine = rollout.get("engine")
        own = ":" in str((tree.get("algorithm") or {}).get("name", ""))
        for old, new in RENAMED.items():
            if own and old.startswith("algorithm."):
                continue  # a user's own algorithm may have a setting of that name
            if old == "rollout.engine_args" and engine in BUILT_IN:
                new = f"rollout.{engine}"
            for key in matching_keys(tree, old.split(".")):
                _move(document, root, key, _key(new, str(key[2]) if "*" in old else ""))
        _forget_k3(document, (*root, "algorithm"))
        servers = rollout.get("sglang") or {}
        for name, renamed in RENAMED_VALUES.items():
            if name in servers:
                servers[name] = renamed.get(servers[name], servers[name])


def _forget_k3(document: Document, at: Key) -> None:
    """Leaves out the defaults that an older version wrote for a KL that the run did not have."""
    own = value_at(document.tree, at)
    entry = ALGORITHMS.get(str(own.get("name"))) if isinstance(own, dict) else None
    if entry and issubclass(entry.settings, KLInReward) and not own.get("kl_coef"):
        for name in own.keys() & {"kl_estimator", "kl_cap"}:
            del own[name]
            document.forget((*at, name))


def _move(document: Document, root: Key, old: Key, new: Key) -> None:
    tree = value_at(document.tree, root)
    value = value_at(tree, old[:-1]).pop(old[-1])
    origin = document.origins[(*root, *old)]
    document.forget((*root, *old))
    for part in new[:-1]:
        tree = tree.setdefault(part, {})
    tree[new[-1]] = merge(tree.get(new[-1]), value)
    document.place((*root, *new), tree[new[-1]], origin)


def _key(pattern: str, entry: str) -> Key:
    return tuple(entry if part == "*" else part for part in pattern.split("."))
