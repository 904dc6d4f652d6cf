"""Role handle: a role of a group's ranks, as the driver calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl.controller.batch_plan import PlannedBatch, Shards
from agentrl.controller.cluster.role_group import Pending, RoleGroup, at_once
from agentrl.training import merge_columns
from agentrl.training.roles.own_role import check_columns, check_stats
from agentrl.types import Collect, Dispatch, Stats, UpdateStats, registration
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

    @property
    def data_parallel(self) -> int:
        """Ranks that get different data."""
        return self.group.mesh.dp

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
        return at_once([self.begin(method, *args)])[0]

    def begin(self, method: Callable[..., Any], *args: Any) -> Pending[Any]:
        """As ``call``, without waiting for the answers: ``at_once`` does."""
        mark = registration(method)
        name = method.__name__
        if mark.dispatch is Dispatch.FIRST:
            return self.group.begin(self.name, name, args=args).then(
                lambda answers: answers[0]
            )
        pending = self.group.begin(self.name, name, shards=args[0], args=args[1:])
        return pending.then(_sum) if mark.collect is Collect.STATS else pending

    def begin_update(
        self, method: Callable[..., Any], batch: PlannedBatch, mini_batch: Shards
    ) -> Pending[UpdateStats]:
        """An optimizer step on a mini-batch of ``batch``.

        Args:
            method: the role's ``update``, whose answers are statistics.
            batch: whole.
            mini_batch: of it.

        Returns:
            The merged statistics, and ``[T]`` columns of the batch; ranks that return none leave
            zeros.
        """
        parts = mini_batch(self.data_parallel)

        def merged(answers: list[Any]) -> UpdateStats:
            if self.own:
                check_stats(answers, f"role {self.name!r}: its {method.__name__}")
            columns = [
                one.columns if isinstance(one, UpdateStats) else {} for one in answers
            ]
            own = merge_columns(columns, parts, batch.batch.cu_seqlens)
            return UpdateStats(_sum(answers), own)

        return self.group.begin(self.name, method.__name__, shards=parts).then(merged)

    def begin_columns(
        self, method: Callable[..., Any], batch: PlannedBatch, samples: Shards
    ) -> Pending[dict[str, Floats]]:
        """``[T]`` columns of a batch by a pass without a backward.

        Args:
            method: the pass.
            batch: whole.
            samples: all of it, as ``batch.forward`` cuts them.
        """
        parts = samples(self.data_parallel)

        def merged(answers: list[Any]) -> dict[str, Floats]:
            if self.own:
                whose = f"role {self.name!r}: its pass {method.__name__!r}"
                check_columns(answers, parts, whose)
            found = merge_columns(answers, parts, batch.batch.cu_seqlens)
            prefix = f"{self.name}/" if self.own else ""
            return {prefix + name: column for name, column in found.items()}

        return self.begin(method, parts).then(merged)


def _sum(answers: list[Any]) -> Stats:
    return sum(answers, Stats())
