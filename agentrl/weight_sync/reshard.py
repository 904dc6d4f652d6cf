"""Resharding: brings each rank the slices of the weights that it wants, from the ranks that hold
them, bucket by bucket over the process group.

Parts come in the served dtype, so that few bytes travel. No rank ever has more than what it wants
and a bucket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.engines.tensor_slice import TensorSlice
from agentrl.training import WeightPart
from agentrl.weight_sync.reshard_plan import Bucket, Move, plan_buckets

# torch 2.13 warns of the name that older ones have.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

BUCKET_BYTES = 64 * 2**20
"""What a rank sends and receives at once, and keeps of its own for that."""


class Resharder:
    """The way from a trainer's layout to what its ranks want, planned once. Collective.

    Args:
        held: this rank's slices, in the order of its parts.
        wanted: what this rank shall get; None for every tensor whole.
        dtype, device: of the parts.

    Attributes:
        buckets: with the moves that this rank takes part in.

    Raises:
        EngineError: no rank holds what one wants.
    """

    def __init__(
        self,
        held: Iterable[TensorSlice],
        wanted: Sequence[TensorSlice] | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        own = {one.name: one for one in held}
        ranks: list[tuple[dict[str, TensorSlice], Sequence[TensorSlice] | None]]
        ranks = [({}, ())] * dist.get_world_size()
        dist.all_gather_object(ranks, (own, wanted))
        holders = [one for one, _ in ranks]
        shapes = {name: one.shape for parts in holders for name, one in parts.items()}
        wholes = [TensorSlice.whole(name, shape) for name, shape in shapes.items()]
        # What two ranks of an engine both hold is wanted once.
        wishes = [
            wholes if wish is None else list(dict.fromkeys(wish)) for _, wish in ranks
        ]
        self.rank = dist.get_rank()
        plan = plan_buckets(holders, wishes, BUCKET_BYTES // dtype.itemsize)
        self.buckets = [
            replace(bucket, moves=self._own(bucket.moves), kept=self._own(bucket.kept))
            for bucket in plan
        ]
        self._held = own
        self._empty = torch.empty(0, dtype=dtype, device=device)
        self._wishes: defaultdict[str, list[TensorSlice]] = defaultdict(list)
        for wish in wishes[self.rank]:
            self._wishes[wish.name].append(wish)

    @torch.no_grad()
    def run(self, parts: Iterable[WeightPart]) -> Iterator[WeightPart]:
        """What this rank wants, as soon as it is complete; every rank runs the iteration to its
        end.

        Args:
            parts: this rank's, as ``held`` told them. One that is wanted as it is is not copied.
        """
        source = iter(parts)
        own: dict[str, Tensor] = {}
        made: dict[TensorSlice, Tensor] = {}
        flat = _Buffers(self._empty)
        for bucket in self.buckets:
            # Reading parts may be collective: all ranks read as far as the bucket needs.
            missing = {name for name in bucket.names if name in self._held} - own.keys()
            while missing:
                missing.discard(_read(source, own))
            self._keep_own(bucket, own, made)
            if bucket.way != "nothing":
                self._travel(bucket, own, made, flat)
            yield from self._complete(bucket, own, made)
        for _ in source:
            pass

    def _complete(
        self, bucket: Bucket, own: dict[str, Tensor], made: dict[TensorSlice, Tensor]
    ) -> Iterator[WeightPart]:
        """What is complete after a bucket. Its frame alone holds the tensors, so that they are
        free before the next bucket is read."""
        for name in bucket.complete:
            whole = own.pop(name, None)
            for wish in self._wishes[name]:
                tensor = made.pop(
                    wish, whole if wish.numel else self._empty.view(wish.size)
                )
                assert tensor is not None, "what is wanted was planned"
                yield WeightPart(name, wish.shape, wish.first, tensor)

    def _keep_own(
        self, bucket: Bucket, own: dict[str, Tensor], made: dict[TensorSlice, Tensor]
    ) -> None:
        """Makes room for what is wanted, and copies what of it lies here; nothing for a part that
        is wanted as it is."""
        for move in (*bucket.moves, *bucket.kept):
            if move.target != self.rank or move.wish == self._held.get(move.wish.name):
                continue
            if move.wish not in made:
                made[move.wish] = self._empty.new_empty(move.wish.size)
            if move.source == self.rank:
                made[move.wish][move.block.slices_of(move.wish.first)] = self._block(
                    move, own
                )

    def _travel(
        self,
        bucket: Bucket,
        own: dict[str, Tensor],
        made: dict[TensorSlice, Tensor],
        flat: _Buffers,
    ) -> None:
        """The collective of a bucket."""
        size = dist.get_world_size()
        gathers = bucket.way == "gather"
        away = [move for move in bucket.moves if gathers or move.source != move.target]
        ranks = range(size)
        to = [
            [m for m in away if m.source == self.rank and m.target == rank]
            for rank in ranks
        ]
        sources = [
            [m for m in away if m.target == self.rank and m.source == rank]
            for rank in ranks
        ]
        sent = to[:1] if gathers else to
        counts = [_numel(moves) for moves in sources]
        if gathers:
            counts = [max(counts)] * size
        outgoing = flat.of("out", counts[0] if gathers else sum(map(_numel, sent)))
        incoming = flat.of("in", sum(counts))
        place = 0
        for move in (move for moves in sent for move in moves):
            _view(outgoing, place, move).copy_(self._block(move, own))
            place += move.block.numel
        if gathers:
            all_gather(incoming, outgoing)
        else:
            dist.all_to_all_single(
                incoming, outgoing, counts, [_numel(moves) for moves in sent]
            )
        for rank, moves in enumerate(sources):
            place = sum(counts[:rank])
            for move in moves:
                if rank != self.rank:
                    target = made[move.wish][move.block.slices_of(move.wish.first)]
                    target.copy_(_view(incoming, place, move))
                place += move.block.numel

    def _own(self, moves: Iterable[Move]) -> tuple[Move, ...]:
        """Those that this rank takes part in."""
        return tuple(move for move in moves if self.rank in (move.source, move.target))

    def _block(self, move: Move, own: dict[str, Tensor]) -> Tensor:
        name = move.block.name
        return own[name][move.block.slices_of(self._held[name].first)]


def _read(source: Iterator[WeightPart], own: dict[str, Tensor]) -> str:
    """Takes a part, and returns its name; no frame holds its tensor longer than ``own``."""
    part = next(source)
    own[part.name] = part.tensor
    return part.name


class _Buffers:
    """Flat memory of a bucket, of one dtype and device, used again for the next."""

    def __init__(self, empty: Tensor) -> None:
        self._empty = empty
        self._kept = {"out": empty, "in": empty}

    def of(self, name: str, size: int) -> Tensor:
        """So many elements."""
        if self._kept[name].numel() < size:
            # What there was is freed before more is taken.
            self._kept[name] = self._empty
            self._kept[name] = self._empty.new_empty(size)
        return self._kept[name][:size]


def _numel(moves: Sequence[Move]) -> int:
    return sum(move.block.numel for move in moves)


def _view(flat: Tensor, place: int, move: Move) -> Tensor:
    return flat[place : place + move.block.numel].view(move.block.size)
