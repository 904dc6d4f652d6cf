"""Evaluator: plays held-out tasks as in training, without training on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol, TypeAlias

from agentrl.envs import EnvSpec
from agentrl.metrics import correctness
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.types import SamplingParams, Task, Trajectory

RollOut: TypeAlias = Callable[[Sequence[GroupRequest]], list[GroupOutcome]]


@dataclass(frozen=True, slots=True)
class EvalSet:
    """A named set of held-out tasks.

    Args:
        name: in metrics and the summary.
        tasks: the problems.
        temperature: of the sampled episodes, where it differs from other sets'.
        env: the environment, where it differs from training's (without its tools, say).
        baseline_only: evaluated before the first step alone.
    """

    name: str
    tasks: tuple[Task, ...]
    temperature: float | None = None
    env: EnvSpec | None = None
    baseline_only: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """One evaluation of one set.

    Args:
        name: the set's.
        when: ``before``, ``step=000010`` or ``after``.
        num_tasks: tasks or pairs asked.
        numbers: what came of it, by name, as in ``summary.json``. Of episodes: ``sampled`` and
            ``greedy``, accuracies over those that finished, None where none did or none was asked
            for; ``excluded`` where infrastructure failed some, which count in neither accuracy.
        trajectories: every episode that was played for it.
    """

    name: str
    when: str
    num_tasks: int
    numbers: Mapping[str, float | int | None]
    trajectories: Sequence[Trajectory] = ()


class Evaluator(Protocol):
    """Evaluates the model of a stage on what was held out of training."""

    def evaluate(self, when: str, *, done: Collection[str] = ()) -> Iterator[Evaluation]:
        """Evaluates one set after another with the weights as they are, but for those that are
        ``done``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RolloutEvaluator:
    """Evaluates sets of tasks by the episodes that are played for them.

    Args:
        sets: what is held out.
        roll_out: plays groups with the weights served now.
        samples: episodes sampled a task.
        sampling: of the sampled episodes.
        greedy: also one greedy episode a task.
        stage: the stage whose policy plays, in the ids of stored trajectories.
    """

    sets: Sequence[EvalSet]
    roll_out: RollOut
    _: KW_ONLY
    samples: int
    sampling: SamplingParams
    greedy: bool = True
    stage: str = ""

    def evaluate(self, when: str, *, done: Collection[str] = ()) -> Iterator[Evaluation]:
        """Rolls out every set with the weights served now, one after another."""
        for item in self.sets:
            if item.name not in done and (when == "before" or not item.baseline_only):
                yield self._evaluate(item, when)

    def _evaluate(self, item: EvalSet, when: str) -> Evaluation:
        sampling = self.sampling
        if item.temperature is not None:
            sampling = replace(sampling, temperature=item.temperature)
        sampled = self._roll_out(item, f"{when}/sampled", self.samples, sampling)
        greedy: list[Trajectory] = []
        if self.greedy:
            greedy = self._roll_out(item, f"{when}/greedy", 1, sampling.greedy())
        trajectories = [*sampled, *greedy]
        numbers: dict[str, float | int | None] = {
            "sampled": _accuracy(sampled),
            "greedy": _accuracy(greedy),
        }
        if excluded := sum(not trajectory.status.finished for trajectory in trajectories):
            numbers["excluded"] = excluded
        return Evaluation(item.name, when, len(item.tasks), numbers, trajectories)

    def _roll_out(
        self, item: EvalSet, kind: str, samples: int, sampling: SamplingParams
    ) -> list[Trajectory]:
        label = f"{item.name}/{kind}"
        requests = [
            GroupRequest(
                group_index,
                task,
                samples,
                "eval",
                label,
                sampling,
                env=item.env,
                stage=self.stage,
            )
            for group_index, task in enumerate(item.tasks)
        ]
        return [
            t for outcome in self.roll_out(requests) for t in outcome.group.trajectories
        ]


def _accuracy(trajectories: Sequence[Trajectory]) -> float | None:
    finished = [
        correctness(t) for t in trajectories if t.status.finished and t.reward is not None
    ]
    return sum(finished) / len(finished) if finished else None
