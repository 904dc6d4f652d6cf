"""Eval command: ``agentrl eval``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import Flag, PositiveCount, print_json, print_table
from agentrl.envs import Rubric
from agentrl.errors import ConfigError
from agentrl.metrics.evaluation import evaluation_report
from agentrl.run.eval_file import (
    EvaluatedTask,
    check_eval_path,
    evaluated_tasks,
    read_eval_file,
    rescored,
    task_scores,
    write_eval_file,
)
from agentrl.types.user_code.load import check_takes, load_function

if TYPE_CHECKING:
    from agentrl.controller.evaluator import Evaluation


def eval_command(
    model: Path | None = None,
    config: str | None = None,
    /,
    *overrides: str,
    samples: PositiveCount | None = None,
    only: Annotated[str | None, Parameter(name="--set")] = None,
    out: Path | None = None,
    score: Path | None = None,
    reward: str | None = None,
    json: Flag = False,
) -> None:
    """Examine a model or a run's policy on held-out tasks, or score such a file again.

    `agentrl eval RUN|MODEL CONFIG` plays the tasks of eval.sets; `agentrl eval CONFIG
    rollout.engine=openai ...` does so with the model of an OpenAI-compatible server; `agentrl eval
    --score FILE --reward file.py:name` gives the episodes of an earlier evaluation new scores,
    without a model.

    Parameters
    ----------
    model
        A run directory, whose last policy is examined, or a Hugging Face model folder;
        left out where rollout.engine=openai.
    config
        A configuration file; by default the run's own.
    overrides
        Settings that go before the file's, as key=value.
    samples
        Episodes a task; by default eval.samples.
    only
        Only this one of eval.sets; by default all that are not baseline_only.
    out
        A Parquet file for tasks, responses, scores and episodes (docs/evaluation.md).
    score
        A file that --out wrote, or one of verl's with responses, to be scored again.
    reward
        The function that scores: file.py:name or module:name.
    json
        The statistics as JSON.
    """
    if out is not None:
        check_eval_path(out)
    if score is not None:
        if reward is None or (model, samples, only) != (None, None, None):
            raise ConfigError(
                "--score FILE needs --reward file.py:name, and no model, configuration, --samples "
                "or --set: it scores the episodes that FILE has"
            )
        function = load_function(reward, None, _broken_reward, "(episode)")
        check_takes(function, reward, _broken_reward, "(episode)", "episode")
        evaluated = rescored(read_eval_file(score), Rubric([function]))
    elif model is None or reward is not None:
        raise ConfigError(
            "name a run or a model to examine, or give --score FILE with --reward file.py:name"
        )
    else:
        from agentrl.controller.failures import check_some_finished
        from agentrl.run.policy_source import named_policy
        from agentrl.run.trainer import Trainer

        with Trainer(
            named_policy(model, config, overrides, command="agentrl eval")
        ) as trainer:
            results = trainer.evaluate_sets(only, samples=samples, greedy=False)
        check_some_finished([t for result in results for t in result.trajectories])
        evaluated = _by_source(results)
    # Whatever becomes of the file, the statistics are told.
    _report(evaluated, as_json=json)
    if out is not None:
        write_eval_file(out, evaluated)


def _by_source(results: Sequence[Evaluation]) -> list[EvaluatedTask]:
    """The tasks of every set; a set's name is their data source where they name none.

    The same source in several sets (with the tools and without them, say) is told apart as
    ``set/source``.
    """
    sources = {
        result.name: {trajectory.task.data_source for trajectory in result.trajectories}
        for result in results
    }
    shared = {
        source for source, count in Counter(chain(*sources.values())).items() if count > 1
    }
    evaluated = []
    for result in results:
        for entry in evaluated_tasks(result.trajectories):
            source = entry.task.data_source
            if source == "default":
                source = result.name
            elif source in shared:
                source = f"{result.name}/{source}"
            evaluated.append(replace(entry, task=replace(entry.task, data_source=source)))
    return evaluated


def _broken_reward(rule: str) -> ConfigError:
    return ConfigError(f"--reward{rule}")


def _report(evaluated: Sequence[EvaluatedTask], *, as_json: bool) -> None:
    report = evaluation_report(task_scores(evaluated))
    failed = sum(score is None for entry in evaluated for score in entry.scores)
    if as_json:
        sources = {
            name: {key: asdict(value) for key, value in own.items()}
            for name, own in report.items()
        }
        print_json({"sources": sources, "failed_samples": failed})
        return
    rows = [
        (source, name, value.value, f"{value.low:.3f} to {value.high:.3f}", value.num_tasks)
        for source, own in report.items()
        for name, value in own.items()
    ]
    print_table(("data source", "statistic", "value", "95% interval", "tasks"), rows)
    if failed:
        print(f"{failed} samples failed and are in no statistic")
