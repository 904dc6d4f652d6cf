"""What an environment is: one instance an episode, with Gymnasium's verbs and meanings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any

from agentrl.types import Action, Observation, StepResult

__all__ = ["Env"]


class Env(ABC):
    """The world of one episode. It acts on parsed messages, never on tokens, and owns its tools and its sandbox.

    ``reset`` is called once, then ``step`` until a result ends the episode, then ``close`` in any case. Each may be
    sync or async; sync methods run in threads, one call at a time, not always in the same thread. What a method
    raises ends the episode as failed, so tell the model about its own mistakes in the observation instead.

    ``AsyncEnv`` holds an Env to this; ``check_env`` tries it out.
    """

    @abstractmethod
    def reset(self, *, seed: int) -> Observation | Awaitable[Observation]:
        """The opening conversation and the tools on offer.

        Args:
            seed: all that is random here comes from it: siblings of a group get the same.
        """

    @abstractmethod
    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """What the assistant's message caused.

        ``terminated`` says that the task itself came to its end, ``truncated`` that something cut it; where neither
        holds, the observation has at least one message. Every call and problem of the action is answered.
        """

    def close(self) -> Awaitable[None] | None:
        """Free everything; runs after the rubric, also when ``reset`` failed or never ran, and maybe twice."""
        return None

    def snapshot(self) -> Mapping[str, Any] | None:
        """The state for people to look at, JSON; None where there is nothing to see."""
        return None
