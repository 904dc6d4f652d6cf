"""Sampler settings: each built-in task sampler's own section."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from agentrl.types.section import Count, Decay, Fraction, Section


class SamplerSettings(Section):
    """What the settings of every built-in sampler declare about it."""

    plays_epochs: ClassVar[bool] = False
    """Whether it plays each task once an epoch, in an order that ``data.shuffle`` decides."""


class UniformSettings(SamplerSettings):
    """Every task once an epoch; epochs are shuffled (``data.shuffle``)."""

    plays_epochs: ClassVar[bool] = True


class DifficultyBandSettings(SamplerSettings):
    """Tasks that are neither solved nor hopeless: those with a recent solve rate within a band, and
    those that were not played yet. Solved is what ``accuracy/mean`` counts."""

    low: Fraction = 0.1
    """Least solve rate of the band."""
    high: Fraction = 0.9
    """Greatest solve rate of the band."""
    window: Count = 2
    """Groups of a task that its rate is taken over, the newest ones."""
    explore: Fraction = 0.1
    """Share of draws that go to any task, so that rates outside of the band are measured again."""

    @model_validator(mode="after")
    def _check_band(self) -> Self:
        if self.low > self.high:
            raise self.broken(
                "low", f" must be at most high={self.high:g}, got {self.low:g}; lower it"
            )
        return self


class SignalSettings(SamplerSettings):
    """Tasks whose groups had rewards that differ, by Thompson sampling: each task has a Beta
    distribution of the chance that its next group is informative, and the highest sample is
    played."""

    decay: Decay = 0.8
    """Factor of a task's earlier observations at each new one: old evidence fades, since the policy
    changes. A task that never had signal is so tried again."""
