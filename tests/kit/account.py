"""An account of tokens: what an engine made, held against what was trained of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentrl.controller.stage import passes as controller_stage
from agentrl.engines.torch.engine import TorchEngine
from agentrl.types import (
    Batch,
    Completion,
    GenerateRequest,
    Trajectory,
    TrajectoryGroup,
    concat_ids,
)


class Account:
    """What the engine made, by its own requests, and what was trained of it; both are only
    watched.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self.batches: list[tuple[Sequence[TrajectoryGroup], Batch]] = []
        generate, make_batch = TorchEngine.generate, controller_stage.make_batch

        async def watched(engine: TorchEngine, request: GenerateRequest) -> Completion:
            completion = await generate(engine, request)
            given = tuple(request.token_ids.tolist())
            self.made.setdefault(given, []).append(
                tuple(concat_ids(completion.segments).tolist())
            )
            return completion

        def kept(groups: Sequence[TrajectoryGroup], **settings: Any) -> Batch:
            batch = make_batch(groups, **settings)
            self.batches.append((groups, batch))
            return batch

        monkeypatch.setattr(TorchEngine, "generate", watched)
        monkeypatch.setattr(controller_stage, "make_batch", kept)

    def checked(self) -> list[list[Trajectory]]:
        """The trajectories of each batch of rollouts, every token of which was checked: it is
        trained as the engine made it for that very prompt, once, and no other is.
        """
        finished = [
            ([t for group in groups for t in group.finished], batch)
            for groups, batch in self.batches
        ]
        played = [one for one in finished if any(t.policy_versions for t in one[0])]
        for trajectories, batch in played:
            sampled = Counter[tuple[int, ...]]()
            for trajectory in trajectories:
                assert trajectory.status.finished
                for turn in trajectory.turns:
                    completion = tuple(concat_ids(turn.completion).tolist())
                    given = trajectory.sequence(turn.index)[: -len(completion)]
                    # by the engine's own account
                    assert completion in self.made[tuple(given.tolist())]
                    sampled[completion] += 1
            rows = [
                (batch.turn_index == row) & (batch.loss_mask > 0)
                for row in range(len(batch.turn_trajectory))
            ]
            assert Counter(tuple(batch.token_ids[row].tolist()) for row in rows) == sampled
            assert int(np.count_nonzero(batch.loss_mask)) == sum(
                t.num_policy_tokens for t in trajectories
            )
        return [trajectories for trajectories, _ in played]


def extended(batches: Sequence[Sequence[Trajectory]]) -> int:
    """The turns that went on with a sequence, since their agent brought an answer back."""
    return sum(turn.parent is not None for row in batches for t in row for turn in t.turns)
