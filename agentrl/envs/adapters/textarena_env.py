"""TextArena environment: plays a text game of several players, each one an agent of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from agentrl.envs.adapters.seat import NO_ARGS, SeatEnv, said_aloud
from agentrl.errors import ConfigError, EnvError, did_you_mean
from agentrl.types import Action, Message, Observation, StepResult, Task, load_object
from agentrl.types.env import MAIN_AGENT

_VERBS = ("reset", "get_observation", "step", "close")
_GAME = -1
"""Who speaks for the game in an observation of messages."""

_DRAWING = threading.Lock()
"""Held while a game runs: all games of a process draw from Python's and NumPy's own generators."""


class TextArenaEnv(SeatEnv):
    """A game with TextArena's interface: ``reset(num_players, seed)``, ``get_observation()``,
    ``step(text)`` and ``close()``, which gives the players' rewards.

    The game decides whose turn is next, and what becomes of an invalid move. Its rewards count at
    its end, each for its player. ``textarena`` itself is needed for registered games alone.

    Args:
        task: its messages open each player's conversation, before its first observation;
            ``info["env_args"]`` are joined to ``env_args``.
        env_id: a registered name such as ``TicTacToe-v0-raw``; or a class or function that makes a
            game, also as ``file.py:name``.
        num_players: how many play.
        players: the agents' names, in the order of the players; by default ``player_0`` and so on,
            ``main`` for a game of one.
        shuffle_players: which agent is which player is drawn from the episode's seed, the same one
            for all rollouts of a group.
        env_args: the keyword arguments of the game.
        base_dir: the folder that a relative path in ``env_id`` starts from.

    Raises:
        ConfigError: textarena is missing, no such game is registered, or the names do not fit the
            players.
        EnvError: ``env_id`` makes nothing with that interface.
    """

    def __init__(
        self,
        task: Task,
        *,
        env_id: str | Callable[..., Any],
        num_players: int = 2,
        players: Sequence[str] = (),
        shuffle_players: bool = False,
        env_args: Mapping[str, Any] = NO_ARGS,
        base_dir: str | Path | None = None,
    ) -> None:
        super().__init__(task, env_args)
        if num_players < 1:
            raise ConfigError(
                f"TextArenaEnv.num_players must be at least 1, got {num_players}"
            )
        alone = [MAIN_AGENT] if num_players == 1 else []
        names = list(players) or alone or [f"player_{n}" for n in range(num_players)]
        if not len(set(names)) == len(names) == num_players:
            raise ConfigError(
                f"TextArenaEnv.players needs a different name for each of the {num_players} "
                f"players, got {names}"
            )
        self.inner: Any = _made(env_id, self.env_args, base_dir)
        self.players = tuple(names)
        self._shuffle = shuffle_players
        self._opened: set[int] = set()
        self._shown: dict[int, str] = {}
        self._drawn: Any = None
        self._runs = False

    def reset(self, *, seed: int) -> Observation:
        """The opening of the player who begins."""
        if self._shuffle:
            self.players = tuple(
                random.Random(seed).sample(self.players, len(self.players))
            )
        with self._drawing(seed):
            self._runs = True
            self.inner.reset(num_players=len(self.players), seed=seed)
            return self._observed()

    def step(self, action: Action) -> StepResult:
        """What the player whose turn is next is told, or the game's end with its rewards.

        ``info["game"]`` has what the game itself says of each player at its end.
        """
        with self._drawing():
            done, _ = self.inner.step(said_aloud(action))
            if done:
                return self._ended()
            return StepResult(self._observed())

    def close(self) -> None:
        """Close the game, unless it has ended."""
        if self._runs:
            self._runs = False
            self.inner.close()

    def snapshot(self) -> Mapping[str, Any] | None:
        """The board as text, of a game that has one (``get_board_str``)."""
        board = getattr(self.inner, "get_board_str", None)
        return {"form": "text", "text": str(board())} if self._runs and board else None

    @contextmanager
    def _drawing(self, seed: int | None = None) -> Iterator[None]:
        """What the game draws within comes from the episode's seed alone, whatever else draws in
        this process between two turns.
        """
        with _DRAWING:
            outside = random.getstate(), np.random.get_state()
            if seed is None:
                self._set_drawn(self._drawn)
            else:
                random.seed(seed)
                # NumPy takes 32 bits of a seed.
                np.random.seed(seed % 2**32)
            try:
                yield
            finally:
                self._drawn = random.getstate(), np.random.get_state()
                self._set_drawn(outside)

    @staticmethod
    def _set_drawn(states: Any) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])

    def _observed(self) -> Observation:
        player, seen = self.inner.get_observation()
        agent = self._agent(player, "get_observation")
        opening = () if player in self._opened else self.task.messages
        self._opened.add(player)
        told: Message = {"role": "user", "content": self._told(player, seen)}
        return Observation(messages=(*opening, told), agent=agent)

    def _told(self, player: int, seen: str | Sequence[tuple[Any, ...]]) -> str:
        """What is new to a player, who knows what it said itself.

        A text that goes on from the player's last one is cut to what is new: wrappers of TextArena
        tell a game from its beginning each time, and the player has its history already.
        """
        if isinstance(seen, str):
            known = self._shown.get(player, "")
            self._shown[player] = seen
            told = seen.removeprefix(known).strip("\n")
            return told if told.strip() else seen
        texts = [
            str(text) if sender == _GAME else f"[Player {sender}] {text}"
            for sender, text, *_ in seen
            if sender != player
        ]
        return "\n".join(texts) or "It is your turn."

    def _ended(self) -> StepResult:
        self._runs = False
        rewards, game_info = self.inner.close()
        if not isinstance(rewards, Mapping) or not rewards:
            raise EnvError(
                f"TextArenaEnv: {type(self.inner).__name__} ended, and its close() must give the "
                f"rewards of the players, as {{0: 1.0, 1: -1.0}}, got {rewards!r}"
            )
        reward = {self._agent(player, "close"): float(r) for player, r in rewards.items()}
        told = game_info if isinstance(game_info, Mapping) else {}
        game = {
            self._agent(player, "close"): to_jsonable_python(own, fallback=str)
            for player, own in told.items()
        }
        return StepResult(Observation(), reward, terminated=True, info={"game": game})

    def _agent(self, player: Any, verb: str) -> str:
        if player not in range(len(self.players)):
            raise EnvError(
                f"TextArenaEnv: {verb}() names player {player!r}, where num_players="
                f"{len(self.players)} play; raise num_players"
            )
        agent: str = self.players[player]
        return agent


def _made(
    env_id: str | Callable[..., Any], args: Mapping[str, Any], base_dir: str | Path | None
) -> Any:
    if not isinstance(env_id, str):
        made = env_id(**args)
    elif ":" in env_id:
        made = load_object(env_id, base_dir)(**args)
    else:
        try:
            # No dependency of ours: a user brings it.
            textarena = import_module("textarena")
        except ImportError as error:
            raise ConfigError(
                f"TextArenaEnv.env_id={env_id!r} is a game of textarena; pip install textarena, or "
                "name a game of your own as file.py:name"
            ) from error
        known = textarena.envs.registration.ENV_REGISTRY
        if env_id not in known:
            raise ConfigError(
                f"TextArenaEnv.env_id: textarena has no game {env_id!r}"
                f"{did_you_mean(env_id, known)}"
            )
        made = textarena.make(env_id, **args)
    if missing := [verb for verb in _VERBS if not callable(getattr(made, verb, None))]:
        raise EnvError(
            f"TextArenaEnv.env_id: {env_id!r} must make a game with {', '.join(_VERBS)}, got "
            f"{type(made).__name__} without {', '.join(missing)}"
        )
    return made
