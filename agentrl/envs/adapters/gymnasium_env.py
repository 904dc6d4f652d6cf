"""Gymnasium environment: plays any ``gymnasium.Env`` of texts, numbers and dicts in messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from agentrl.envs.adapters.seat import NO_ARGS, Moved, SoloSeatEnv, said_aloud
from agentrl.envs.async_env import ENV_THREADS
from agentrl.errors import ConfigError, EnvError
from agentrl.guards.parsing import parse_json
from agentrl.tools import Tool
from agentrl.types import Action, Observation, Task, load_object
from agentrl.types.user_code.load import needed

_UNREAD = object()
_ACT: Mapping[str, Any] = {
    "name": "act",
    "description": "Act in the environment.",
    "parameters": {
        "type": "object",
        "properties": {"action": {"type": "string", "description": "what to do"}},
        "required": ["action"],
        "additionalProperties": False,
    },
}


class GymnasiumEnv(SoloSeatEnv):
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
        env_args: Mapping[str, Any] = NO_ARGS,
        action_names: Sequence[str] = (),
        by_tool: bool = False,
        base_dir: str | Path | None = None,
    ) -> None:
        with needed("GymnasiumEnv", "gymnasium"):
            import gymnasium
        super().__init__(task, env_args)
        make = load_object(env_id, base_dir) if ":" in env_id else None
        args = self.env_args
        made = gymnasium.make(env_id, **args) if make is None else make(**args)
        if not isinstance(made, gymnasium.Env):
            raise EnvError(
                f"GymnasiumEnv.env_id: {env_id!r} must make a gymnasium.Env, got "
                f"{type(made).__name__}"
            )
        self.inner: gymnasium.Env[Any, Any] = made
        self._names = tuple(action_names)
        self._check_spaces()
        if by_tool:
            self.act_by(lambda act: Tool.from_schema(_ACT, act))
        self._closed = False

    def reset(self, *, seed: int) -> Observation:
        """The task's messages and the first observation."""
        seen, _ = self.inner.reset(seed=seed)
        return self.opened(rendered(seen))

    async def moved(self, action: Action) -> Moved:
        """See ``SoloSeatEnv.moved``."""
        called = [str(fields["action"]) for fields in self._called]
        said = called if self.acts_by_tool else [said_aloud(action)]
        chosen = self._read(said[0]) if len(said) == 1 else _UNREAD
        if chosen is _UNREAD:
            return Moved(f"This is no valid action. {self._remedy()}", is_invalid=True)
        seen, reward, terminated, truncated, _ = await ENV_THREADS.run(
            lambda: self.inner.step(chosen)
        )
        truncated = bool(truncated) and not terminated
        return Moved(rendered(seen), float(reward), bool(terminated), truncated)

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
        except (TypeError, ValueError, OverflowError):
            # A value of another kind.
            return _UNREAD

    def _remedy(self) -> str:
        what = (
            f"one of: {', '.join(self._names)}"
            if self._names
            else str(self.inner.action_space)
        )
        how = "Call act once with" if self.acts_by_tool else "Say only"
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
