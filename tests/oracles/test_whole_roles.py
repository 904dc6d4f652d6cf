"""Whole roles against eager Hugging Face in float64: random multi-turn trees through actor, critic
and reference, and losses written here from the papers.

The oracle knows no batch, packing, shared beginning or sample: it runs the model on the whole
sequence of each turn alone. What both sides read is the trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from agentrl.algorithms import AlgorithmSpec, make_algorithm
from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.group_rewards import rewards_of
from agentrl.rollouts import make_batch
from agentrl.training import (
    Actor,
    ActorSpec,
    Critic,
    CriticSpec,
    DistSpec,
    Reference,
    ReferenceSpec,
    join,
    merge_columns,
)
from agentrl.types import (
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tests.tiny_models import write_qwen3
from tests.training.harness import PLAIN, layout

VOCAB = 64
ENDS = (
    Status("terminated"),
    Status("truncated", "max_turns"),  # a limit that the policy ran out
    Status("truncated", "straggler"),  # none of its doing
)


def random_turns(
    rng: np.random.Generator, opening: np.ndarray, temperature: float
) -> list[Turn]:
    """Turns that go on, begin anew with a prompt of their own, or branch off an earlier turn."""
    turns: list[Turn] = []
    for index in range(int(rng.integers(2, 6))):
        move = (
            "restart"
            if index == 0
            else str(rng.choice(["extend", "extend", "restart", "branch"]))
        )
        parent = {
            "extend": index - 1,
            "restart": None,
            "branch": int(rng.integers(0, index or 1)),
        }
        ids = opening if index == 0 else rng.integers(0, VOCAB, int(rng.integers(1, 6)))
        kinds = [SegmentKind.PROMPT] if move == "restart" else [
            SegmentKind.TEMPLATE, SegmentKind.OBSERVATION
        ]  # fmt: skip
        context = tuple(Segment(kind, np.asarray(ids, np.int32)) for kind in kinds)
        sampled = rng.integers(0, VOCAB, int(rng.integers(1, 7))).astype(np.int32)
        logprobs = rng.uniform(-5.0, -3.0, sampled.size).astype(np.float32)
        turns.append(
            Turn(
                index,
                parent[move],
                context,
                (Segment(SegmentKind.POLICY, sampled, logprobs, 0),),
                "",
                {"role": "assistant", "content": ""},
                sampling=SamplingParams(64, temperature=temperature),
                rewards={"step": float(rng.integers(-1, 2))},
            )
        )
    return turns


def random_groups(seed: int) -> list[TrajectoryGroup]:
    """Two groups of three, of each kind of end, whose rollouts begin alike."""
    rng = np.random.default_rng(seed)
    groups = []
    for group in range(2):
        task = Task(str(group))
        opening = rng.integers(0, VOCAB, 5)
        rollouts = [
            Trajectory(
                task, group, n, 0, "train",
                tuple(random_turns(rng, opening, float(rng.choice([1.0, 0.8])))),
                ENDS[(n + group) % 3],
                reward=float(rng.normal()),
            )
            for n in range(3)
        ]  # fmt: skip
        groups.append(TrajectoryGroup(group, task, tuple(rollouts)))
    return groups


@dataclass(frozen=True, eq=False)
class Played:
    """A trajectory as the oracle sees it: of each turn what stood before it, and what it sampled.

    Args:
        before: ids of each turn's sequence without its completion.
        sampled: ids of each completion.
        rollout: ``[n]`` the sampler's logprobs of all completions, in the order of turns.
        turn: ``[n]`` the turn of each sampled token.
    """

    own: Trajectory
    group: int
    before: list[list[int]]
    sampled: list[list[int]]
    rollout: Tensor
    turn: list[int]

    @classmethod
    def of(cls, own: Trajectory, group: int) -> Played:
        whole: list[list[int]] = []
        before: list[list[int]] = []
        sampled: list[list[int]] = []
        for turn in own.turns:
            start = [] if turn.parent is None else whole[turn.parent]
            context = [
                int(token) for segment in turn.context for token in segment.token_ids
            ]
            answer = [
                int(token) for segment in turn.completion for token in segment.token_ids
            ]
            before.append(start + context)
            sampled.append(answer)
            whole.append(start + context + answer)
        logprobs = [one.logprobs for turn in own.turns for one in turn.completion]
        rollout = torch.from_numpy(
            np.concatenate([x for x in logprobs if x is not None])
        ).double()
        turns = [index for index, answer in enumerate(sampled) for _ in answer]
        return cls(own, group, before, sampled, rollout, turns)

    def logprobs(self, model: Any) -> tuple[Tensor, Tensor]:
        """``[n]`` logprobs of what was sampled and ``[n]`` entropies, at its temperature."""
        sampling = self.own.turns[0].sampling
        assert sampling is not None
        found, entropies = [], []
        for before, sampled in zip(self.before, self.sampled, strict=True):
            logits = model(torch.tensor([before + sampled])).logits[0, len(before) - 1 : -1]
            logp = torch.log_softmax(logits / sampling.temperature, -1)
            found.append(logp.gather(1, torch.tensor(sampled)[:, None])[:, 0])
            entropies.append(-(logp.exp() * logp).sum(1))
        return torch.cat(found), torch.cat(entropies)

    def values(self, model: Any) -> tuple[Tensor, Tensor]:
        """``[n]`` values of the states before what was sampled, and that behind the last token."""
        found, behind = [], torch.zeros(())
        for before, sampled in zip(self.before, self.sampled, strict=True):
            hidden = model.model(torch.tensor([before + sampled])).last_hidden_state[0]
            value = model.score(hidden)[:, 0]
            found.append(value[len(before) - 1 : -1])
            behind = value[-1]
        return torch.cat(found), behind

    def due(self) -> Tensor:
        """``[n]`` rewards of steps on the last token of their turns, the rest on the very last."""
        rewards = torch.zeros(len(self.turn), dtype=torch.float64)
        steps = [turn.rewards["step"] for turn in self.own.turns]
        for index, reward in enumerate(steps):
            rewards[len(self.turn) - 1 - self.turn[::-1].index(index)] += reward
        assert self.own.reward is not None
        rewards[-1] += self.own.reward - sum(steps)
        return rewards


@dataclass(frozen=True, eq=False)
class Models:
    """Eager models: the policy as it sampled and as it is now, the reference, and the critic."""

    old: Any
    now: Any
    reference: Any
    critic_old: Any
    critic: Any


Oracle = Callable[[Sequence[Played], Models], tuple[Tensor, Tensor | None]]
"""The losses of the policy and of the critic."""

PPO = {
    "kl_coef": 0.3,
    "gae": {"discount": 0.95, "lam": 0.9},
    "value_clip": 0.02,
    "clip_low": 0.02,
    "clip_high": 0.03,
}


def ppo(played: Sequence[Played], models: Models) -> tuple[Tensor, Tensor]:
    """arXiv:1707.06347, eq. 7 with arXiv:1506.02438, eq. 16 and the KL off each token's reward."""
    discount, lam = 0.95, 0.9
    advantages, returns, old_values = [], [], []
    for one in played:
        with torch.no_grad():
            values, behind = one.values(models.critic_old)
            old, reference = one.logprobs(models.old)[0], one.logprobs(models.reference)[0]
        rewards = one.due() - 0.3 * (old - reference)
        following = behind if one.own.status.reason == "straggler" else torch.zeros(())
        found, trace = [], torch.zeros((), dtype=torch.float64)
        for step in reversed(range(len(rewards))):
            delta = rewards[step] + discount * following - values[step]
            trace = delta + discount * lam * trace
            following = values[step]
            found.append(trace)
        own = torch.stack(found[::-1])
        advantages.append(own)
        returns.append(own + values)
        old_values.append(values)
    flat = torch.cat(advantages)
    flat = (flat - flat.mean()) / (flat.std(unbiased=False) + 1e-8)
    ratio = torch.cat([one.logprobs(models.now)[0] for one in played])
    with torch.no_grad():
        old = torch.cat([one.logprobs(models.old)[0] for one in played])
    ratio = (ratio - old).exp()
    policy = -torch.minimum(ratio * flat, ratio.clamp(0.98, 1.03) * flat).mean()
    now = torch.cat([one.values(models.critic)[0] for one in played])
    target, before = torch.cat(returns), torch.cat(old_values)
    bounded = before + (now - before).clamp(-0.02, 0.02)
    errors = torch.maximum((now - target) ** 2, (bounded - target) ** 2)
    return policy, errors.mean() / 2


