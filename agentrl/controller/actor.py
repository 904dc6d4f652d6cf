"""The policy's ranks as the driver calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.controller.group import WorkerGroup
from agentrl.controller.planned import MiniBatch, PlannedBatch
from agentrl.training import Actor, ModelFacts, Reference, merge_columns
from agentrl.types import BatchShard, Collect, Dispatch, Stats, registration

__all__ = ["ActorHandle", "invoke"]


def invoke(group: WorkerGroup, role: str, method: Callable[..., Any], *args: Any) -> Any:
    """Calls a registered method over a group, as its mark says (docs/training.md, Dispatch).

    Args:
        group: the ranks.
        role: the role's name in the workers.
        method: the role class's own function, marked with ``@register``.
        args: for ``DATA`` the shards by coordinate, then arguments for all; otherwise arguments for all.

    Returns:
        For ALL and a plain DATA call a list by rank; for FIRST and RANK_ZERO rank 0's answer; statistics merged.
    """
    mark = registration(method)
    name = method.__name__
    if mark.dispatch is Dispatch.DATA:
        parts, shared = args[0], args[1:]
        answers = group.call(role, name, [(part, *shared) for part in parts])
        return sum(answers, Stats()) if mark.collect is Collect.STATS else answers
    if mark.dispatch is Dispatch.RANK_ZERO:
        return group.call(role, name, [args])[0]
    answers = group.call(role, name, [args] * group.num_ranks)
    return answers[0] if mark.dispatch is Dispatch.FIRST else answers


class ActorHandle:
    """The actor role of a group.

    Args:
        group: its ranks.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group

    @property
    def num_ranks(self) -> int:
        return self._group.num_ranks

    def facts(self) -> ModelFacts:
        """Sizes of the model."""
        found: ModelFacts = invoke(self._group, "actor", Actor.facts)
        return found

    def logprobs(self, batch: PlannedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """``old_logprobs [T]``: the policy's own before the first update of the batch."""
        return self._columns(Actor.logprobs, batch)

    def advantages(self, batch: PlannedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """``advantages [T]``, their moments taken over all ranks where the algorithm normalises."""
        return self._columns(Actor.advantages, batch)

    def update(self, mini_batch: MiniBatch) -> Stats:
        """One optimizer step."""
        stats: Stats = invoke(self._group, "actor", Actor.update, mini_batch.shards)
        return stats

    def save(self, folder: Path) -> None:
        """Model, optimizer and schedule, for ``load``."""
        invoke(self._group, "actor", Actor.save, folder)

    def load(self, folder: Path) -> None:
        """What ``save`` kept."""
        invoke(self._group, "actor", Actor.load, folder)

    def export(self, folder: Path) -> None:
        """An ordinary Hugging Face folder of the model."""
        invoke(self._group, "actor", Actor.export, folder)

    def reference_logprobs(self, batch: PlannedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """``ref_logprobs [T]`` of the frozen reference beside the actor."""
        return self._columns(Reference.logprobs, batch, role="reference")

    def _columns(
        self, method: Callable[..., Any], batch: PlannedBatch, *, role: str = "actor"
    ) -> dict[str, npt.NDArray[np.float32]]:
        parts: Sequence[BatchShard] = batch.forward_shards()
        return merge_columns(invoke(self._group, role, method, parts), parts, batch.batch.cu_seqlens)
