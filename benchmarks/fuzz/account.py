"""Token records: an independent record of an engine's inputs and outputs, and its comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts import make_batch
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    SegmentKind,
    Trajectory,
    TrajectoryGroup,
    concat_ids,
)

__all__ = ["Bookkeeper", "mask_errors", "token_mismatches"]

Ids = npt.NDArray[np.int32]


@dataclass
class Bookkeeper:
    """An engine in front of the engine: it writes down the ids of each request, given and made.

    Args:
        engine: answers.
        given, made: ids by request.
        completions: as they came.
    """

    engine: ScriptedEngine
    given: dict[str, Ids] = field(default_factory=dict)
    made: dict[str, Ids] = field(default_factory=dict)
    completions: list[Completion] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Completion:
        """The engine's own answer."""
        completion = await self.engine.generate(request)
        self.given[request.request_id] = request.token_ids.copy()
        self.made[request.request_id] = concat_ids(completion.segments).copy()
        self.completions.append(completion)
        return completion

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``."""
        await self.engine.abort(request_ids)

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``."""
        await self.engine.release(session_id)

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``."""
        return self.engine.info()


def token_mismatches(
    trajectory: Trajectory, session_id: str, books: Bookkeeper
) -> list[str]:
    """Turns whose sequence is not what the engine was given and made."""
    found = []
    for turn in trajectory.turns:
        request = f"{session_id}/{turn.index}"
        account = np.concatenate([books.given[request], books.made[request]])
        if not np.array_equal(trajectory.sequence(turn.index), account):
            found.append(
                f"turn {turn.index}: its sequence is not what the engine was given and made"
            )
        if not np.array_equal(concat_ids(turn.completion), books.made[request]):
            found.append(f"turn {turn.index}: its completion is not what the engine made")
    return found


def mask_errors(trajectory: Trajectory, session_id: str, books: Bookkeeper) -> list[str]:
    """What a batch of the trajectory trains, against what the engine made: each made token exactly
    once, none else.
    """
    batch = make_batch(
        [TrajectoryGroup(trajectory.group_index, trajectory.task, (trajectory,))],
        credit=np.ones(1, dtype=np.float32),
    )
    trained: dict[int, int] = {}
    found = []
    for sample, (start, end) in enumerate(
        zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)
    ):
        leaf = trajectory.samples()[sample]
        position = int(start)
        for index in leaf.turns:
            request = f"{session_id}/{index}"
            made = books.made[request]
            length = len(books.given[request]) + len(made) - (position - int(start))
            context = position + length - len(made)
            stop = position + length
            if (
                batch.loss_mask[position:context].any()
                or batch.rollout_logprobs[position:context].any()
            ):
                found.append(
                    f"turn {index}: a token that the model did not make is trained"
                )
            if not np.array_equal(batch.token_ids[context:stop], made):
                found.append(
                    f"turn {index}: the batch has other tokens than the model made"
                )
            if (batch.kind[context:stop] != SegmentKind.POLICY).any() or (
                batch.rollout_logprobs[context:stop] != -1
            ).any():
                found.append(f"turn {index}: a made token without its kind and logprob")
            trained[index] = trained.get(index, 0) + int(
                batch.loss_mask[context:stop].sum()
            )
            position = stop
        if position != int(end):
            found.append(f"sample {sample}: {int(end) - position} tokens too many")
    for turn in trajectory.turns:
        size = len(books.made[f"{session_id}/{turn.index}"])
        if trained.get(turn.index, 0) != size:
            found.append(
                f"turn {turn.index}: {trained.get(turn.index, 0)} of its {size} tokens are trained"
            )
    return found
