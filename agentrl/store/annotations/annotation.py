"""Annotations: what is learned of stored trajectories, and the columns that a run declares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from agentrl.errors import StoreError
from agentrl.store.json_text import from_json, to_json
from agentrl.types.arrays import AnyArray
from agentrl.types.user_code.values import shown

Level: TypeAlias = Literal["token", "turn", "trajectory"]
Scale: TypeAlias = Literal["linear", "log", "diverging", "category"]

FIXED = ("id", "step", "learner", "pass_index", "resumes", "recorded_at", "values_json")
"""Columns of a shard that every annotation has; no array bears one of these names."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class AnnotationColumn:
    """A value that annotations may have, by its name.

    Args:
        name: lower case letters, digits and underscores.
        level: what it is a value of: ``token`` has an array with an entry for every POLICY token,
            ``turn`` one with an entry for every turn, ``trajectory`` a single JSON value.
        unit: of the values, such as ``nats``; empty for a plain number.
        scale: how it is shown: ``diverging`` around 0, ``category`` by name.
        help: one sentence for readers.
        categories: the names of the values 0, 1, 2, ... of a ``category`` in an array.

    Raises:
        StoreError: the name cannot be a column's, or categories and scale do not fit.
    """

    name: str
    level: Level
    unit: str = ""
    scale: Scale = "linear"
    help: str = ""
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in FIXED:
            raise StoreError(
                f"an annotation column's name must match {_NAME.pattern} and be none of "
                f"{', '.join(FIXED)}, got {self.name!r}; choose another"
            )
        for setting, value, choices in (
            ("level", self.level, get_args(Level)),
            ("scale", self.scale, get_args(Scale)),
        ):
            if value not in choices:
                raise StoreError(
                    f"{setting} of annotation column {self.name!r} must be one of "
                    f"{', '.join(choices)}, got {value!r}"
                )
        if self.categories and self.scale != "category":
            raise StoreError(
                f"annotation column {self.name!r} has categories, so its scale must be 'category', "
                f"got {self.scale!r}"
            )
        if self.level != "trajectory" and self.scale == "category" and not self.categories:
            raise StoreError(
                f"annotation column {self.name!r} must name its categories, since its array holds "
                "their numbers; got none"
            )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> AnnotationColumn:
        """From JSON.

        Raises:
            StoreError: it is no column's record.
        """
        try:
            return cls(**{**record, "categories": tuple(record["categories"])})
        except (KeyError, TypeError) as error:
            raise StoreError(
                f"{shown(record, 200)} is no annotation column: {error}"
            ) from error


LOSS_REASONS = ("trained", "mask", "stale", "filtered", "off_policy")
CLIPPED = ("no", "low", "high", "dual")

TRAJECTORY_COLUMNS = (
    AnnotationColumn("trained_step", "trajectory", help="The step that trained it."),
    AnnotationColumn(
        "stage", "trajectory", scale="category", help="The stage whose step that was."
    ),
    AnnotationColumn(
        "credit",
        "trajectory",
        scale="diverging",
        help="The algorithm's credit, before it is brought to tokens.",
    ),
    AnnotationColumn(
        "staleness",
        "trajectory",
        "versions",
        help="Published versions that its oldest token lies behind the weights of the step.",
    ),
    AnnotationColumn(
        "advantage",
        "trajectory",
        scale="diverging",
        help="Mean advantage of its trained tokens.",
    ),
    AnnotationColumn(
        "mismatch",
        "trajectory",
        "nats",
        help="Largest distance of the trainer's and the engine's logprob of a trained token.",
    ),
    AnnotationColumn(
        "clip_frac",
        "trajectory",
        help="Share of its trained tokens whose gradient a bound took, in the last pass.",
    ),
    AnnotationColumn(
        "old_logprobs_from",
        "trajectory",
        scale="category",
        help="recomputed: old_logprobs come from a pass before the update; update: the algorithm "
        "recomputes none, and they are the update's own.",
        categories=("recomputed", "update"),
    ),
)
"""What every annotation of training has (``store.detail: basic``)."""

TOKEN_COLUMNS = (
    AnnotationColumn(
        "old_logprobs",
        "token",
        "nats",
        help="Log-probability by the trainer's policy before the step; see old_logprobs_from.",
    ),
    AnnotationColumn(
        "advantages", "token", scale="diverging", help="What the loss multiplies."
    ),
    AnnotationColumn(
        "loss_weight",
        "token",
        help="Weight of the token in the step's loss: the sum of loss_weight * token_loss over "
        "all tokens is the loss of the step's last pass.",
    ),
    AnnotationColumn(
        "loss_reason",
        "token",
        scale="category",
        help="Why the token weighs nothing, or that it was trained.",
        categories=LOSS_REASONS,
    ),
    AnnotationColumn(
        "ratio", "token", scale="log", help="Probability now over before, in the last pass."
    ),
    AnnotationColumn(
        "clipped",
        "token",
        scale="category",
        help="The bound that took the token's gradient in the last pass.",
        categories=CLIPPED,
    ),
    AnnotationColumn(
        "token_loss",
        "token",
        scale="diverging",
        help="Loss of the token in the last pass, correction and KL term included.",
    ),
    AnnotationColumn(
        "correction",
        "token",
        scale="log",
        help="Factor against the sampler's own probabilities, where the algorithm has one.",
    ),
)
"""What ``store.detail: tokens`` adds."""

