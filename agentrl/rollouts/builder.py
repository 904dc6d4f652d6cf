"""A trajectory while it is being made: the sequence so far, and the turns that made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.rollouts.rollout_spec import EpisodeKey
from agentrl.types import (
    Completion,
    MediaSpan,
    Message,
    ParsedMessage,
    SamplingParams,
    Segment,
    Status,
    StepResult,
    Task,
    Trajectory,
    Turn,
    concat_ids,
    concat_media,
    images_in,
)

__all__ = ["SequenceState", "TrajectoryBuilder"]

_as_json = json.JSONEncoder(sort_keys=True, default=str).encode


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """Where a sequence can be gone on from: after a turn, or at its very beginning.

    Args:
        session_id: the KV session of the sequence.
        messages: the whole conversation so far, the last turn's message included.
        digest: tells ``messages`` from any others.
        parent: the last turn; None where the next one begins a sequence.
        ids: ``[n]`` ids of the sequence so far; empty where nothing can extend it.
        completion: ``[n]`` ids of the last turn's completion; empty also where the model made no token.
        prompt_tokens: tokens of the sequence's opening prompt.
        media: where images stand in ``ids``.
        policy_version: the highest that made any of ``ids``: versions never fall along a sequence.
    """

    session_id: str
    messages: tuple[Message, ...] = ()
    digest: bytes = b""
    parent: int | None = None
    ids: npt.NDArray[np.int32] = field(default_factory=lambda: concat_ids(()))
    completion: npt.NDArray[np.int32] = field(default_factory=lambda: concat_ids(()))
    prompt_tokens: int = 0
    media: tuple[MediaSpan, ...] = ()
    policy_version: int = 0

    def beginning(self, messages: tuple[Message, ...]) -> SequenceState:
        """The same session at the beginning of another sequence, whose conversation is ``messages``."""
        return SequenceState(self.session_id, messages, _digest(b"", messages))

    def after(self, observed: tuple[Message, ...]) -> SequenceState:
        """The same sequence once more has been said."""
        return SequenceState(
            session_id=self.session_id,
            messages=(*self.messages, *observed),
            digest=_digest(self.digest, observed),
            parent=self.parent,
            ids=self.ids,
            completion=self.completion,
            prompt_tokens=self.prompt_tokens,
            media=self.media,
            policy_version=self.policy_version,
        )


@dataclass(slots=True)
class TrajectoryBuilder:
    """Grows by one turn at a time, on any of its sequences; ``finish`` freezes it.

    Attributes:
        messages: the conversation that was gone on with last.
        restarts: sequences that were begun after the first one.
        fault: what an environment or a program did wrong, alike in each attempt that does the same.
        resumed_turns: turns that a checkpoint brought.
    """

    key: EpisodeKey
    task: Task
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    restarts: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    resumed_turns: int = 0

    def add_turn(
        self,
        head: SequenceState,
        *,
        observed: tuple[Message, ...],
        context: tuple[Segment, ...],
        sent: npt.NDArray[np.int32],
        completion: Completion,
        sampled: npt.NDArray[np.int32],
        parsed: ParsedMessage,
        text: str,
        agent: str,
        sampling: SamplingParams,
    ) -> SequenceState:
        """Records what the model was given and what it made; what came of it is added by ``add_step``.

        Args:
            head: where the turn goes on from; its messages are the whole conversation that the model was given.
            observed: those of them that are new.
            context: the segments before the completion.
            sent: ``[n]`` the whole sequence that the engine was given, ``context`` at its end.
            completion: what the engine made.
            sampled: ``[m]`` its ids.
            parsed, text: the completion as a message and as text.
            agent: whose turn it is.
            sampling: how it was drawn.

        Returns:
            Where the sequence stands after the turn.
        """
        media = concat_media(context)
        images = {image.sha256: image for image in images_in(head.messages)} if media else {}
        turn = Turn(
            index=len(self.turns),
            parent=head.parent,
            context=context,
            completion=completion.segments,
            text=text,
            message=parsed.message,
            observed=observed,
            images=tuple(images[span.sha256] for span in media),
            finish_reason=completion.finish_reason,
            sampling=sampling,
            state_key=head.digest.hex()[:16],
            agent=agent,
            stale_kv=completion.stale_kv,
            cached_tokens=completion.cached_tokens,
            timings=dict(completion.timings),
        )
        self.restarts += head.parent is None and bool(self.turns)
        self.turns.append(turn)
        self.messages = (*head.messages, parsed.message)
        versions = [
            segment.policy_version
            for segment in completion.segments
            if segment.policy_version is not None
        ]
        return SequenceState(
            session_id=head.session_id,
            messages=self.messages,
            digest=_digest(head.digest, (parsed.message,)),
            parent=turn.index,
            ids=concat_ids(completion.segments, after=sent),
            completion=sampled,
            prompt_tokens=int(sent.size) if head.parent is None else head.prompt_tokens,
            media=(*head.media, *concat_media(context, int(head.ids.size))),
            policy_version=max([head.policy_version, *versions]),
        )

    def add_step(self, result: StepResult, seconds: float) -> None:
        """What the last turn caused."""
        last = self.turns[-1]
        self.turns[-1] = replace(
            last,
            calls=result.calls,
            rewards={"step": float(result.reward)} if result.reward else {},
            timings={**last.timings, "step_s": seconds},
            info=dict(result.info),
        )

    def count(self, stage: str, seconds: float) -> None:
        """Adds to the episode's seconds of a stage."""
        self.timings[stage] = self.timings.get(stage, 0.0) + seconds

    @property
    def step_reward(self) -> float:
        return sum(sum(turn.rewards.values()) for turn in self.turns)

    def finish(
        self,
        status: Status,
        *,
        rewards: Mapping[str, float] | None = None,
        reward: float | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """The trajectory as it stands."""
        counted = {"restarts": self.restarts, "resumed_turns": self.resumed_turns}
        extra = {name: count for name, count in counted.items() if count}
        return Trajectory(
            task=self.task,
            group_index=self.key.group_index,
            rollout_index=self.key.rollout_index,
            attempt=self.key.attempt,
            purpose=self.key.purpose,
            turns=tuple(self.turns),
            status=status,
            rewards=dict(rewards or {}),
            reward=reward,
            label=self.key.label,
            timings=dict(self.timings),
            info={**extra, **(info or {})},
        )


def _digest(digest: bytes, messages: Sequence[Message]) -> bytes:
    """That of a history with ``messages`` at its end, however they were put there."""
    for message in messages:
        digest = hashlib.sha256(digest + _as_json(message).encode()).digest()
    return digest
