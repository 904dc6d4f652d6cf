"""Wrappers: limits, shaped rewards and cut observations around any environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from agentrl.envs.async_env import ENV_THREADS, call_env
from agentrl.envs.env import Env
from agentrl.errors import ConfigError, EnvError
from agentrl.tools import TokenEnds
from agentrl.tools.execution.outputs import clip_text
from agentrl.types import Action, Message, Observation, StepResult, load_object
from agentrl.types.clock import WaitClock, counted_by
from agentrl.types.section import Arguments, Section
from agentrl.types.user_code.load import built_in, load_function
from agentrl.types.user_code.values import private_copy
from agentrl.types.user_code.wall import call_user, failed_as

T = TypeVar("T")


class Wrapper(Env):
    """An environment around another one, which it passes everything on to.

    A subclass changes ``opened`` or ``stepped``, which run in threads. What it keeps of an episode
    are picklable attributes; they go through a checkpoint with the inner environment's state, all
    of them unless ``kept`` names some.

    Args:
        env: the inner environment; attributes that a wrapper lacks are its own.
    """

    def __init__(self, env: Env) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        # Not made yet.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Env:
        """See ``Env.unwrapped``."""
        return self.env.unwrapped

    @property
    def episode_id(self) -> str:
        """See ``Env``."""
        return self.env.episode_id

    @episode_id.setter
    def episode_id(self, name: str) -> None:
        self.env.episode_id = name

    def use_tokenizer(self, token_ends: TokenEnds) -> None:
        """See ``Env.use_tokenizer``."""
        self.env.use_tokenizer(token_ends)

    async def reset(self, *, seed: int) -> Observation:
        """See ``Env.reset``."""
        observation: Observation = await call_env(self.env, "reset", seed=seed)
        return await self._changed(self.opened, observation)

    async def step(self, action: Action) -> StepResult:
        """See ``Env.step``."""
        result: StepResult = await call_env(self.env, "step", action)
        return await self._changed(self.stepped, action, result)

    async def _changed(self, change: Callable[..., T], *given: Any) -> T:
        """What a change makes of it, in a thread: it may be a user's."""
        failed = failed_as(EnvError, f"{type(self).__name__}.{change.__name__} raised")
        made: T = await call_user(
            partial(change, *given), failed=failed, in_thread=ENV_THREADS.run
        )
        return made

    def opened(self, observation: Observation) -> Observation:
        """What becomes of the opening observation."""
        return observation

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        """What becomes of a step's result."""
        return result

    async def close(self) -> None:
        """See ``Env.close``."""
        await call_env(self.env, "close")

    def solution(self) -> Any:
        """See ``Env.solution``."""
        return self.env.solution()

    def snapshot(self) -> Mapping[str, Any] | None:
        """See ``Env.snapshot``."""
        return self.env.snapshot()

    def state_dict(self) -> Mapping[str, Any] | None:
        """The inner environment's state, and what the wrapper keeps itself."""
        inner, attributes = self.env.state_dict(), super().state_dict()
        if inner is None or attributes is None:
            return None
        # Of this class alone: a class that it comes from does not know what it adds.
        kept = vars(type(self)).get("kept")
        own = {
            name: value
            for name, value in attributes.items()
            # The inner environments have their own state.
            if (kept is None or name in kept) and not isinstance(value, Env)
        }
        return {"env": inner, "own": own}

    kept: tuple[str, ...] | None = None
    """Names of the attributes that a checkpoint keeps, where it does not keep all: those of this
    class, which a subclass does not inherit.
    """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``Env.load_state_dict``."""
        self.env.load_state_dict(state["env"])
        vars(self).update(state["own"])


class _Limit(Wrapper):
    """Truncates an episode that has spent a limit and goes on; that is the policy's doing."""

    reason: str

    def is_spent(self, action: Action, result: StepResult) -> bool:
        """Whether nothing is left after a step."""
        raise NotImplementedError

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        """See ``Wrapper.stepped``."""
        spent = self.is_spent(action, result)
        if not spent or result.terminated or result.truncated:
            return result
        return replace(result, truncated=True, info={**result.info, "reason": self.reason})


class TurnLimit(_Limit):
    """Truncates an episode after so many turns (``max_turns``).

    Args:
        env: the inner environment.
        max_turns: of all agents together.
    """

    reason = "max_turns"
    kept = ("num_turns",)

    def __init__(self, env: Env, max_turns: int) -> None:
        super().__init__(env)
        self.max_turns = _at_least_1("TurnLimit.max_turns", max_turns)
        self.num_turns = 0

    def is_spent(self, action: Action, result: StepResult) -> bool:
        """See ``_Limit.is_spent``."""
        self.num_turns += 1
        return self.num_turns >= self.max_turns


class TokenLimit(_Limit):
    """Truncates an episode whose assistant has written so many tokens (``max_written_tokens``), by
    the model's own tokenizer. Markers count as ordinary text, as which a policy may write them too.

    Args:
        env: the inner environment.
        max_tokens: of all turns together.
    """

    reason = "max_written_tokens"
    kept = ("num_tokens",)

    def __init__(self, env: Env, max_tokens: int) -> None:
        super().__init__(env)
        self.max_tokens = _at_least_1("TokenLimit.max_tokens", max_tokens)
        self.num_tokens = 0
        self._token_ends: TokenEnds | None = None

    def use_tokenizer(self, token_ends: TokenEnds) -> None:
        """See ``Env.use_tokenizer``."""
        self._token_ends = token_ends
        super().use_tokenizer(token_ends)

    def is_spent(self, action: Action, result: StepResult) -> bool:
        """See ``_Limit.is_spent``.

        Raises:
            EnvError: there is no tokenizer, as with an engine that takes messages.
        """
        if self._token_ends is None:
            raise EnvError(
                "TokenLimit counts by the policy's tokenizer, and this engine has none; use "
                "TurnLimit or TimeLimit here",
                retryable=False,
            )
        self.num_tokens += len(self._token_ends(action.text))
        return self.num_tokens >= self.max_tokens