GRPO = {
    "kl_coef": 0.2,
    "entropy_coef": 0.05,
    "reduction": "trajectory_mean",
    "clip_low": 0.02,
    "clip_high": 0.03,
    "rollout_correction": {"level": "token", "cap": 1.2},
}


def grpo(played: Sequence[Played], models: Models) -> tuple[Tensor, None]:
    """arXiv:2402.03300, eq. 3 and 4, with truncated importance weights for the sampler."""
    total = torch.zeros((), dtype=torch.float64)
    for one in played:
        group = [other.own.reward or 0.0 for other in played if other.group == one.group]
        advantage = ((one.own.reward or 0.0) - np.mean(group)) / (
            np.std(group, ddof=1) + 1e-4
        )
        now, entropy = one.logprobs(models.now)
        with torch.no_grad():
            old, reference = one.logprobs(models.old)[0], one.logprobs(models.reference)[0]
        ratio = (now - old).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.03) * advantage)
        weight = (old - one.rollout).exp().clamp(max=1.2)
        kl = (reference - now).exp() - (reference - now) - 1
        assert kl.max() < 10  # the cap does not bite
        total = total + (-weight * surrogate + 0.2 * kl - 0.05 * entropy).mean() / len(
            played
        )
    return total, None


TURN_GRPO = {"discount": 0.9, "clip_low": 0.5, "clip_high": 0.5}