FULL_COLUMNS = (
    AnnotationColumn(
        "entropy", "token", "nats", help="Of the policy at the token, in the last pass."
    ),
    AnnotationColumn(
        "ref_logprobs",
        "token",
        "nats",
        help="Log-probability by the reference, if there is one.",
    ),
)
"""What ``store.detail: full`` adds."""


Arrays = Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True, eq=False)
class Annotation:
    """What one pass of one learner learned of one trajectory in one step.

    Args:
        trajectory_id: which.
        step: the step that learned it.
        learner: the role that did, or another producer's name.
        pass_index: of the passes over the step's batch, from 0.
        values: JSON by name, such as ``credit``.
        arrays: by the name of a declared column: ``[num_policy_tokens]``, an entry for each POLICY
            token in turn order, or ``[num_turns]``.

    Raises:
        StoreError: the step is no integer from 0.
    """

    trajectory_id: str
    step: int
    learner: str = "actor"
    pass_index: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.step, int) or self.step < 0:
            raise StoreError(
                f"the step of an annotation of {self.trajectory_id!r} must be an integer from 0, "
                f"got {shown(self.step, 80)}; values and arrays are given by name"
            )


@dataclass(frozen=True, slots=True, eq=False)
class StoredAnnotation:
    """An annotation as the files have it.

    Args:
        annotation: what was written.
        recorded_at: seconds since the epoch.
        resumes: of the run before it was written (``Rollbacks``).
    """

    annotation: Annotation
    recorded_at: float
    resumes: int

    @property
    def key(self) -> tuple[str, int, str, int, int, float]:
        """Equal for one record that was found twice, live and sealed."""
        one = self.annotation
        found = (one.trajectory_id, one.step, one.learner, one.pass_index)
        return (*found, self.resumes, self.recorded_at)


def check_annotation(
    annotation: Annotation, columns: Mapping[str, AnnotationColumn]
) -> None:
    """Whether an annotation can be stored.

    Args:
        annotation: to be written.
        columns: those declared, by name.

    Raises:
        StoreError: an array is not declared, not one-dimensional, or holds no numbers; arrays of
            one level differ in length.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for name, array in annotation.arrays.items():
        what = f"annotation {name!r} of trajectory {annotation.trajectory_id!r}"
        column = columns.get(name)
        if column is None or column.level == "trajectory":
            found = (
                "is not declared"
                if column is None
                else "is declared as a trajectory's value"
            )
            raise StoreError(
                f"{what} is an array and {found}; declare it by TrajectoryWriter.declare("
                f"[AnnotationColumn({name!r}, 'token')])"
            )
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise StoreError(
                f"{what} must be a one-dimensional array of numbers, got dtype {array.dtype} and "
                f"shape {array.shape}"
            )
        first, size = sizes.setdefault(column.level, (name, array.size))
        if array.size != size:
            raise StoreError(
                f"{what} must have an entry for each {column.level}, as {first!r} has {size}, got "
                f"{array.size}"
            )


def encode_annotation(stored: StoredAnnotation) -> tuple[dict[str, Any], bytes]:
    """The record of an annotation in a live file, and the bytes of its arrays."""
    one = stored.annotation
    record = {
        "id": one.trajectory_id,
        "step": one.step,
        "learner": one.learner,
        "pass_index": one.pass_index,
        "resumes": stored.resumes,
        "recorded_at": stored.recorded_at,
        "values_json": to_json(one.values),
        "arrays": [
            [name, array.dtype.str, array.size] for name, array in one.arrays.items()
        ],
    }
    return record, b"".join(array.tobytes() for array in one.arrays.values())


def decode_annotation(record: Mapping[str, Any], data: bytes) -> StoredAnnotation:
    """The annotation of a live file's record.

    Raises:
        StoreError: it is no annotation's record, or its arrays are not there.
    """
    try:
        return stored_annotation(record, dict(arrays_of(record, data)))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{shown(record, 200)} is no annotation: {error!r}") from error


def stored_annotation(row: Mapping[str, Any], arrays: Arrays) -> StoredAnnotation:
    """The annotation of a row with the columns ``FIXED``, and its arrays."""
    own = (row["id"], row["step"], row["learner"], row["pass_index"])
    annotation = Annotation(*own, from_json(row["values_json"]), arrays)
    return StoredAnnotation(annotation, row["recorded_at"], row["resumes"])


def arrays_of(record: Mapping[str, Any], data: bytes) -> Iterator[tuple[str, AnyArray]]:
    """The arrays of a live file's record by name, out of their bytes."""
    offset = 0
    for name, dtype, size in record["arrays"]:
        array = np.frombuffer(data, dtype, size, offset)
        offset += array.nbytes
        yield name, array


def merged(annotations: Iterable[Annotation], trajectory_id: str) -> Annotation:
    """Annotations of one trajectory as one: of each name the newest value.

    Where several learners have a name, the value is that of the one that was there first.

    Args:
        annotations: oldest first.
        trajectory_id: of the result, also where there is none.
    """
    found = list(annotations)
    if not found:
        return Annotation(trajectory_id, 0)
    first = found[0].learner
    values: dict[str, Any] = {}
    arrays: dict[str, AnyArray] = {}
    # The sort is stable: the first learner comes last, and within each learner the newest.
    for one in sorted(found, key=lambda one: one.learner == first):
        values.update(one.values)
        arrays.update(one.arrays)
    newest = [one for one in found if one.learner == first][-1]
    return Annotation(trajectory_id, newest.step, first, newest.pass_index, values, arrays)
