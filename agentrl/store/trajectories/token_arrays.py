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
    placed = [(turn.index, segment) for turn in trajectory.turns for segment in turn.segments]
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