class TimeLimit(_Limit):
    """Truncates an episode whose steps took so many seconds (``max_seconds``), without generation
    and without waits that others cause, such as for a sandbox.

    It looks at the time after each step; ``rollout.turn_timeout_s`` ends a step that hangs.

    Args:
        env: the inner environment.
        max_seconds: of all steps together.
    """

    reason = "max_seconds"
    kept = ("seconds",)

    def __init__(self, env: Env, max_seconds: float) -> None:
        super().__init__(env)
        if not max_seconds > 0:
            raise ConfigError(
                f"TimeLimit.max_seconds must be more than 0, got {max_seconds!r}"
            )
        self.max_seconds = max_seconds
        self.seconds = 0.0

    async def step(self, action: Action) -> StepResult:
        """See ``Env.step``."""
        waits = WaitClock()
        start = time.monotonic()
        with counted_by(waits):
            result: StepResult = await call_env(self.env, "step", action)
        self.seconds += time.monotonic() - start - waits.wait_s
        return await self._changed(self.stepped, action, result)

    def is_spent(self, action: Action, result: StepResult) -> bool:
        """See ``_Limit.is_spent``."""
        return self.seconds >= self.max_seconds


class RewardShaping(Wrapper):
    """Changes the reward of each step.

    Args:
        env: the inner environment.
        function: of the action and the step's result, which gives the reward in the place of
            ``result.reward``: a function, or text as ``file.py:name``.
        base_dir: the folder that a relative path starts from.
    """

    kept = ()

    def __init__(
        self,
        env: Env,
        function: Callable[[Action, StepResult], float | Mapping[str, float]] | str,
        base_dir: str | Path | None = None,
    ) -> None:
        super().__init__(env)
        self._function: Callable[[Action, StepResult], Any] = (
            load_object(function, base_dir) if isinstance(function, str) else function
        )

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        """See ``Wrapper.stepped``."""
        return replace(result, reward=self._function(action, result))


class CutObservations(Wrapper):
    """Cuts the middle out of the messages of a step that are longer than ``max_chars``.

    The opening stays whole, and so do parts that are no text.

    Args:
        env: the inner environment.
        max_chars: of a message.
    """

    kept = ()

    def __init__(self, env: Env, max_chars: int) -> None:
        super().__init__(env)
        self.max_chars = _at_least_1("CutObservations.max_chars", max_chars)

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        """See ``Wrapper.stepped``."""
        messages = tuple(map(self._cut, result.observation.messages))
        return replace(result, observation=replace(result.observation, messages=messages))

    def _cut(self, message: Message) -> Message:
        content: Any = message["content"]
        if isinstance(content, str):
            content = clip_text(content, self.max_chars)[0]
        elif isinstance(content, list):
            content = [
                {**part, "text": clip_text(part["text"], self.max_chars)[0]}
                if isinstance(part.get("text"), str)
                else part
                for part in content
            ]
        return {**message, "content": content}


BUILT_IN: Mapping[str, type[Wrapper]] = {
    "turn_limit": TurnLimit,
    "token_limit": TokenLimit,
    "time_limit": TimeLimit,
    "reward_shaping": RewardShaping,
    "cut_observations": CutObservations,
}
"""The wrappers that a configuration names without a module."""


class WrapperReference(Section):
    """One wrapper around the environment. A plain text is short for ``function`` alone."""

    function: str
    """``turn_limit``, ``token_limit``, ``time_limit``, ``reward_shaping``, ``cut_observations``, or
    ``file.py:name`` of a class or function that takes an Env and gives one."""
    args: Arguments = Field(default_factory=dict)
    """Its keyword arguments."""

    def load(self, base_dir: str | Path | None) -> Callable[..., Any]:
        """The class or function.

        Raises:
            ConfigError: the text names nothing, or no function.
        """
        own = built_in(self.function, BUILT_IN, _broken)
        return own or load_function(self.function, base_dir, _broken, "an Env")

    def wrap(self, env: Env, base_dir: str | Path | None) -> Env:
        """``env`` in the wrapper.

        Raises:
            ConfigError: the text names nothing, or the wrapper refuses its arguments.
            EnvError: it gave no Env.
        """
        make = self.load(base_dir)
        args = private_copy(dict(self.args))
        if make is RewardShaping:
            args["base_dir"] = base_dir
        try:
            wrapped = make(env, **args)
        except TypeError as error:
            raise _broken(
                f": {self.function} cannot be made with the arguments "
                f"{', '.join(self.args) or 'none'}: {error}"
            ) from error
        if not isinstance(wrapped, Env):
            raise EnvError(
                f"EnvConfig.wrappers: {self.function} must give an Env, got "
                f"{type(wrapped).__name__}; let it subclass agentrl.envs.Wrapper"
            )
        return wrapped


def wrapped(
    env: Env, wrappers: Sequence[WrapperReference], base_dir: str | Path | None
) -> Env:
    """``env`` in its wrappers, the first one innermost."""
    for wrapper in wrappers:
        env = wrapper.wrap(env, base_dir)
    return env


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"EnvConfig.wrappers{rule}", fields=["EnvConfig.wrappers"])


def _at_least_1(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a number of at least 1, got {value!r}")
    return value
