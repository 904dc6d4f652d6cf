"""The player: any policy and any driver, wired up in one place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from agentrl.config import load_config
from agentrl.envs import EnvSpec, ToolEnv
from agentrl.rollouts import EpisodeKey
from agentrl.run.build import LiveObjects, rollout_spec
from agentrl.run.play import Player, ScriptedPolicy
from agentrl.types import Message, Task, ToolCall
from tests.run.tiny_run import CONFIG

PACKAGE = Path(__file__).resolve().parents[2] / "agentrl"


def test_a_player_takes_any_policy_and_any_driver(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    stage = load_config(tmp_path / "config.yaml").resolved_stages()[-1]
    spec = replace(rollout_spec(stage, LiveObjects(), None), parser="none")
    task = Task("t", ({"role": "user", "content": "1 and 2?"},), answer="3")
    call = ToolCall("call_0", "add", {"a": 1, "b": 2})
    said: Message = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}

    async def played(driver: EnvSpec | None) -> list[str]:
        async with Player(spec, ScriptedPolicy([said, "3"])) as player:
            episode = await player.play(task, EpisodeKey(0, 0), driver)
        return [
            str(record.result and record.result.error) for record in episode.turns[0].calls
        ]

    assert asyncio.run(played(None)) == ["None"]  # the stage's own environment has the tool
    assert asyncio.run(played(EnvSpec(ToolEnv))) == ["unknown_tool"]


def test_an_episode_is_wired_up_in_one_place() -> None:
    places = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "EpisodeContext(" in path.read_text(encoding="utf-8")
    ]

    assert places == []  # all call EpisodeContext.of, which makes one by ``cls``
