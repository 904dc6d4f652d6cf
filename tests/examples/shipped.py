"""Shipped configurations, and the settings by which each takes two small steps; needs no pytest."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

from agentrl.envs import EpisodeView

ROOT = Path(__file__).parents[2]
CONFIGS = {
    path.parent.name: path for path in sorted((ROOT / "examples").glob("*/config.yaml"))
}


def length(episode: EpisodeView) -> float:
    """A reward that differs between episodes of a model that has learned nothing yet."""
    return sum(len(turn.text) for turn in episode.turns) / 1000


def small(config: Path) -> list[str]:
    """Two steps a stage, of few episodes, with a reward that has a spread; no evaluation."""
    settings = [
        *(
            "train.steps=2",
            "train.batch_prompts=2",
            "rollout.group_size=4",
            "rollout.max_running=8",
        ),
        *(
            "rollout.max_turn_tokens=24",
            "eval.sets={}",
            f"reward.functions=[{__file__}:length]",
        ),
    ]
    for stage in (
        YAML(typ="safe").load(config.read_text(encoding="utf-8")).get("stages", [])
    ):
        own = f"stages.{stage['name']}"
        settings += [
            f"{own}.steps=2",
            f"{own}.eval.sets={{}}",
            f"{own}.train.batch_prompts=1",
        ]
        if "critic_warmup_steps" in stage.get("algorithm", ()):
            settings.append(f"{own}.algorithm.critic_warmup_steps=0")
    return settings
