"""Trajectory builder: records the turns of a running episode and the state of its sequences."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.rollouts.rollout_spec import EpisodeKey
from agentrl.store.json_text import sorted_json
from agentrl.types import (
    Blob,
    Completion,
    Experts,
    GenerateRequest,
    MediaSpan,
    Message,
    SamplingParams,
    Segment,
    Status,
    StepResult,
    Task,
    ToolSpec,
    Trajectory,
    Turn,
    concat_ids,
    share_experts,
)
from agentrl.types.arrays import recorded
from agentrl.types.clock import EpochClock, WaitClock

STATE = "state"
"""The key of ``Observation.info`` by which an environment names its state."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """The state of a token sequence after a turn, or at its beginning.

    Args:
        session_id: the KV session of the sequence.
        messages: the whole conversation so far, the last turn's message included.
        digest: a hash chain over ``messages``.
        parent: the index of the last turn; None if the next turn begins a sequence.
        ids: ``[n]`` ids of the sequence so far; empty if nothing can extend it.
        completion: ``[n]`` ids of the last turn's completion, which may be empty.
        prompt_tokens: tokens of the sequence's opening prompt.
        media: the spans of images in ``ids``.
        policy_version: the highest version that sampled any of ``ids``. Versions never fall along a
            sequence.
        cause: why it begins after an agent's first sequence: ``template``, ``rewrite``, or one of
            ``HistoryIndex.find``.
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
    cause: str = ""

    def restarted(self, messages: tuple[Message, ...], cause: str) -> SequenceState:
        """An empty sequence in the same KV session, for the conversation ``messages``."""
        return SequenceState(self.session_id, messages, _digest(b"", messages), cause=cause)

    def extended(self, observed: tuple[Message, ...]) -> SequenceState:
        """This sequence with ``observed`` at the end of its conversation."""
        return replace(
            self,
            messages=(*self.messages, *observed),
            digest=_digest(self.digest, observed),
        )


@dataclass(frozen=True, slots=True, eq=False)
class TurnRequest:
    """The next turn of a sequence, which has room for it.

    Args:
        sequence: the sequence to extend; its messages are the whole conversation.
        observed: the new ones of these messages.
        segments: the turn's context, which comes before its completion.
        tools: the tools on offer.
        max_new_tokens: the tokens that the limits leave for the completion.
    """

    sequence: SequenceState
    observed: tuple[Message, ...]
    segments: tuple[Segment, ...]
    tools: tuple[ToolSpec, ...]
    max_new_tokens: int


