"""Columns: what is stored of a trajectory, by name, and its arrays, flat over its tokens.

Axis: N, all tokens that the turns add, in turn order, context before completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agentrl.errors import StoreError
from agentrl.types import Trajectory
from agentrl.types.arrays import F32, I32

FORMAT = 2
"""The version of shards: those of another one are not read."""

FORMAT_KEY = b"agentrl.format"
"""Where a shard's metadata has its version."""

Row = dict[str, Any]
"""The columns of a trajectory but for its arrays, by name."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        type: in a shard.
        listed: whether a list of trajectories shows it (``TrajectorySummary``).
        secret: whether its text may quote secrets of the environment, which are masked.
        nullable: whether a value may be null.
    """

    type: pa.DataType
    listed: bool = True
    secret: bool = False
    nullable: bool = False


def _text(*, secret: bool = True) -> Column:
    return Column(pa.string(), listed=False, secret=secret)


COLUMNS: Mapping[str, Column] = {
    "id": Column(pa.string()),
    "group_index": Column(pa.int64()),
    "rollout_index": Column(pa.int32()),
    "attempt": Column(pa.int32()),
    "group_size": Column(pa.int32()),
    "label": Column(pa.string()),
    "purpose": Column(pa.string()),
    "stage": Column(pa.string()),
    "env": Column(pa.string()),
    "agents": Column(pa.list_(pa.string())),
    "step": Column(pa.int64()),
    "task_id": Column(pa.string()),
    "data_source": Column(pa.string()),
    "status": Column(pa.string()),
    "status_reason": Column(pa.string()),
    "status_detail": _text(),
    "reward": Column(pa.float64(), nullable=True),
    "rewards": Column(pa.string()),
    "reasons": _text(),
    "num_turns": Column(pa.int32()),
    "num_calls": Column(pa.int32(), nullable=True),
    "num_tool_errors": Column(pa.int32(), nullable=True),
    "tools": Column(pa.list_(pa.string())),
    "errors": Column(pa.string(), nullable=True),
    "finish_reason": Column(pa.string(), nullable=True),
    "info_numbers": Column(pa.string(), nullable=True),
    "num_policy_tokens": Column(pa.int64()),
    "num_tokens": Column(pa.int64()),
    "policy_version_min": Column(pa.int64(), nullable=True),
    "policy_version_max": Column(pa.int64(), nullable=True),
    "started_at": Column(pa.float64()),
    "ended_at": Column(pa.float64()),
    "recorded_at": Column(pa.float64()),
    "prompt": _text(),
    "final_text": _text(),
    "turns": _text(),
    "task": _text(),
    "timings": _text(secret=False),
    "info": _text(),
    # It is a hash; what it names is masked.
    "first_state": _text(secret=False),
    "last_observed": _text(),
    "last_info": _text(),
}
"""Every column but the arrays, in the order of a shard."""

ADDED = ("errors", "finish_reason", "info_numbers")
"""Columns that came later: they are null where a file of this format lacks them."""

ARRAYS: Mapping[str, Column] = {
    "token_ids": Column(pa.list_(pa.int32()), listed=False),
    "kinds": Column(pa.list_(pa.int8()), listed=False),
    "turn_index": Column(pa.list_(pa.int32()), listed=False),
    "logprobs": Column(pa.list_(pa.float32()), listed=False),
    "policy_versions": Column(pa.list_(pa.int32()), listed=False),
}
"""Columns with an entry a token (``TokenArrays``)."""

SIDE = "side"
"""The column of the side arrays' bytes."""

SUMMARY_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.listed)
"""What a list of trajectories shows; reading them touches no text and no tokens."""

SECRET_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.secret)
"""Those whose text is masked before it is stored."""

