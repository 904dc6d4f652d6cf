"""Basic loop: GRPO over multi-turn episodes in one file, on the parts that the trainer is made of.

Copy it to change what ``Trainer`` decides for you: what is played, what credit is, what a batch is,
when weights move. It has no Ray, no checkpoints, no store and no metrics but the curve it prints.
``python examples/basic_loop.py [MODEL]`` runs as it stands, for a tiny model or one of yours.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np

from agentrl import training
from agentrl.algorithms import make_algorithm
from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngineSpec
from agentrl.envs import Env, EnvSpec, EpisodeView, Rubric
from agentrl.render import RendererSpec
from agentrl.rollouts import (
    EpisodeContext,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    make_batch,
    run_episode,
)
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import (
    Action,
    Message,
    Observation,
    StepResult,
    Task,
    TrajectoryGroup,
)
from agentrl.weight_sync import publish_in_process

SEED = 0
TASKS_A_STEP, GROUP_SIZE = 4, 16
EPISODE = EpisodeSettings(max_turns=2, max_turn_tokens=2, max_response_tokens=64)
AGAIN: Message = {"role": "user", "content": "Go on."}
TASKS = [Task(w, ({"role": "user", "content": f"Say {w}."},)) for w in ("yes", "no")]


class Say(Env):
    """Asks for a word, and then for one more."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.asked_again = False

    def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    def step(self, action: Action) -> StepResult:
        if self.asked_again:
            return StepResult(Observation(), terminated=True)
        self.asked_again = True
        return StepResult(Observation((AGAIN,)))


def letters(episode: EpisodeView) -> float:
    """The share of what the policy said that is letters from A to Z."""
    said = "".join(turn.text for turn in episode.turns)
    return sum(one.isascii() and one.isalpha() for one in said) / max(1, len(said))


def spec_of(model: Path) -> RolloutSpec:
    """What every episode shares."""
    return RolloutSpec(
        env=EnvSpec(Say),
        renderer=RendererSpec(str(model)),
        parser="none",
        rubric=Rubric([letters]),
        episode=EPISODE,
        max_prompt_tokens=64,
        root_seed=SEED,
    )


async def play(parts: EpisodeContext, step: int) -> list[TrajectoryGroup]:
    """The groups of a step: each task played several times at once."""

    async def group(index: int) -> TrajectoryGroup:
        task = TASKS[index % len(TASKS)]
        keys = [EpisodeKey(index, n) for n in range(GROUP_SIZE)]
        episodes = await asyncio.gather(*(run_episode(parts, task, key) for key in keys))
        return TrajectoryGroup(index, task, tuple(episodes))

    first = step * TASKS_A_STEP
    return await asyncio.gather(*map(group, range(first, first + TASKS_A_STEP)))


async def train(model: Path, num_steps: int) -> list[float]:
    """The loop, and the mean reward of each step."""
    algorithm = make_algorithm("grpo")
    role = training.ActorSpec(str(model), algorithm, training.OptimSpec(lr=6e-3))
    actor = training.Actor(role, training.DistSpec())
    spec = spec_of(model)
    place = EnginePlace(str(model), context_tokens=spec.context_tokens)
    engine = TorchEngineSpec(device="cpu").build(place)
    parts = EpisodeContext.of(spec, engine)
    scale = actor.facts().length_scale
    layout = training.Layout(1, micro_batch_tokens=2048, length_scale=scale)
    curve = []
    for step in range(num_steps):
        groups = await play(parts, step)
        # credit of an episode: its reward above the mean of its group
        rewards = [np.array([one.reward for one in group.finished]) for group in groups]
        credit = np.concatenate([own - own.mean() for own in rewards]).astype(np.float32)
        batch = make_batch(groups, credit=credit)
        by_group = batch.group[batch.trajectory]
        (plan,) = training.partition(batch.lengths, by_group, seed=step, layout=layout)
        weights = training.sample_weights(batch, plan, algorithm.reduction)
        # what the loss reads of each token: logprobs of the weights as they are, and advantages
        for columns in (actor.logprobs, actor.advantages):
            (shard,) = training.shards(batch, plan, weights)
            batch = batch.join(columns(shard))
        (shard,) = training.shards(batch, plan, weights)
        stats = actor.update(shard)
        publish_in_process(actor, engine, version=step + 1)
        curve.append(float(np.concatenate(rewards).mean()))
        loss = stats["policy/loss"].mean
        print(f"step {step + 1}  reward {curve[-1]:.3f}  loss {loss:+.4f}")
    await parts.close()
    engine.close()
    return curve


def main(model: Path | None = None, num_steps: int = 20) -> list[float]:
    """Trains ``model``, or a tiny one that is made for it."""
    training.join(training.DistSpec())
    try:
        with tempfile.TemporaryDirectory() as made:
            if model is None:
                model = Path(made)
                # its tokenizer knows what is said here
                words = [{"messages": [*task.messages, AGAIN]} for task in TASKS]
                build_tiny_model(model, words, num_demonstrations=2, hidden=64, layers=2)
            return asyncio.run(train(model, num_steps))
    finally:
        training.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
