"""Trajectories: episodes as a code environment leaves them, of a given number of tokens."""

from __future__ import annotations

import numpy as np

from agentrl.store import Annotation
from agentrl.types import (
    CallRecord,
    Message,
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

__all__ = ["VOCABULARY", "Episodes"]

VOCABULARY = 150_000
_WORDS = 20_000
_CHARACTERS_A_TOKEN = 4
_VARYING = ("old_logprobs", "ratio", "token_loss")
_CONSTANT = ("advantages", "loss_weight")
_CATEGORIES = ("loss_reason", "clipped")


class Episodes:
    """Makes trajectories of the same shape: a prompt, then turns that think, call a tool and read
    its output. Half of the tokens are sampled.

    Args:
        num_tokens: of each trajectory.
        seed: of ids, logprobs and words.
        turns: of each trajectory.
    """

    def __init__(self, num_tokens: int, seed: int, *, turns: int = 4) -> None:
        self._random = np.random.default_rng(seed)
        self._turns = turns
        self._policy = num_tokens // (2 * turns)
        self._observed = (num_tokens - turns * self._policy) // turns
        # words of a Zipf-like frequency, so that text compresses as text does
        lengths = self._random.integers(1, 9, _WORDS)
        letters = (
            self._random.integers(97, 123, int(lengths.sum())).astype(np.uint8).tobytes()
        )
        ends = np.cumsum(lengths)
        self._words = [
            letters[end - size : end].decode()
            for end, size in zip(ends, lengths, strict=True)
        ]

    def trajectory(self, group_index: int, rollout_index: int) -> Trajectory:
        """The trajectory of a place in the run's order; each call gives another text."""
        question: Message = {"role": "user", "content": self._text(self._observed)}
        observed: tuple[Message, ...] = (question,)
        turns = []
        for index in range(self._turns):
            text = self._text(self._policy)
            call = ToolCall(f"call_{index}_0", "python", {"code": text[: len(text) // 2]})
            output = self._text(self._observed)
            result = ToolResult(
                call.id, "python", output, latency_s=0.1, metrics={"cpu_s": 0.1}
            )
            turns.append(
                Turn(
                    index,
                    index - 1 if index else None,
                    (
                        self._segment(
                            SegmentKind.OBSERVATION if index else SegmentKind.PROMPT
                        ),
                    ),
                    (self._sampled(),),
                    text,
                    {"role": "assistant", "content": text, "tool_calls": [call.openai()]},
                    observed=observed,
                    calls=(CallRecord(call, None, result),),
                    sampling=SamplingParams(1024),
                    timings={"queue_s": 0.01, "generate_s": 1.5, "step_s": 0.1},
                )
            )
            observed = (result.message(),)
        return Trajectory(
            task=Task(f"task-{group_index}", (question,), 42, "code"),
            group_index=group_index,
            rollout_index=rollout_index,
            attempt=0,
            purpose="train",
            turns=tuple(turns),
            status=Status("terminated"),
            rewards={"correct": 1.0},
            reward=1.0,
            stage="rl",
            env="ToolEnv",
            group_size=8,
            started_at=1.8e9,
            ended_at=1.8e9 + 8.5,
        )

    def annotation(self, trajectory: Trajectory, step: int) -> Annotation:
        """What a step learns of a trajectory at the default detail."""
        size = trajectory.num_policy_tokens
        arrays: dict[str, np.ndarray] = {
            name: self._random.standard_normal(size).astype(np.float32) for name in _VARYING
        }
        arrays |= {name: np.full(size, 0.25, np.float32) for name in _CONSTANT}
        arrays |= {name: np.zeros(size, np.int8) for name in _CATEGORIES}
        values = {"trained_step": step, "stage": "rl", "credit": 0.5}
        return Annotation(trajectory.id, step, values=values, arrays=arrays)

    def _text(self, tokens: int) -> str:
        ranks = self._random.zipf(1.3, tokens * _CHARACTERS_A_TOKEN // 5) % _WORDS
        return " ".join(self._words[rank] for rank in ranks)

    def _segment(self, kind: SegmentKind) -> Segment:
        return Segment(kind, self._ids(self._observed))

    def _sampled(self) -> Segment:
        logprobs = -self._random.exponential(0.5, self._policy).astype(np.float32)
        return Segment(SegmentKind.POLICY, self._ids(self._policy), logprobs, 3)

    def _ids(self, tokens: int) -> np.ndarray:
        return (self._random.zipf(1.2, tokens) % VOCABULARY).astype(np.int32)
