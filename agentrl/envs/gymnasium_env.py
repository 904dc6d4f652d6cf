"""Gymnasium environment: plays any ``gymnasium.Env`` of texts, numbers and dicts in messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from agentrl.envs.async_env import ENV_THREADS
from agentrl.envs.env import Env
from agentrl.errors import ConfigError, EnvError
from agentrl.guards.bounded_json import parse_json
from agentrl.tools import ToolExecutor, tool
from agentrl.types import Action, Message, Observation, StepResult, Task, load_object
from agentrl.types.messages import without_thoughts
from agentrl.types.user_code.optional_packages import needed

_UNREAD = object()
_NO_ARGS: Mapping[str, Any] = {}


class GymnasiumEnv(Env):
    """A ``gymnasium.Env`` whose observations are messages and whose actions are words of the model.

    Its reward, ``terminated`` and ``truncated`` are passed on as they are. An action that is not in
    the action space is told to the model, has reward 0 and costs a turn; the inner environment does
    not see it. Needs ``pip install 'gymnasium>=1.0'``.

    Args:
        task: its messages open the conversation, before the first observation;
            ``info["env_args"]`` are joined to ``env_args``.
        env_id: a registered name such as ``FrozenLake-v1``, or ``file.py:name`` of a class or
            function that makes a ``gymnasium.Env``.
        env_args: its keyword arguments.
        action_names: of a Discrete action space, in the order of its numbers; the model then says
            names.
        by_tool: whether the model acts by the tool ``act``, instead of by its message.
        max_turns: assistant's messages after which the episode is truncated.
        base_dir: the folder that a relative path in ``env_id`` starts from.

    Raises:
        ConfigError: gymnasium is missing, a space is not supported, or the names do not fit it.
        EnvError: ``env_id`` makes no ``gymnasium.Env``.
    """

    def __init__(
        self,
        task: Task,
        *,
        env_id: str,
        env_args: Mapping[str, Any] = _NO_ARGS,
        action_names: Sequence[str] = (),
        by_tool: bool = False,
        max_turns: int | None = None,
        base_dir: str | Path | None = None,
    ) -> None:
        with needed("GymnasiumEnv", "gymnasium"):
            import gymnasium
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"GymnasiumEnv.max_turns must be at least 1, got {max_turns}")
        self.task = task
        args = {**env_args, **task.info.get("env_args", {})}
        make = load_object(env_id, base_dir) if ":" in env_id else None
        made = gymnasium.make(env_id, **args) if make is None else make(**args)
        if not isinstance(made, gymnasium.Env):
            raise EnvError(
                f"GymnasiumEnv.env_id: {env_id!r} must make a gymnasium.Env, got "
                f"{type(made).__name__}"
            )
        self.inner: gymnasium.Env[Any, Any] = made
        self._names = tuple(action_names)
        self._check_spaces()
        self._executor = ToolExecutor([tool(self.act)] if by_tool else [])
        self._called: list[str] = []
        self._max_turns = max_turns
        self._num_turns = 0
        self._closed = False

    def act(self, action: str) -> str:
        """Act in the environment.

        Args:
            action: what to do
        """
        self._called.append(action)
        return "Done."

    def reset(self, *, seed: int) -> Observation:
        """The task's messages and the first observation."""
        seen, _ = self.inner.reset(seed=seed)
        first: Message = {"role": "user", "content": rendered(seen)}
        return Observation(messages=(*self.task.messages, first), tools=self._executor.specs)

    async def step(self, action: Action) -> StepResult:
        """The inner environment's step, or what was wrong with the action.

        ``info["invalid_action"]`` marks a turn that was no action.
        """
        self._num_turns += 1
        self._called.clear()
        records = await self._executor.run(
            action.tool_calls, action.problems, episode_id=self.episode_id
        )
        answers = tuple(record.result.message() for record in records if record.result)
        aloud = without_thoughts(str(action.message["content"] or ""))
        said = self._called if self._executor.specs else [aloud]
        chosen = self._read(said[0]) if len(said) == 1 else _UNREAD
        reward = 0.0
        terminated = truncated = False
        info: dict[str, Any] = {}
        if chosen is _UNREAD:
            info["invalid_action"] = True
            told = f"This is no valid action. {self._remedy()}"
        else:
            seen, given, terminated, truncated, _ = await ENV_THREADS.run(
                lambda: self.inner.step(chosen)
            )
            terminated = bool(terminated)
            truncated = bool(truncated) and not terminated
            reward = float(given)
            told = rendered(seen)
        if not terminated and not truncated and self._num_turns == self._max_turns:
            truncated = True
            info["reason"] = "max_turns"
        observation = Observation(messages=(*answers, {"role": "user", "content": told}))
        return StepResult(observation, reward, terminated, truncated, records, info)

    def close(self) -> None:
        """Close the inner environment, once."""
        if not self._closed:
            self._closed = True
            self.inner.close()

    def snapshot(self) -> Mapping[str, Any] | None:
        """The inner environment's picture where its ``render_mode`` is ``ansi``."""
        if self.inner.render_mode != "ansi":
            return None
        return {"form": "text", "text": str(self.inner.render())}

    def state_dict(self) -> None:
        """None: a ``gymnasium.Env`` need not survive pickling, so a resumed run begins again."""
        return None

    def _check_spaces(self) -> None:
        from gymnasium import spaces

        for name in ("observation_space", "action_space"):
            if found := _unsupported(space := getattr(self.inner, name)):
                raise ConfigError(
                    f"GymnasiumEnv: {name} must be of Text, Discrete, Dict and Tuple spaces, got "
                    f"{found} in {space}; wrap the environment in one that gives text"
                )
        actions = self.inner.action_space
        num = int(actions.n) if isinstance(actions, spaces.Discrete) else 0
        if self._names and not len(set(self._names)) == len(self._names) == num:
            raise ConfigError(
                f"GymnasiumEnv.action_names needs a different name for each of the {num} actions "
                f"of {actions}, got {list(self._names)}"
            )

    def _read(self, text: str) -> Any:
        from gymnasium import spaces

        space: Any = self.inner.action_space
        words = text.strip()
        chosen: Any = words
        if isinstance(space, spaces.Discrete):
            if self._names:
                if words not in self._names:
                    return _UNREAD
                return int(space.start) + self._names.index(words)
            if not words.removeprefix("-").isdecimal() or len(words) > 18:
                return _UNREAD
            chosen = int(words)
        elif not isinstance(space, spaces.Text):
            try:
                chosen = parse_json(words)
            except ValueError:
                return _UNREAD
        try:
            return chosen if space.contains(chosen) else _UNREAD
        except (TypeError, ValueError, OverflowError):  # a value of another kind
            return _UNREAD

    def _remedy(self) -> str:
        what = f"one of: {', '.join(self._names)}" if self._names else str(self.inner.action_space)
        how = "Call act once with" if self._executor.specs else "Say only"
        return f"{how} {what}."


def rendered(seen: Any) -> str:
    """An observation as text: a text as it is, anything else as JSON."""
    if isinstance(seen, str):
        return seen
    plain = to_jsonable_python(seen, fallback=lambda value: value.tolist())
    return json.dumps(plain, ensure_ascii=False)


def _unsupported(space: Any) -> str:
    """The class of the first space within that is not supported; empty where there is none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return next((found for part in inner if (found := _unsupported(part))), "")
    plain = isinstance(space, spaces.Text | spaces.Discrete)
    return "" if plain else type(space).__name__
