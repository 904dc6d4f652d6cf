"""Fresh evaluation: accuracies of a run's models on unseen problems, before and after RL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from agentrl.config.load import load_config
from agentrl.metrics.evaluation import evaluation_report
from agentrl.run.eval_file import evaluated_tasks, task_scores
from agentrl.run.trainer import Trainer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STAGES = {"before": "warmup", "after": "rl"}
SHARPER = (0.75, 0.5, 0.25)
"""Temperatures at which the model before RL is sampled too, beside 1 and its greedy decoding."""
VOTES = 8
MAJORITY = f"majority of {VOTES}"

Accuracies: TypeAlias = dict[str, dict[str, float]]
"""``{"before"|"after": {decoding: accuracy}}``. Decodings are ``sampled``, ``greedy``, and before
RL also ``majority of 8`` and ``sampled at 0.5`` and the like.
"""


def fresh_accuracies(
    run: Path,
    example: str,
    *,
    sharper: bool = False,
    stages: Sequence[str] = tuple(STAGES),
    tasks: str = "tasks",
) -> Accuracies:
    """Accuracies of the run's models; each is kept beside the run directory as soon as it is known,
    so that a model meets these problems once.

    Args:
        run: a finished run directory of the example.
        example: the name of its folder.
        sharper: whether the model before RL is decoded in other ways too.
        stages: ``before``, ``after`` or both; a run that began from another's warm-up has none
            before.
        tasks: the function of ``benchmarks.fresh`` that gives the problems.

    Raises:
        RuntimeError: infrastructure failed an episode, so that the accuracies would be of other
            problems than asked.
    """
    kept = run.with_name(f"{run.name}.fresh.json")
    known: Accuracies = {when: {} for when in STAGES}
    if kept.is_file():
        known = json.loads(kept.read_text(encoding="utf-8"))
    colder = [("before", temperature) for temperature in SHARPER if sharper]
    for when, temperature in [*((when, 1.0) for when in stages), *colder]:
        name = "sampled" if temperature == 1.0 else f"sampled at {temperature:g}"
        if name not in known[when]:
            samples = VOTES if sharper and (when, temperature) == ("before", 1.0) else 1
            model = run / "models" / STAGES[when]
            found = examine(model, example, seed_of(run), temperature, samples, tasks)
            known[when] |= {name if key == "sampled" else key: found[key] for key in found}
            kept.write_text(json.dumps(known), encoding="utf-8")
    return known


def examine(
    model: Path,
    example: str,
    seed: int,
    temperature: float = 1.0,
    samples: int = 1,
    tasks: str = "tasks",
) -> dict[str, float]:
    """Accuracies of ``samples`` episodes of each fresh problem, of their majority where there are
    as many as vote, and at temperature 1 of a greedy one.
    """
    settings = [
        f"model.path={model.resolve()}",
        f"run.seed={seed}",
        "placement.mode=inline",
        f"stages.rl.eval.temperature={temperature}",
        f"stages.rl.eval.sets={{fresh: 'benchmarks.fresh.{example}:{tasks}'}}",
    ]
    with Trainer(load_config(EXAMPLES / example / "config.yaml", settings)) as trainer:
        (result,) = trainer.evaluate_sets(
            "fresh", samples=samples, greedy=temperature == 1.0
        )
    if excluded := result.numbers.get("excluded"):
        raise RuntimeError(
            f"{excluded} episodes of {model} on the fresh problems failed; examine it again"
        )
    found = {key: value for key, value in result.numbers.items() if value is not None}
    if samples == VOTES:
        sampled = [t for t in result.trajectories if t.label.endswith("/sampled")]
        report = evaluation_report(task_scores(evaluated_tasks(sampled)))
        ((_, statistics),) = report.items()
        found[MAJORITY] = statistics[f"maj@{VOTES}"].value
    return found


def seed_of(run: Path) -> int:
    """``run.seed`` of a finished run."""
    seed: int = json.loads((run / "run.json").read_text(encoding="utf-8"))["seed"]
    return seed
