"""Reshard plan: which blocks of which tensors go from which rank to which, in buckets of bounded
size. Nothing is moved here.

A rank receives what it wants and does not hold, and nothing else. Of several holders one sends that
is in the smallest group of 2, 4, 8 ... neighbours with it: a node or a replica is such a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from agentrl.engines.tensor_slice import TensorSlice
from agentrl.errors import EngineError

Way: TypeAlias = Literal["nothing", "gather", "exchange"]
"""How blocks travel: not at all, all of them to every rank, or some from each rank to each."""

_MOST_PADDING = 1.25
"""A collective that gathers gives each rank equally much room: so much more than the tensor needs
is borne, and beyond it the ranks exchange."""


class Move(NamedTuple):
    """A block that a rank holds and a rank wants, maybe the same.

    Args:
        source, target: ranks.
        wish: the wanted slice that it is a part of.
        block: what moves.
    """

    source: int
    target: int
    wish: TensorSlice
    block: TensorSlice


@dataclass(frozen=True, slots=True)
class Bucket:
    """Moves of one collective.

    Args:
        way: of its collective.
        names: tensors that it has blocks of.
        complete: those that are complete on all their targets after it.
        moves: of tensors that travel, in an order that all ranks share.
        kept: of tensors that every rank holds which wants them.
    """

    way: Way
    names: tuple[str, ...]
    complete: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    kept: tuple[Move, ...] = ()


def plan_buckets(
    held: Sequence[Mapping[str, TensorSlice]],
    wanted: Sequence[Sequence[TensorSlice]],
    bucket_size: int,
) -> tuple[Bucket, ...]:
    """The plan, equal on every rank.

    Args:
        held: what each rank has of each tensor, in the order in which it can be read.
        wanted: what each rank shall get.
        bucket_size: elements that a rank may send and receive at once, and hold for it; a larger
            tensor goes in several buckets by itself.

    Raises:
        EngineError: nobody holds what a rank wants.
    """
    wishes: defaultdict[str, list[tuple[int, TensorSlice]]] = defaultdict(list)
    for rank, own in enumerate(wanted):
        for wish in own:
            if wish.numel:
                wishes[wish.name].append((rank, wish))
    order = _shared_order(held)
    if unknown := sorted(wishes.keys() - set(order)):
        raise EngineError(
            f"the engine wants {unknown[0]!r}, which the trainer has not; both must be of one "
            "model: look at model.path",
            retryable=False,
        )
    filled = _Buckets(len(held), bucket_size)
    for name in order:
        holders = {rank: own[name] for rank, own in enumerate(held) if name in own}
        moves = [
            move for rank, wish in wishes[name] for move in _moves_of(holders, rank, wish)
        ]
        filled.add(name, moves, {rank: own.numel for rank, own in holders.items()})
    return filled.end()


def _shared_order(held: Sequence[Mapping[str, TensorSlice]]) -> list[str]:
    """All names, so that each rank meets its own in the order in which it reads them: names that
    every rank has come in one order, and between two of them stand those of single ranks."""
    common = set.intersection(*(set(own) for own in held))
    places: dict[str, tuple[int, int, int]] = {}
    for rank, own in enumerate(held):
        number = 0
        for place, name in enumerate(own):
            if name in common:
                number += 1
                places[name] = (number, -1, 0)
            else:
                places.setdefault(name, (number, rank, place))
    return sorted(places, key=places.__getitem__)


def _moves_of(
    holders: Mapping[int, TensorSlice], target: int, wish: TensorSlice
) -> list[Move]:
    """What makes up a wish, each number of it once."""
    moves = []
    left = [wish]
    for source in sorted(holders, key=lambda rank: rank ^ target):
        rest = []
        for block in left:
            shared = block.overlap(holders[source])
            if shared is None:
                rest.append(block)
            else:
                moves.append(Move(source, target, wish, shared))
                rest += block.without(shared)
        left = rest
    if left:
        raise EngineError(
            f"no rank holds {left[0].size} at {left[0].first} of {wish.name!r}, which is "
            f"{wish.shape}; both sides must be of one model: look at model.path",
            retryable=False,
        )
    return moves


def _way_of(moves: Sequence[Move], num_ranks: int) -> Way:
    if all(move.source == move.target for move in moves):
        return "nothing"
    by_target: defaultdict[int, list[tuple[int, TensorSlice]]] = defaultdict(list)
    sent = [0] * num_ranks
    for move in sorted(moves, key=lambda move: move.source):
        by_target[move.target].append((move.source, move.block))
        sent[move.source] += move.block.numel
    all_alike = (
        len(by_target) == num_ranks and len(set(map(tuple, by_target.values()))) == 1
    )
    is_even = max(sent) * num_ranks <= _MOST_PADDING * sum(sent)
    return "gather" if all_alike and is_even else "exchange"


def _cost(way: Way, moves: Sequence[Move], num_ranks: int) -> int:
    """The most elements that a rank sends and receives."""
    if way == "nothing":
        return 0
    total, sent = [0] * num_ranks, [0] * num_ranks
    for move in moves:
        sent[move.source] += move.block.numel
        if move.source != move.target:
            total[move.source] += move.block.numel
            total[move.target] += move.block.numel
    # Each rank sends as much as the largest, and has room for that of all; gloo has it once more.
    return max(total) if way == "exchange" else max(sent) // num_ranks * (2 * num_ranks + 1)


def _pieces(way: Way, moves: list[Move], num_ranks: int, size: int) -> list[list[Move]]:
    """The moves of a tensor, its blocks halved until each piece costs at most ``size``."""
    is_single = all(move.block.numel == 1 for move in moves)
    if is_single or _cost(way, moves, num_ranks) <= size:
        return [moves]
    halves: tuple[list[Move], list[Move]] = [], []
    for move in moves:
        # The first that can be divided: rows lie together in memory.
        dim = next((dim for dim, own in enumerate(move.block.size) if own > 1), 0)
        middle, end = move.block.size[dim] // 2, move.block.size[dim]
        for half, ends in zip(halves, ((0, middle), (middle, end)), strict=True):
            block = move.block.part(dim, *ends)
            if block.numel:
                half.append(move._replace(block=block))
    return [piece for half in halves for piece in _pieces(way, half, num_ranks, size)]


_EMPTY = Bucket("nothing", (), ())


class _Buckets:
    """Fills buckets with tensors in order."""

    def __init__(self, num_ranks: int, size: int) -> None:
        self._num_ranks = num_ranks
        self._size = size
        self._done: list[Bucket] = []
        self._open = _EMPTY
        self._cost = 0
        self._held = [0] * num_ranks

    def add(self, name: str, moves: list[Move], held: Mapping[int, int]) -> None:
        """A tensor.

        Args:
            name: of it.
            moves: all that it takes part in.
            held: elements that each rank keeps for it.
        """
        way = _way_of(moves, self._num_ranks)
        cost = _cost(way, moves, self._num_ranks)
        most_held = max(self._held[rank] + own for rank, own in held.items())
        other = "nothing" not in (way, self._open.way) and way != self._open.way
        if other or self._cost + cost + most_held > self._size:
            self._close()
        if cost > self._size:
            # What a rank keeps of a large tensor leaves less room, and some there must be.
            room = max(self._size - max(held.values()), self._size // 4)
            pieces = _pieces(way, moves, self._num_ranks, room)
            self._done += [Bucket(way, (name,), (), tuple(piece)) for piece in pieces]
            self._done[-1] = replace(self._done[-1], complete=(name,))
            return
        before = self._open
        names = (*before.names, name)
        if way == "nothing":
            self._open = replace(
                before, names=names, complete=names, kept=(*before.kept, *moves)
            )
        else:
            self._open = Bucket(way, names, names, (*before.moves, *moves), before.kept)
        self._cost += cost
        for rank, own in held.items():
            self._held[rank] += own

    def _close(self) -> None:
        if self._open.names:
            self._done.append(self._open)
        self._open = _EMPTY
        self._cost = 0
        self._held = [0] * self._num_ranks

    def end(self) -> tuple[Bucket, ...]:
        """All of them."""
        self._close()
        return tuple(self._done)
