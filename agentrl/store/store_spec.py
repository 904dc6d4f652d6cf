"""Store spec: which trajectories a run keeps, and what of them beside their tokens."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from agentrl.types.section import Count, Fraction, Natural, Section, Words

Detail: TypeAlias = Literal["basic", "tokens", "full"]
States: TypeAlias = Literal["off", "end", "turn"]
NUM_ALTERNATIVES = 5
"""Most likely tokens that are kept beside each sampled one at ``detail: full``."""


_ALWAYS = ("baseline", "eval")


class KeepSpec(Section):
    """Which trajectories stay, with their annotations, once their step is old.

    One stays where any of the rules below fits it, and where a person wrote a note on it. Without a
    rule all stay (docs/run-directory.md).
    """

    last_steps: Natural | None = None
    """So many of each stage's newest steps stay whole; the rules apply to older ones. Without it
    they apply as soon as a step has ended."""
    every_steps: Count | None = None
    """Each step whose number this divides stays whole."""
    share: Fraction | None = None
    """This share of the groups stays, each with all its rollouts; drawn by stage, label and group
    index, so that a resumed run keeps the same."""
    reward_below: float | None = None
    """Trajectories with less reward stay."""
    reward_above: float | None = None
    """Trajectories with more reward stay."""
    labels: Words = _ALWAYS
    """Trajectories of these purposes (``train``, ``baseline``, ``eval``) or evaluation labels stay;
    ``code/after`` is also ``code/after/greedy``. They alone drop nothing."""

    @property
    def drops(self) -> bool:
        """Whether there is a rule, so that what fits none is dropped."""
        rules = (self.last_steps, self.every_steps, self.share, self.reward_below)
        return any(rule is not None for rule in (*rules, self.reward_above))

    @model_validator(mode="after")
    def _check(self) -> Self:
        below, above = self.reward_below, self.reward_above
        if below is not None and above is not None and below > above:
            raise self.broken(
                "reward_below",
                f" must be at most reward_above, else every reward stays, got {below:g} and "
                f"{above:g}; lower it",
            )
        if "" in self.labels:
            raise self.broken(
                "labels",
                " must be purposes or evaluation labels, got an empty one; remove it",
            )
        if self.labels != _ALWAYS and not self.drops:
            raise self.broken(
                "labels",
                " alone drops nothing: without another rule all trajectories stay, got "
                f"{list(self.labels)}; set share: 0.0 beside it to keep these alone",
            )
        return self


class StoreSpec(Section):
    """What the run keeps of each trajectory beside its tokens."""

    detail: Detail = "tokens"
    """What training learned of each trajectory (docs/annotations.md has the columns). ``basic``
    keeps its step and credit; ``tokens`` also the numbers that made the loss, for each sampled
    token, 22 bytes before compression; ``full`` also entropies and the reference's logprobs, 30
    bytes, and the engine's 5 most likely tokens in its place, 30 bytes more; of a mixture also the
    experts that each token went through."""
    states: States = "off"
    """When the changed files of an episode's sandbox are kept: after each ``turn``, at the ``end``,
    or never. At most 1 MiB a file, 16 MiB an episode, and 1,000 files a turn (docs/envs.md)."""
    keep: KeepSpec = Field(default_factory=KeepSpec)
    """Which trajectories stay once their step is old; all by default."""