def turn_grpo(played: Sequence[Played], models: Models) -> tuple[Tensor, None]:
    """Each turn's discounted return less the mean of the same turn of the group; a token's mean."""
    returns = []
    for one in played:
        steps = [turn.rewards["step"] for turn in one.own.turns]
        rewards = [*steps[:-1], (one.own.reward or 0.0) - sum(steps[:-1])]
        returns.append(
            [
                sum(0.9**k * reward for k, reward in enumerate(rewards[u:]))
                for u in range(len(steps))
            ]
        )
    losses = []
    for one, own in zip(played, returns, strict=True):
        beside = [
            r for other, r in zip(played, returns, strict=True) if other.group == one.group
        ]
        means = [np.mean([r[u] for r in beside if u < len(r)]) for u in range(len(own))]
        advantage = torch.tensor([own[u] - means[u] for u in one.turn], dtype=torch.float64)
        now = one.logprobs(models.now)[0]
        with torch.no_grad():
            ratio_to = one.logprobs(models.old)[0]
        ratio = (now - ratio_to).exp()
        losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.5, 1.5) * advantage))
    return torch.cat(losses).mean(), None


def planned(
    groups: list[TrajectoryGroup], spec: AlgorithmSpec, *, share_prefixes: bool
) -> PlannedBatch:
    """The batch as a stage assembles it, in small micro-batches."""
    rewards = rewards_of(groups, seed=0)
    credit = spec.credit(rewards, spec.initial_state)
    batch = make_batch(
        groups,
        credit=credit.trajectory.astype(np.float32),
        turn_credit=credit.turn.astype(np.float32),
        trained=spec.trains,
    )
    return PlannedBatch.plan(
        batch, spec, layout(1, 90), mini_batch_groups=2, forward_tokens=60, seed=1,
        state=spec.initial_state, policy_version=0, share_prefixes=share_prefixes,
    )  # fmt: skip


def parameters(role: Actor | Critic) -> dict[str, Tensor]:
    """Those of a role, by Hugging Face's names."""
    return {name.removeprefix("hf."): one for name, one in role.backend.state().items()}


def moved(role: Actor | Critic, seed: int) -> None:
    """Other weights than before, as after an earlier update."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters(role).values():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.01 * noise)


def eager(
    kind: Any, folder: Path, role: Actor | Critic | None = None, **settings: Any
) -> Any:
    """A model of Hugging Face's own, with the weights of a role."""
    model = kind.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", **settings
    ).eval()
    if role is not None:
        with torch.no_grad():
            own = dict(model.named_parameters())
            for name, value in parameters(role).items():
                own[name].copy_(value)
    return model


def gradients(role: Actor | Critic) -> dict[str, Tensor]:
    """AdamW's first moment without decay is the gradient itself."""
    (optimizer,) = role.backend.optimizers
    return {n: optimizer.state[p]["exp_avg"] for n, p in parameters(role).items()}


