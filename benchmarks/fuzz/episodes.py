"""Fuzzed episodes: plays hostile episodes of one renderer through the real loop."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import EnvSpec, EpisodeView, Rubric
from agentrl.render import Renderer
from agentrl.rollouts import (
    EpisodeContext,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    run_episode,
)
from agentrl.tools import parser_for
from agentrl.types import Task
from benchmarks.fuzz.account import Bookkeeper, mask_errors, token_mismatches
from benchmarks.fuzz.renderers import Variant, Watched, built_variant
from benchmarks.fuzz.talk import STOP, FuzzedEnv, FuzzedModel

__all__ = ["Outcome", "fuzz"]


@dataclass
class Outcome:
    """What became of the episodes of one renderer; each fault has the episode's id in front."""

    trajectories: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    contexts: int = 0
    restarts: int = 0
    calls: int = 0
    stop_strings: int = 0
    retok: list[float] = field(default_factory=list)
    template: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    forged: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Built:
    part: Any

    def build(self) -> Any:
        return self.part


def _no_reward(view: EpisodeView) -> float:
    return 0.0


def _spec(renderer: Renderer, rng: random.Random) -> RolloutSpec:
    context = rng.choice((300, 600, 4000, 4000))
    return RolloutSpec(
        env=EnvSpec(FuzzedEnv),
        renderer=_Built(renderer),
        parser="auto",
        rubric=_Built(Rubric([_no_reward])),
        episode=EpisodeSettings(
            max_turns=6,
            max_turn_tokens=rng.choice((8, 60, 1000)),
            max_response_tokens=rng.choice((60, 8000)),
            context_tokens=8000 + context,
            stop=(STOP,) if rng.random() < 0.3 else (),
            max_retries=0,
        ),
        max_prompt_tokens=8000,
        root_seed=0,
    )


def fuzz(variant: Variant, folder: Path, *, episodes: int, seed: int) -> Outcome:
    """Plays ``episodes`` episodes of a variant, whose tokenizer is written to ``folder``, one after
    another.
    """
    inner, tokenizer = built_variant(variant, folder)
    added: dict[str, int] = tokenizer.get_added_vocab()
    watched: Any = Watched(inner, added)
    markers = sorted(added)
    model = FuzzedModel(
        inner,
        markers,
        max_calls=variant.max_calls,
        thinks=variant.enable_thinking is not False,
        seed=seed,
    )
    parser = parser_for(inner, variant.parser)
    outcome = Outcome()

    async def play() -> None:
        for number in range(episodes):
            rng = random.Random(f"{seed}/{variant.name}/{number}")
            spec = _spec(watched, rng)
            engine = ScriptedEngine(model, vocab_size=inner.vocab_size, decode=inner.decode)
            books = Bookkeeper(engine)
            parts = EpisodeContext(spec, books, watched, parser, spec.rubric.build())
            key = EpisodeKey(number, 0)
            info = {"seed": f"{seed}/{number}", "markers": markers, "tools": variant.tools}
            trajectory = await run_episode(parts, Task(f"fuzz-{number}", info=info), key)
            _count(outcome, trajectory, key, books)

    asyncio.run(play())
    outcome.contexts = watched.contexts
    outcome.forged = watched.violations
    return outcome


def _count(outcome: Outcome, trajectory: Any, key: EpisodeKey, books: Bookkeeper) -> None:
    outcome.trajectories += 1
    outcome.turns += len(trajectory.turns)
    outcome.sampled_tokens += trajectory.num_policy_tokens
    outcome.restarts += sum(trajectory.info.get("restarts", {}).values())
    outcome.calls += sum(
        len(turn.message.get("tool_calls", ())) for turn in trajectory.turns
    )
    outcome.stop_strings += sum(
        completion.stop_string is not None for completion in books.completions
    )
    status = str(trajectory.status)
    outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
    for name, values in (
        ("retok_frac", outcome.retok),
        ("template_frac", outcome.template),
    ):
        if name in trajectory.info:
            values.append(trajectory.info[name])
    if not trajectory.status.finished:
        outcome.failed.append(f"{trajectory.id}: {status}: {trajectory.status.detail}")
        return
    outcome.mismatches += [
        f"{trajectory.id}: {fault}"
        for fault in token_mismatches(trajectory, key.session_id, books)
    ]
    outcome.masks += [
        f"{trajectory.id}: {fault}"
        for fault in mask_errors(trajectory, key.session_id, books)
    ]
