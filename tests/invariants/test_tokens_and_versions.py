"""Invariants 1, 2, 7 and 8 on real episodes: a TorchEngine plays many turns while its weights are
changed 100 times.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from agentrl.engines.torch import TorchEngine
from agentrl.envs import Env, EnvSpec
from agentrl.rollouts import EpisodeKey, run_episode
from agentrl.types import (
    Action,
    Completion,
    GenerateRequest,
    Message,
    Observation,
    SegmentKind,
    StepResult,
    Task,
    Trajectory,
    concat_ids,
)
from tests.controller.tiny import TASKS, engine_spec
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import context_of, rollout_spec

PUBLISHES = 100
VARIANTS = 5
NEXT: Message = {"role": "user", "content": "and?"}


class Chat(Env):
    """Asks again, and after the third answer starts the conversation anew."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.steps = 0

    async def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        self.steps += 1
        rewrite = self.task.messages if self.steps == 3 else None
        return StepResult(Observation((NEXT,), rewrite=rewrite))


@dataclass
class Recording:
    """The engine, and all that went through it."""

    engine: TorchEngine
    exchanged: dict[str, tuple[GenerateRequest, Completion]] = field(default_factory=dict)
    published: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await self.engine.generate(request)
        self.exchanged[request.request_id] = (request, completion)
        return completion


@dataclass(frozen=True)
class Played:
    trajectories: list[Trajectory]
    recording: Recording
    models: list[Qwen3ForCausalLM]


def variants(folder: Path) -> list[Qwen3ForCausalLM]:
    """The model, and others that are clearly not the same; version v is served by number v mod
    5.
    """
    models = []
    for number in range(VARIANTS):
        model = Qwen3ForCausalLM.from_pretrained(folder).eval()
        with torch.no_grad():
            model.model.norm.weight.mul_(1.0 + 0.5 * number)
        models.append(model)
    return models


def publish(recording: Recording, models: list[Qwen3ForCausalLM]) -> None:
    engine = recording.engine
    for version in range(1, PUBLISHES + 1):
        engine.pause("retract")
        session = engine.begin_update(version)
        for name, tensor in models[version % VARIANTS].state_dict().items():
            if name != "lm_head.weight":  # tied to the embedding
                session.put(name, tensor)
        session.commit()
        recording.published.append(version)
        engine.resume()


async def play_on(recording: Recording, publisher: threading.Thread) -> list[Trajectory]:
    spec = rollout_spec(
        env=EnvSpec(Chat),
        max_turns=6,
        max_turn_tokens=24,
        max_response_tokens=130,
        context_tokens=160,
        temperature=0.8,
    )
    parts = context_of(spec, recording)
    trajectories: list[Trajectory] = []
    publisher.start()
    while publisher.is_alive() or len(trajectories) < 8:
        group_index = len(trajectories)
        playing = [
            run_episode(
                parts, TASKS[group_index % 50], EpisodeKey(group_index, rollout_index)
            )
            for rollout_index in range(8)
        ]
        trajectories += await asyncio.gather(*playing)
    return trajectories


@pytest.fixture(scope="module")
def played(model: Path) -> Played:
    engine, models = engine_spec(model).build(), variants(model)
    recording = Recording(engine)
    publisher = threading.Thread(target=publish, args=(recording, models), daemon=True)
    try:
        trajectories = asyncio.run(play_on(recording, publisher))
    finally:
        publisher.join(DEADLINE_S)
        engine.close()
    assert recording.published == list(range(1, PUBLISHES + 1))
    assert all(len(t.turns) == 6 for t in trajectories)
    return Played(trajectories, recording, models)


@pytest.mark.invariant
def test_every_turns_sequence_is_what_the_engine_was_given_and_made(played: Played) -> None:
    for trajectory in played.trajectories:
        key = EpisodeKey(trajectory.group_index, trajectory.rollout_index)
        for turn in trajectory.turns:
            request, completion = played.recording.exchanged[
                f"{key.session_id}/{turn.index}"
            ]
            exchanged = [
                *request.token_ids.tolist(),
                *concat_ids(completion.segments).tolist(),
            ]
            assert trajectory.sequence(turn.index).tolist() == exchanged


@pytest.mark.invariant
def test_logprobs_and_one_version_are_exactly_on_policy_segments(played: Played) -> None:
    segments = [s for t in played.trajectories for turn in t.turns for s in turn.segments]
    for segment in segments:
        sampled = segment.kind is SegmentKind.POLICY
        assert (
            (segment.logprobs is not None)
            == (segment.policy_version is not None)
            == sampled
        )
    assert {segment.kind for segment in segments} == set(SegmentKind) - {SegmentKind.TARGET}


@pytest.mark.invariant
def test_every_sample_starts_with_a_prompt(played: Played) -> None:
    samples = [sample for t in played.trajectories for sample in t.samples()]
    assert {sample.segments[0].kind for sample in samples} == {SegmentKind.PROMPT}
    # the rewritten history began a second one
    assert len(samples) == 2 * len(played.trajectories)


@pytest.mark.invariant
def test_versions_never_fall_along_a_chain_and_none_is_above_what_was_published(
    played: Played,
) -> None:
    for trajectory in played.trajectories:
        for sample in trajectory.samples():
            versions = [
                s.policy_version for s in sample.segments if s.policy_version is not None
            ]
            assert versions == sorted(versions)
    highest = max(version for t in played.trajectories for version in t.policy_versions)
    assert 0 < highest <= PUBLISHES


def test_some_completion_crossed_an_update(played: Played) -> None:
    assert any(len(turn.completion) > 1 for t in played.trajectories for turn in t.turns)


@pytest.mark.invariant
def test_each_tokens_logprob_is_of_its_recorded_version_alone(played: Played) -> None:
    told_apart = 0
    for trajectory in played.trajectories[:: max(1, len(played.trajectories) // 16)]:
        for sample in trajectory.samples():
            whole = concat_ids(sample.segments)
            by_model = [_logprobs(model, whole, 0.8) for model in played.models]
            position = 0
            for segment in sample.segments:
                own = slice(position, position + len(segment))
                position += len(segment)
                if segment.policy_version is None or segment.logprobs is None:
                    continue
                apart = [np.abs(found[own] - segment.logprobs).max() for found in by_model]
                assert apart[segment.policy_version % VARIANTS] < 1e-4
                others = [
                    d
                    for number, d in enumerate(apart)
                    if number != segment.policy_version % VARIANTS
                ]
                told_apart += min(others) > 1e-2
    assert told_apart > 50


def _logprobs(model: Qwen3ForCausalLM, ids: np.ndarray, temperature: float) -> np.ndarray:
    """``[n]`` log p of each token given those before; the first one's is 0."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0].float() / temperature
    chosen = logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
    return np.concatenate([[0.0], chosen.numpy()])