def assert_gradient(role: Actor | Critic, loss: Tensor, model: Any) -> None:
    loss.backward()
    wanted = {name: one.grad for name, one in model.named_parameters()}
    for name, found in gradients(role).items():
        expected = wanted[name]
        assert expected is not None, name
        # temperatures, credits and the sampler's logprobs of a batch are float32
        assert (found - expected).abs().max() <= 5e-6 * expected.abs().max(), name


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The policy's model, and the reference's."""
    root = tmp_path_factory.mktemp("models")
    return (
        write_qwen3(root / "policy", vocab_size=VOCAB),
        write_qwen3(root / "reference", vocab_size=VOCAB, seed=8),
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "settings", "oracle"),
    [("ppo", PPO, ppo), ("grpo", GRPO, grpo), ("turn_grpo", TURN_GRPO, turn_grpo)],
    ids=["ppo", "grpo", "turn_grpo"],
)
def test_roles_have_the_gradients_of_the_papers(
    folders: tuple[Path, Path],
    name: str,
    settings: dict[str, Any],
    oracle: Oracle,
    seed: int,
) -> None:
    join(DistSpec())
    policy, other = folders
    spec = make_algorithm(name, settings).for_updates(2, single=False)
    common: dict[str, Any] = {"backend": "plain", "dtype": "float64"}
    actor = Actor(ActorSpec(str(policy), spec, PLAIN, **common), DistSpec())
    has_critic = spec.value_loss is not None
    critic = (
        Critic(CriticSpec(str(policy), spec, PLAIN, head_seed=5, **common), DistSpec())
        if has_critic
        else None
    )
    reference = Reference(ReferenceSpec(str(other), **common), DistSpec())
    groups = random_groups(seed)
    batch = planned(groups, spec, share_prefixes=bool(seed % 2))

    passes = [actor.logprobs]
    passes += [reference.logprobs] if spec.needs.reference else []
    passes += [critic.values] if critic else []
    for method in (*passes, actor.advantages):
        parts = batch.forward()(1)
        columns = merge_columns([method(parts[0])], parts, batch.batch.cu_seqlens)
        batch = replace(batch, batch=batch.batch.join(columns))

    def classifier() -> Any:
        return eager(AutoModelForSequenceClassification, policy, critic, num_labels=1)

    old_critic = classifier() if critic else None
    old = eager(AutoModelForCausalLM, policy)
    moved(actor, seed)
    if critic:
        moved(critic, 10 + seed)
    models = Models(
        old,
        eager(AutoModelForCausalLM, policy, actor),
        eager(AutoModelForCausalLM, other),
        old_critic,
        classifier() if critic else None,
    )
    (mini_batch,) = batch.mini_batches(1)
    (shard,) = mini_batch(1)
    stats = actor.update(shard)
    value_stats = critic.update(shard) if critic else None
    if name != "turn_grpo":  # its bounds are wide
        assert (
            0
            < stats["policy/clip_frac_low"].mean + stats["policy/clip_frac_high"].mean
            < 0.9
        )

    played = [
        Played.of(t, group.group_index) for group in groups for t in group.trajectories
    ]
    loss, value_loss = oracle(played, models)
    assert stats["policy/loss"].mean == pytest.approx(
        float(loss.detach()), rel=1e-6, abs=1e-8
    )
    assert_gradient(actor, loss, models.now)
    if critic:
        assert value_loss is not None
        assert value_stats is not None
        assert 0 < value_stats["clip_frac"].mean < 1
        assert value_stats["loss"].mean == pytest.approx(
            float(value_loss.detach()), rel=1e-6
        )
        assert_gradient(critic, value_loss, models.critic)


def test_the_trees_have_every_shape() -> None:
    """Restarts, branches and turns that go on, ends of each kind, and steps that pay."""
    made = [
        one
        for seed in (0, 1, 2)
        for group in random_groups(seed)
        for one in group.trajectories
    ]
    turns = [turn for one in made for turn in one.turns if turn.index]
    assert any(turn.parent is None for turn in turns)
    assert any(turn.parent == turn.index - 1 for turn in turns)
    assert any(turn.parent is not None and turn.parent < turn.index - 1 for turn in turns)
    assert {str(one.status) for one in made} == set(map(str, ENDS))
    assert {turn.rewards["step"] for turn in turns} == {-1.0, 0.0, 1.0}
