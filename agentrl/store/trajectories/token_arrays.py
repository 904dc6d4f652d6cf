"""Token arrays: the arrays of a trajectory, flat over its tokens.

Axis: N, all tokens that the turns add, in turn order, context before completion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.errors import StoreError
from agentrl.types import Trajectory


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

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    policy_versions: npt.NDArray[np.int32]
    turn_index: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int8]
    side: bytes

    BYTES_A_TOKEN = 17

    def pack(self) -> bytes:
        """All arrays end to end."""
        arrays = (self.token_ids, self.logprobs, self.policy_versions, self.turn_index, self.kinds)
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


def token_arrays(trajectory: Trajectory) -> TokenArrays:
    """The arrays of a trajectory, its segments end to end."""
    segments = [segment for turn in trajectory.turns for segment in turn.segments]
    lengths = [segment.token_ids.size for segment in segments]
    none = np.zeros(0)  # of a trajectory without segments
    token_ids = np.concatenate([none.astype(np.int32), *(s.token_ids for s in segments)])
    logprobs = [
        np.full(length, np.nan) if segment.logprobs is None else segment.logprobs
        for segment, length in zip(segments, lengths, strict=True)
    ]
    versions = [
        -1 if segment.policy_version is None else segment.policy_version for segment in segments
    ]
    turns = [turn.index for turn in trajectory.turns for _ in turn.segments]
    return TokenArrays(
        token_ids=token_ids.astype("<i4", copy=False),
        logprobs=np.concatenate([none, *logprobs]).astype("<f4"),
        policy_versions=np.repeat(np.array(versions, dtype="<i4"), lengths),
        turn_index=np.repeat(np.array(turns, dtype="<i4"), lengths),
        kinds=np.repeat(np.array([int(s.kind) for s in segments], dtype=np.int8), lengths),
        side=b"".join(array.tobytes() for segment in segments for array in segment.side.values()),
    )
