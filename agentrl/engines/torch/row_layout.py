"""In which order rows lie, and how far each run of them attends: what decode does not compute costs
nothing.

Rows decode as one front part of the cache, and a product over them is as wide as its longest row.
So idle rows are moved behind the running ones, and long rows before short ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Blocks = tuple[tuple[int, int], ...]
"""``(end, num_keys)`` of consecutive runs of rows: the first run starts at row 0, each other where
the last ended.
"""

_ALIGN = 16
_IDLE_SHARE = 0.25
_LONG = 1.25
_LONG_KEYS = 48
# keys whose attention takes as long as the operations of one more block
_BLOCK_COST = 1500


def exchanges(lengths: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs of rows to exchange, one after the other, so that running rows come first, much longer
    ones before all.

    An exchange copies both rows' KV, which pays off within a few steps, so rows that differ little
    stay.

    Args:
        lengths: keys of each row, 0 for an idle one.
    """
    order = lengths.copy()
    running = int(np.count_nonzero(order))
    pairs = []

    def exchange(places: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        for one, other in zip(places.tolist(), rows.tolist(), strict=True):
            pairs.append((one, other))
            order[[one, other]] = order[[other, one]]

    last = int(np.flatnonzero(order)[-1]) + 1 if running else 0
    if last - running > max(_IDLE_SHARE * last, 1):
        holes = np.flatnonzero(order[:running] == 0)
        tail = running + np.flatnonzero(order[running:])
        exchange(holes, tail[np.argsort(-order[tail], kind="stable")])
    live = order[order > 0]
    if live.size:
        long = order > _LONG * float(live.mean()) + _LONG_KEYS
        front = int(np.count_nonzero(long))
        exchange(np.flatnonzero(~long[:front]), front + np.flatnonzero(long[front:]))
    return pairs


def attention_blocks(lengths: npt.NDArray[np.int64], max_keys: int) -> Blocks:
    """One run of rows, or two where the rows behind are so much shorter that a second one is worth
    its operations.

    Args:
        lengths: keys of each row of the span, 0 for an idle one; any order is right, long ones
            first is fast.
        max_keys: of the cache.
    """
    rows = lengths.size
    # the longest from each row on
    behind = np.maximum.accumulate(lengths[::-1])[::-1]
    keys = np.minimum(np.maximum(-(-behind // _ALIGN), 1) * _ALIGN, max_keys)
    ends = np.arange(rows)
    cost = ends * keys[0] + (rows - ends) * keys
    split = int(cost.argmin())
    if cost[0] - cost[split] <= _BLOCK_COST:
        return ((rows, int(keys[0])),)
    return ((split, int(keys[0])), (rows, int(keys[split])))
