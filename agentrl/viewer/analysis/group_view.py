"""Group view: the rollouts of one task side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.store import Annotation, TokenArrays
from agentrl.types import SegmentKind
from agentrl.types.arrays import common_prefix


def group_view(
    rows: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, TokenArrays],
    annotations: Iterable[Annotation] = (),
    agents: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """What sets the rollouts of a group apart, as the viewer's API sends it.

    Args:
        rows: its summaries (columns of docs/trajectory-format.md).
        tokens: by id.
        annotations: of its trajectories; of two of one id the later one with advantages counts.
        agents: by id, the agent of each turn.

    Returns:
        ``rows``: the summaries, by rollout index and attempt.
        ``reward_mean``, ``reward_std``: of those with a reward; None without any. The greedy
        baseline of ReMax is none of them: it is what they are compared with.
        ``zero_std``: whether all rewards are equal, so that a comparison teaches nothing.
        ``advantages``: by id, the mean over trained tokens of each agent that has any; agents of
        one episode may have opposite ones.
        ``shared_tokens``: the tokens that all sequences begin with.
        ``drop_reason``: why the group was not trained; empty where it was, or is to be.
    """
    ordered = sorted(rows, key=lambda row: (row["rollout_index"], row["attempt"]))
    compared = [row for row in ordered if row.get("purpose") != "baseline"]
    rewards = [float(row["reward"]) for row in compared if row["reward"] is not None]
    learned = {one.trajectory_id: one for one in annotations if "advantages" in one.arrays}
    return {
        "rows": ordered,
        "reward_mean": float(np.mean(rewards)) if rewards else None,
        "reward_std": float(np.std(rewards)) if rewards else None,
        "zero_std": len(rewards) > 1 and len(set(rewards)) == 1,
        "advantages": {
            name: _mean_advantages(one, tokens[name], (agents or {}).get(name, ()))
            for name, one in learned.items()
        },
        "shared_tokens": _shared([tokens[row["id"]].token_ids for row in ordered]),
        "drop_reason": next((row["drop_reason"] for row in ordered if row.get("drop_reason")), ""),
    }


def _mean_advantages(
    annotation: Annotation, tokens: TokenArrays, agents: Sequence[str]
) -> dict[str, float]:
    """By agent; "" is the agent of a turn that names none."""
    advantages = np.asarray(annotation.arrays["advantages"], dtype=np.float64)
    weight = annotation.arrays.get("loss_weight")
    trained = np.ones(advantages.size, dtype=bool) if weight is None else np.asarray(weight) != 0
    turns = tokens.turn_index[tokens.kinds == SegmentKind.POLICY]
    if not turns.size == advantages.size == trained.size:
        # of another record of this id
        return {}
    own: dict[str, list[float]] = {}
    for turn, advantage in zip(turns[trained].tolist(), advantages[trained].tolist(), strict=True):
        own.setdefault(agents[turn] if turn < len(agents) else "", []).append(advantage)
    return {agent: float(np.mean(values)) for agent, values in own.items()}


def _shared(sequences: Sequence[npt.NDArray[np.int32]]) -> int:
    """How many leading ids all sequences have in common."""
    return min((common_prefix(sequences[0], other) for other in sequences), default=0)