SCHEMA = pa.schema(
    [
        *(
            pa.field(name, column.type, nullable=column.nullable)
            for name, column in {**COLUMNS, **ARRAYS}.items()
        ),
        pa.field(SIDE, pa.binary(), nullable=False),
    ],
    metadata={FORMAT_KEY: str(FORMAT).encode()},
)
"""Fixed: what varies from row to row is a JSON string, so that shards of any runs load together."""


def chosen(row: Mapping[str, Any], names: Iterable[str] = COLUMNS) -> Row:
    """Some columns of a row.

    Args:
        row: as stored; what else is in it is left out.
        names: the columns to give.

    Raises:
        StoreError: it lacks one that is not in ``ADDED``.
    """
    try:
        return {name: row.get(name) if name in ADDED else row[name] for name in names}
    except KeyError as error:
        raise StoreError(f"trajectory {row.get('id')!r} has no column {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class TokenArrays:
    """The arrays of a trajectory.

    Args:
        token_ids: ``[N]`` int32.
        logprobs: ``[N]`` float32 in nats, NaN where no policy sampled the token.
        policy_versions: ``[N]`` int32, -1 where no policy sampled the token.
        turn_index: ``[N]`` int32, the turn that added the token.
        kinds: ``[N]`` int8, a ``SegmentKind`` each.
        side: bytes of all side arrays, in the order in which the segments in ``turns`` describe
            them.
    """

    token_ids: I32
    logprobs: F32
    policy_versions: I32
    turn_index: I32
    kinds: npt.NDArray[np.int8]
    side: bytes

    # Four words of 4 bytes each, and one byte of kind.
    BYTES_A_TOKEN = 17

    def pack(self) -> bytes:
        """All arrays end to end."""
        arrays = (
            self.token_ids,
            self.logprobs,
            self.policy_versions,
            self.turn_index,
            self.kinds,
        )
        return b"".join([*(array.tobytes() for array in arrays), self.side])

    @classmethod
    def unpack(cls, data: bytes, num_tokens: int) -> TokenArrays:
        """The arrays of ``pack``.

        Raises:
            StoreError: ``data`` is shorter than ``num_tokens`` need.
        """
        if len(data) < num_tokens * cls.BYTES_A_TOKEN:
            raise StoreError(
                f"{num_tokens} tokens need {num_tokens * cls.BYTES_A_TOKEN} bytes, got {len(data)}"
            )
        words = np.frombuffer(data, "<i4", 4 * num_tokens).reshape(4, num_tokens)
        kinds = np.frombuffer(data, np.int8, num_tokens, 16 * num_tokens)
        return cls(
            words[0],
            words[1].view("<f4"),
            words[2],
            words[3],
            kinds,
            data[num_tokens * cls.BYTES_A_TOKEN :],
        )


EncodedRow = tuple[Row, TokenArrays]
"""A trajectory as it is stored: its columns, and its arrays by token."""


def token_arrays(trajectory: Trajectory) -> TokenArrays:
    """The arrays of a trajectory, its segments end to end."""
    placed = [
        (turn.index, segment) for turn in trajectory.turns for segment in turn.segments
    ]
    size = sum(segment.token_ids.size for _, segment in placed)
    arrays = TokenArrays(
        token_ids=np.empty(size, "<i4"),
        logprobs=np.full(size, np.nan, "<f4"),
        policy_versions=np.full(size, -1, "<i4"),
        turn_index=np.empty(size, "<i4"),
        kinds=np.empty(size, np.int8),
        side=b"".join(array.tobytes() for _, s in placed for array in s.side.values()),
    )
    start = 0
    for turn, segment in placed:
        own = slice(start, start + segment.token_ids.size)
        arrays.token_ids[own] = segment.token_ids
        arrays.turn_index[own] = turn
        arrays.kinds[own] = segment.kind
        if segment.logprobs is not None:
            arrays.logprobs[own] = segment.logprobs
        if segment.policy_version is not None:
            arrays.policy_versions[own] = segment.policy_version
        start = own.stop
    return arrays