@dataclass(slots=True)
class TrajectoryBuilder:
    """A running episode's trajectory, to which turns are added one by one; ``finish`` freezes it.

    Attributes:
        conversations: the conversation of each agent that has acted, in the order of their first
            turns.
        messages: the conversation that the last turn extended.
        restarts: sequences that began after an agent's first one, by ``SequenceState.cause``.
        repairs: turns that a client continued with a history told otherwise, by
            ``Continuation.repairs``.
        fault: the error of the environment or program, equal in every attempt that does the same.
        resumed_turns: turns that came from a checkpoint.
        clock: gives the episode's times of day.
        doing, doing_since: what the episode waits for, and since when by ``time.monotonic``; empty
            before it has started.
        rewards, reward, info, env, reasons, first_state: see ``Trajectory``.
        last_observed, last_info: the observation that no turn has answered.
        unclaimed: step rewards of agents without a turn, which count for their first one.
    """

    key: EpisodeKey
    task: Task
    messages: tuple[Message, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    timings: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    resumed_turns: int = 0
    rewards: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None
    info: dict[str, Any] = field(default_factory=dict)
    env: str = ""
    clock: EpochClock = field(default_factory=EpochClock)
    reasons: Mapping[str, Any] = field(default_factory=dict)
    first_state: Blob | None = None
    last_observed: tuple[Message, ...] = ()
    last_info: Mapping[str, Any] = field(default_factory=dict)
    conversations: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    unclaimed: dict[str, float] = field(default_factory=dict)
    doing: str = ""
    doing_since: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """The episode starts now; whatever it waited for before is no part of it."""
        self.count("wait_s", time.monotonic() - self._started)
        self._started = time.monotonic()

    def wait_for(self, what: str) -> None:
        """The episode waits for something from now on, for people to look at."""
        self.doing, self.doing_since = what, time.monotonic()

    def add_turn(
        self,
        turn: TurnRequest,
        request: GenerateRequest,
        completion: Completion,
        *,
        message: Message,
        text: str,
        agent: str,
        sampling: SamplingParams,
        asked_at: float,
        timings: Mapping[str, float],
        offered_tools: Blob | None = None,
    ) -> SequenceState:
        """Records the input and the completion of a model call; ``add_step`` adds its effects.

        Args:
            turn: what the call was to generate.
            request: what the engine was given for it.
            completion: the engine's completion.
            message, text: the completion as a message and as text.
            agent: the name of the agent whose turn it is.
            sampling: the sampling parameters.
            asked_at: when the engine was asked, by ``time.monotonic``.
            timings: seconds of the call beside the engine's own.
            offered_tools: the tools on offer, as ``Turn`` has them.

        Returns:
            The sequence after the turn.
        """
        sequence = turn.sequence
        index = len(self.turns)
        # An agent's first sequence has no parent either, and is no restart.
        if sequence.parent is None and agent in self.conversations:
            self.restarts[sequence.cause] += 1
        self.messages = (*sequence.messages, message)
        self.conversations[agent] = self.messages
        added = (*turn.segments, *completion.segments)
        if completion.routed_experts is not None:
            added = self._share_experts(sequence.parent, added, completion.routed_experts)
        self.turns.append(
            Turn(
                index=index,
                parent=sequence.parent,
                context=added[: len(turn.segments)],
                completion=added[len(turn.segments) :],
                text=text,
                message=message,
                observed=turn.observed,
                images=request.images[len(sequence.media) :],
                finish_reason=completion.finish_reason,
                sampling=sampling,
                state_key=_state_key(sequence, self.last_info),
                agent=agent,
                stale_kv=completion.stale_kv,
                cached_tokens=completion.cached_tokens,
                timings={**completion.timings, **timings},
                started_at=self.clock.at(asked_at),
                observed_info=self.last_info,
                offered_tools=offered_tools,
            )
        )
        self.last_observed = ()
        self.last_info = {}
        sent = request.token_ids
        return SequenceState(
            session_id=sequence.session_id,
            messages=self.messages,
            digest=_digest(sequence.digest, (message,)),
            parent=index,
            ids=concat_ids(completion.segments, after=sent),
            completion=concat_ids(completion.segments),
            prompt_tokens=int(sent.size)
            if sequence.parent is None
            else sequence.prompt_tokens,
            media=request.media,
            policy_version=max(
                [
                    sequence.policy_version,
                    *(s.policy_version or 0 for s in completion.segments),
                ]
            ),
        )

    def _share_experts(
        self, parent: int | None, added: tuple[Segment, ...], record: Experts
    ) -> tuple[Segment, ...]:
        """The segments of a turn with their experts. Its parent's last token was read in this call
        alone; of several turns that extend it, the first tells."""
        if parent is not None:
            *others, last = self.turns[parent].completion
            known = last.routed_experts
            if known is not None and not recorded(known[-1:]).all():
                last = last.with_experts(np.concatenate([known[:-1], record[:1]]))
                self.turns[parent] = replace(self.turns[parent], completion=(*others, last))
            record = record[1:]
        return share_experts(added, record)

    def add_step(
        self, result: StepResult, began_at: float, seconds: float, waits: WaitClock
    ) -> None:
        """Adds the environment's step to the last turn.

        Args:
            result: of the step.
            began_at: when it began, by ``time.monotonic``.
            seconds: that it took.
            waits: those in it that others caused.
        """
        last = self.turns[-1]
        start = self.clock.at(began_at) - last.started_at
        timings = {**last.timings, "step_at_s": start, "step_s": seconds}
        if waits.first_at is not None:
            timings["wait_at_s"] = self.clock.at(waits.first_at) - last.started_at
            timings["wait_s"] = waits.wait_s
        self.turns[-1] = replace(
            last,
            calls=result.calls,
            timings=timings,
            info=dict(result.info),
        )
        reward = result.reward
        # One number is the acting agent's; a mapping may leave that agent out, whose reward is then
        # 0.
        given = reward if isinstance(reward, Mapping) else {last.agent: reward}
        for agent, value in ({last.agent: 0.0} | dict(given)).items():
            self._earn(agent, float(value))

    def _earn(self, agent: str, value: float) -> None:
        """Adds a step reward to an agent's latest turn."""
        value += self.unclaimed.pop(agent, 0.0)
        # A reward may come before its agent has acted, such as for the opponent's opening move. It
        # waits for the agent's first turn.
        own = next((turn for turn in reversed(self.turns) if turn.agent == agent), None)
        if own is None:
            self.unclaimed[agent] = value
        elif value:
            rewards = {"step": own.rewards.get("step", 0.0) + value}
            self.turns[own.index] = replace(own, rewards=rewards)

    def weigh_turn_rewards(
        self, agent: str, parts: Mapping[str, Sequence[float]], step_weight: float
    ) -> None:
        """Makes the rewards of an agent's turns what they are worth in the episode's reward.

        Args:
            agent: whose turns they are.
            parts: that score turns: for each one number a turn of the agent, weighted.
            step_weight: of the rewards that the turns have.
        """
        own = [index for index, turn in enumerate(self.turns) if turn.agent == agent]
        for position, index in enumerate(own):
            turn = self.turns[index]
            rewards = {**turn.rewards}
            if "step" in rewards:
                rewards["step"] *= step_weight
            for name, values in parts.items():
                rewards[name] = values[position]
            self.turns[index] = replace(turn, rewards=rewards)

    def observe(self, messages: tuple[Message, ...], info: Mapping[str, Any]) -> None:
        """Keeps an observation, which is the episode's last one unless a turn answers it."""
        self.last_observed = messages
        self.last_info = info

    def since_start(self, moment: float) -> float:
        """Seconds from the episode's start to a moment by ``time.monotonic``."""
        return moment - self._started

    def count(self, stage: str, seconds: float) -> None:
        """Adds seconds to a stage of the episode."""
        self.timings[stage] = self.timings.get(stage, 0.0) + seconds

    def finish(self, status: Status) -> Trajectory:
        """The trajectory with the turns so far."""
        counted = {
            "restarts": dict(self.restarts),
            "repairs": dict(self.repairs),
            "resumed_turns": self.resumed_turns,
            "unclaimed_rewards": {
                agent: own for agent, own in self.unclaimed.items() if own
            },
        }
        extra = {name: count for name, count in counted.items() if count}
        return Trajectory(
            **asdict(self.key),
            task=self.task,
            turns=tuple(self.turns),
            status=status,
            rewards=self.rewards,
            reward=self.reward,
            timings=dict(self.timings),
            info={**extra, **self.info},
            env=self.env,
            started_at=self.clock.at(self._started),
            ended_at=self.clock.at(time.monotonic()),
            reasons=self.reasons,
            last_observed=self.last_observed,
            last_info=self.last_info,
            first_state=self.first_state,
        )


def _state_key(sequence: SequenceState, info: Mapping[str, Any]) -> str:
    """16 hex digits: a hash of the state that the observation names in ``info``, else of the whole
    conversation.
    """
    if STATE not in info:
        return sequence.digest.hex()[:16]
    return hashlib.sha256(sorted_json(info[STATE]).encode()).hexdigest()[:16]


def _digest(digest: bytes, messages: Sequence[Message]) -> bytes:
    """Extends the hash chain ``digest`` by ``messages``, one link for each message."""
    # A turn hashes its new messages alone, however long the conversation is.
    for message in messages:
        digest = hashlib.sha256(digest + sorted_json(message).encode()).digest()
    return digest
