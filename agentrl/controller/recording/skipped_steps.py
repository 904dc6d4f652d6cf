"""Skipped steps: counts optimizer steps whose gradient was not finite, and keeps their batches.

Each lies in a folder of its own, with a script that repeats it in one process:

    batch.npz    the mini-batch as one rank gets it, with the columns of every pass before
    model/       the weights that it met; those of steps in a row are equal, and lie with the first
    step.json    stage, role, step
    repeat.py    the script

Axes: S samples of a mini-batch.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

import numpy as np

from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.errors import TrainingError
from agentrl.store import EventLog
from agentrl.store.disk import replacing_folder, write_failure, write_json, write_text
from agentrl.training import LearningRole
from agentrl.types import Batch, BatchShard, UpdateStats

NOT_FINITE = "optim/not_finite"
"""The statistic of a step that was skipped for its gradient."""

MOST_IN_A_ROW = 3
"""The step in a row that ends the run."""

_MODELS_KEPT = 2
"""Models of earlier skipped steps are removed, so that they never fill a disk."""

_SCRIPT = Template('''\
"""Repeats an optimizer step of stage $stage, step $step, whose gradient was not finite.

No engines and no Ray: everything runs in this process, where breakpoints work.
"""

import sys
from pathlib import Path

import numpy as np

from agentrl.run.replay.skipped_step import load_step
from agentrl.training import DistSpec, join, leave

spec, shard = load_step(Path(__file__).parent, *sys.argv[1:])  # or with another model's folder
join(DistSpec())
stats = spec.build(DistSpec()).update(shard)
for name, stat in sorted(stats.items()):
    print(f"{name} = {stat.mean}")
for name, column in getattr(stats, "columns", {}).items():
    tokens = np.flatnonzero(~np.isfinite(column))
    samples = np.searchsorted(shard.batch.cu_seqlens, tokens, "right") - 1
    print(f"{name}: {tokens.size} tokens not finite, in samples {np.unique(samples)}")
leave()
''')

logger = logging.getLogger(__name__)


class SkippedSteps:
    """Of one stage; the loop's thread alone calls it.

    Args:
        folder: where their batches are kept.
        stage: its name.
        num_steps: of the stage.
        events: what a person should know later.
    """

    def __init__(self, folder: Path, stage: str, num_steps: int, events: EventLog) -> None:
        self._folder = folder
        self._stage = stage
        self._num_steps = num_steps
        self._events = events
        self._in_a_row: Counter[str] = Counter()
        self._model: dict[str, Path] = {}
        self._counts: Counter[str] = Counter()
        self._ended_by: TrainingError | None = None

    @property
    def ended(self) -> bool:
        """Whether so many were skipped in a row that the run ends."""
        return self._ended_by is not None

    def check(self) -> None:
        """Ends the run.

        Raises:
            TrainingError: too many steps in a row were skipped.
        """
        if self._ended_by is not None:
            raise self._ended_by

    def take_counts(self) -> dict[str, int]:
        """Steps skipped since the last call, by metric."""
        counts = dict(self._counts)
        self._counts.clear()
        return counts

    def note(
        self,
        learner: RoleHandle,
        batch: Batch,
        mini_batch: Sequence[BatchShard],
        stats: UpdateStats,
        *,
        step: int,
        prefix: str,
    ) -> bool:
        """Whether the learner skipped a step for its gradient; then its batch is kept.

        Args:
            learner: whose step it was; the others skip none for it.
            batch: whole.
            mini_batch: what the learner was given.
            stats: what it answered.
            step: of the stage.
            prefix: of the learner's metrics.

        Raises:
            StoreError: the batch cannot be written.
        """
        role = learner.name
        if NOT_FINITE not in stats:
            if "optim/skipped" not in stats:  # without trained tokens there was no gradient
                self._in_a_row[role] = 0
                self._model.pop(role, None)
            return False
        self._counts[f"{prefix}{NOT_FINITE}"] += 1
        self._in_a_row[role] += 1
        norm = stats["optim/grad_norm"].mean
        folder = self._keep(learner, whole_shard(batch, mini_batch), step)
        number = self._in_a_row[role]
        fields = {
            "stage": self._stage,
            "step": step,
            "role": role,
            "norm": str(norm),
            "in_a_row": number,
            "path": str(folder),
        }
        text = (
            f"step {step}: {role} skipped an optimizer step, since its gradient has norm {norm}; "
            f"repeat it by `python {shlex.quote(f'{folder}/repeat.py')}`"
        )
        logger.warning("%s", text, extra={"event": "step_skipped", **fields})
        self._events.log(
            "step_skipped", text, boundary="training", level="warning", **fields
        )
        if number >= MOST_IN_A_ROW:
            self._ended_by = TrainingError(
                f"stage {self._stage!r}: the gradients of {number} optimizer steps in a row of "
                f"{role} are not finite, the last one in step {step} has norm {norm}; none of them "
                f"was taken, and a checkpoint keeps the weights. Find the cause by `python "
                f"{folder}/repeat.py`; then lower OptimSpec.lr or OptimSpec.clip_grad_norm, or "
                "correct the rewards, and go on by --resume"
            )
        return True

    def _keep(self, learner: RoleHandle, shard: BatchShard, step: int) -> Path:
        """Writes the folder of a skipped step."""
        role = learner.name
        folder = self._folder / f"step={step:06d}-{role}-{sum(self._counts.values())}"
        known = role in self._model
        model = self._model.setdefault(role, folder / "model")
        record = {
            "stage": self._stage,
            "role": role,
            "step": step,
            "num_steps": self._num_steps,
            "model": f"../{model.parent.name}/model",
        }
        try:
            with replacing_folder(folder) as part:
                write_shard(part / "batch.npz", shard)
                write_json(part / "step.json", record)
                script = _SCRIPT.substitute(stage=repr(self._stage), step=step)
                write_text(part / "repeat.py", script)
                if not known:
                    learner.call(LearningRole.export, part / "model")
        except OSError as error:
            what = f"the batch of a skipped step could not be written to {folder}"
            raise write_failure(what, folder, error) from error
        kept = sorted(self._folder.glob(f"step=*-{role}-*/model"), key=_age)
        for old in kept[:-_MODELS_KEPT]:
            shutil.rmtree(old)
        return folder


def _age(path: Path) -> float:
    return path.stat().st_mtime


def whole_shard(batch: Batch, mini_batch: Sequence[BatchShard]) -> BatchShard:
    """A mini-batch as a single rank gets it: the same micro-batches, without fillers."""
    samples = np.concatenate([part.samples for part in mini_batch])
    firsts = np.cumsum([0, *(part.samples.size for part in mini_batch)]).tolist()
    micro_batches = tuple(
        tuple(first + row for row in rows)
        for first, part in zip(firsts, mini_batch, strict=False)
        for rows in part.micro_batches
        if rows
    )
    weights = [part.sample_weight for part in mini_batch if part.sample_weight is not None]
    first = mini_batch[0]
    auxiliary = {
        name: np.concatenate([part.auxiliary[name] for part in mini_batch])
        for name in first.auxiliary
    }
    return replace(
        first,
        batch=batch.select(samples),
        samples=samples,
        micro_batches=micro_batches,
        sample_weight=np.concatenate(weights),
        auxiliary=auxiliary,
    )


def write_shard(path: Path, shard: BatchShard) -> None:
    """Writes a shard with weights as arrays."""
    assert shard.sample_weight is not None, "an update has weights"
    columns = {
        field.name: getattr(shard.batch, field.name)
        for field in dataclasses.fields(shard.batch)
    }
    own = columns.pop("own")
    arrays = {name: column for name, column in columns.items() if column is not None}
    arrays |= {f"_own_{name}": column for name, column in own.items()}
    arrays |= {f"_auxiliary_{name}": column for name, column in shard.auxiliary.items()}
    arrays |= {
        f"_state_{name}": np.array(one) for name, one in shard.algorithm_state.items()
    }
    np.savez_compressed(
        path,
        **arrays,
        _samples=shard.samples,
        _micro_sizes=np.array([len(rows) for rows in shard.micro_batches], dtype=np.int64),
        _micro_rows=np.array(
            [r for rows in shard.micro_batches for r in rows], dtype=np.int64
        ),
        _sample_weight=shard.sample_weight,
        _policy_version=np.array(shard.policy_version),
    )


def read_shard(path: Path) -> BatchShard:
    """What ``write_shard`` wrote."""
    with np.load(path) as arrays:
        found = dict(arrays)
    rows = np.split(found.pop("_micro_rows"), np.cumsum(found.pop("_micro_sizes"))[:-1])
    samples, weights = found.pop("_samples"), found.pop("_sample_weight")
    micro_batches = tuple(tuple(own.tolist()) for own in rows)
    version = int(found.pop("_policy_version"))
    own, auxiliary, state = (
        {
            name.removeprefix(kind): found.pop(name)
            for name in list(found)
            if name.startswith(kind)
        }
        for kind in ("_own_", "_auxiliary_", "_state_")
    )
    return BatchShard(
        Batch(**found, own=own),
        samples,
        micro_batches,
        weights,
        auxiliary,
        {name: float(one) for name, one in state.items()},
        version,
    )
