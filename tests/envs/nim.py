"""A game with TextArena's interface: players take 1 to 3 sticks, and who takes the last one wins.

The number of sticks, and a stick that the wind takes now and then, are drawn from Python's own
generator, as TextArena's games do.
"""

from __future__ import annotations

import random
import re
from typing import Any


class Nim:
    """Args:
    as_text: whether a player is told the game from its beginning each time, as text.
    sticks: at the beginning; drawn by default.
    """

    def __init__(self, as_text: bool = False, sticks: int | None = None) -> None:
        self.as_text = as_text
        self.given = sticks

    def reset(self, num_players: int, seed: int | None = None) -> None:
        random.seed(seed)
        self.num_players = num_players
        self.sticks = self.given or random.randint(4, 30)
        self.player = 0
        self.errors = 0
        self.rewards: dict[int, float] | None = None
        self.new: dict[int, list[Any]] = {n: [] for n in range(num_players)}
        self.all: dict[int, str] = dict.fromkeys(range(num_players), "")
        for n in range(num_players):
            self.new[n].append(
                (-1, f"You are Player {n}. There are {self.sticks}.", "PROMPT")
            )

    def get_observation(self) -> tuple[int, Any]:
        new, self.new[self.player] = self.new[self.player], []
        if not self.as_text:
            return self.player, new
        names = {-1: "GAME"}
        told = "".join(f"\n[{names.get(n, f'Player {n}')}] {text}" for n, text, _ in new)
        self.all[self.player] += told
        return self.player, self.all[self.player]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._tell(self.player, action)
        found = re.search(r"\[(\d+)\]", action)
        taken = int(found.group(1)) if found else 0
        if not 1 <= taken <= min(3, self.sticks):
            return self._invalid(), {}
        self.errors = 0
        self.sticks -= taken
        if not self.sticks:
            lost = -1.0 / max(1, self.num_players - 1)
            self.rewards = {
                n: 1.0 if n == self.player else lost for n in range(self.num_players)
            }
            return True, {}
        if self.given is None and random.random() < 0.5 and self.sticks > 1:
            self.sticks -= 1
        self._tell(-1, f"{self.sticks} are left.")
        self.player = (self.player + 1) % self.num_players
        return False, {}

    def close(self) -> tuple[dict[int, float] | None, dict[int, Any]]:
        return self.rewards, {
            n: {"invalid_move": n == self.player and self.errors > 1} for n in self.new
        }

    def get_board_str(self) -> str:
        return "|" * self.sticks

    def _invalid(self) -> bool:
        self.errors += 1
        if self.errors > 1:
            self.rewards = {n: -1.0 if n == self.player else 0.0 for n in self.new}
            return True
        self._tell(-1, "That is no move.")
        return False

    def _tell(self, sender: int, text: str) -> None:
        for n in self.new:
            self.new[n].append((sender, text, "ANY"))


class Unpaid(Nim):
    """Gives no rewards."""

    def close(self) -> Any:
        return None, {}
