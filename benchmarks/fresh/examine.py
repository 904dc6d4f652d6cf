"""Fresh evaluation: a run's models on unseen problems, before and after RL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

from agentrl.config.load import load_config
from agentrl.metrics import correctness
from agentrl.run.trainer import Trainer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STAGES = {"before": "warmup", "after": "rl"}

Verdicts: TypeAlias = dict[str, dict[str, list[bool]]]
"""``{"before"|"after": {"sampled"|"greedy": whether each problem was solved, in their order}}``."""


def fresh_verdicts(run: Path, example: str) -> Verdicts:
    """Every verdict; kept beside the run directory, so that each model meets these problems once.

    Args:
        run: a finished run directory of the example.
        example: ``code`` or ``search``.

    Raises:
        RuntimeError: infrastructure failed an episode, so that the verdicts would be of other
            problems than asked.
    """
    kept = run.with_name(f"{run.name}.fresh.json")
    if kept.is_file():
        verdicts: Verdicts = json.loads(kept.read_text(encoding="utf-8"))
        return verdicts
    verdicts = {
        when: examine(run / "models" / stage, example, seed_of(run))
        for when, stage in STAGES.items()
    }
    kept.write_text(json.dumps(verdicts), encoding="utf-8")
    return verdicts


def examine(model: Path, example: str, seed: int) -> dict[str, list[bool]]:
    """One sampled and one greedy episode of each fresh problem."""
    settings = [
        f"model.path={model.resolve()}",
        f"run.seed={seed}",
        "controller.mode=inline",
        f"stages.rl.eval.sets={{fresh: 'benchmarks.fresh.{example}:tasks'}}",
    ]
    with Trainer(load_config(EXAMPLES / example / "config.yaml", settings)) as trainer:
        (result,) = trainer.evaluate_sets("fresh", samples=1, greedy=True)
    if excluded := result.numbers.get("excluded"):
        raise RuntimeError(
            f"{excluded} episodes of {model} on the fresh problems failed; examine it again"
        )
    return {
        kind: [correctness(t) > 0.5 for t in result.trajectories if t.label.endswith(f"/{kind}")]
        for kind in ("sampled", "greedy")
    }


def seed_of(run: Path) -> int:
    """``run.seed`` of a finished run."""
    seed: int = json.loads((run / "run.json").read_text(encoding="utf-8"))["seed"]
    return seed
