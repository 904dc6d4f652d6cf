"""Mesh shape: places ranks on (dp, pp, sp, tp) and says which rank gets which shard of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import TrainingError
from agentrl.training.parallel.layout_rules import check_ranks


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Ranks along each dimension; ``rank = ((d · pp + p) · sp + s) · tp + t``, so that
    tensor-parallel ranks are neighbours.

    Args:
        dp: data coordinates; each has a shard of a batch.
        tp: ranks that hold one layer together.
        sp: ranks that hold one sequence together.
        pp: stages that the layers are divided into; a shard goes to all of them.
    """

    dp: int = 1
    tp: int = 1
    sp: int = 1
    pp: int = 1

    @classmethod
    def of(cls, num_ranks: int, *, tp: int, sp: int, pp: int = 1) -> MeshShape:
        """The mesh of so many ranks.

        Raises:
            ConfigError: the other dimensions' product does not divide them.
        """
        check_ranks(num_ranks, tp, sp, pp)
        return cls(num_ranks // (tp * sp * pp), tp, sp, pp)

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.dp * self.ranks_a_shard

    @property
    def ranks_a_shard(self) -> int:
        """Ranks of a data coordinate."""
        return self.tp * self.sp * self.pp

    def arguments(
        self, shards: Sequence[Any] | None, args: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        """What each rank is called with: its coordinate's shard first, where there are shards, then
        ``args``.

        Raises:
            TrainingError: there is not one shard for each data coordinate.
        """
        if shards is None:
            return [args] * self.size
        if len(shards) != self.dp:
            raise TrainingError(
                f"a call over {self} needs one shard for each of its {self.dp} data coordinates, "
                f"got {len(shards)}; cut the batch for dp={self.dp}"
            )
        return [(shards[rank // self.ranks_a_shard], *args) for rank in range(self.size)]

    def answers(self, by_rank: Sequence[Any], *, sharded: bool) -> list[Any]:
        """The answers of a call: with shards those of the ranks at tp = sp = 0 of the last stage,
        by coordinate, otherwise all by rank."""
        first = self.ranks_a_shard - self.tp * self.sp
        return list(by_rank[first :: self.ranks_a_shard] if sharded else by_rank)
