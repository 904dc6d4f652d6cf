"""Role handle: a role of a group's ranks, as the driver calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.cluster.role_group import RoleGroup
from agentrl.training import merge_columns
from agentrl.training.roles.own_role import check_columns, check_stats
from agentrl.types import BatchShard, Collect, Dispatch, Stats, UpdateStats, registration
from agentrl.types.arrays import Floats


@dataclass(frozen=True, slots=True)
class RoleHandle:
    """Calls a role on all its ranks.

    Args:
        group: its ranks.
        name: in the stage's roles; the folder of its checkpoints.
        trains: whether it learns.
        own: whether the user's code is its class: its columns are named ``ROLE/NAME``, and its
            answers are checked.
    """

    group: RoleGroup
    name: str
    trains: bool = True
    own: bool = False

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Calls a registered method, as its mark says (docs/training.md, Dispatch).

        Args:
            method: a function of the role's class or of a base of it, marked with ``@register``.
            args: for ``DATA`` the shards by coordinate, then arguments for all; otherwise arguments
                for all.

        Returns:
            For FIRST the answer of rank 0; for DATA a list by data coordinate, or statistics
            merged.
        """
        mark = registration(method)
        name = method.__name__
        if mark.dispatch is Dispatch.FIRST:
            return self.group.call(self.name, name, args=args)[0]
        answers = self.group.call(self.name, name, shards=args[0], args=args[1:])
        return sum(answers, Stats()) if mark.collect is Collect.STATS else answers

    def update(
        self,
        method: Callable[..., Any],
        batch: PlannedBatch,
        mini_batch: Sequence[BatchShard],
    ) -> UpdateStats:
        """An optimizer step on a mini-batch of ``batch``.

        Args:
            method: the role's ``update``, whose answers are statistics.
            batch: whole.
            mini_batch: the shards by coordinate.

        Returns:
            The merged statistics, and ``[T]`` columns of the batch; ranks that return none leave
            zeros.
        """
        answers = self.group.call(self.name, method.__name__, shards=mini_batch)
        if self.own:
            check_stats(answers, f"role {self.name!r}: its {method.__name__}")
        columns = [one.columns if isinstance(one, UpdateStats) else {} for one in answers]
        merged = merge_columns(columns, mini_batch, batch.batch.cu_seqlens)
        return UpdateStats(sum(answers, Stats()), merged)

    def columns(self, method: Callable[..., Any], batch: PlannedBatch) -> dict[str, Floats]:
        """``[T]`` columns of a batch by a pass without a backward."""
        parts = batch.forward_shards()
        answers = self.call(method, parts)
        if self.own:
            check_columns(answers, parts, f"role {self.name!r}: its pass {method.__name__!r}")
        found = merge_columns(answers, parts, batch.batch.cu_seqlens)
        return {f"{self.name}/{name}": one for name, one in found.items()} if self.own else found
