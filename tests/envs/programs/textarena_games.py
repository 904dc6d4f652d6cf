"""Plays games of the package textarena; it is given the folder of the packages that lack here."""

from __future__ import annotations

import json
import sys

sys.path.append(sys.argv[1])

from agentrl.envs import EnvSpec, TextArenaEnv, check_env
from agentrl.errors import ConfigError
from agentrl.types import Action, Task

GAMES = {
    "TicTacToe-v0": 2,
    "TicTacToe-v0-raw": 2,
    "KuhnPoker-v0-raw": 2,
    "ConnectFour-v0-raw": 2,
    "IteratedPrisonersDilemma-v0-raw": 2,
    "Blackjack-v0-raw": 1,
}
TASK = Task("t")

for env_id, num_players in GAMES.items():
    check_env(EnvSpec(TextArenaEnv, {"env_id": env_id, "num_players": num_players}), TASK)

env = TextArenaEnv(TASK, env_id="TicTacToe-v0")
seen = [env.reset(seed=0)]
for cell in (0, 3, 1, 4, 2):
    text = f"[{cell}]"
    result = env.step(Action(text, {"role": "assistant", "content": text}))
    seen.append(result.observation)
try:
    TextArenaEnv(TASK, env_id="TicTacTo-v0-raw")
except ConfigError as error:
    unknown = str(error)
report = {
    "checked": len(GAMES),
    "agents": [observation.agent for observation in seen[:-1]],
    "second": seen[1].messages[0]["content"],
    "third": seen[2].messages[0]["content"],
    "reward": result.reward,
    "unknown": unknown,
}
sys.stdout.write(json.dumps(report) + "\n")
