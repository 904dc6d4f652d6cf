"""Annotation columns: what a run declares of the values that it learned of trajectories."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from agentrl.errors import StoreError

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
        for field, value, choices in (
            ("level", self.level, get_args(Level)),
            ("scale", self.scale, get_args(Scale)),
        ):
            if value not in choices:
                raise StoreError(
                    f"{field} of annotation column {self.name!r} must be one of "
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
            raise StoreError(f"{record!r:.200} is no annotation column: {error}") from error


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
    AnnotationColumn("advantages", "token", scale="diverging", help="What the loss multiplies."),
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
