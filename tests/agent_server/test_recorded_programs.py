"""Requests that Claude Code and Codex sent, cut short, are turns of one sequence.

Each file of ``recorded`` has two requests of a program on a task, the second after one call; of the
second only what differs. Texts are cut, and neither keys nor names of machines are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent_server.served_policy import assert_true, serving
from tests.agent_server.test_served_messages import put_together
from tests.rollouts.bytewise import call, say
from tests.rollouts.speaking_engine import SpeakingEngine

RECORDED = Path(__file__).parent / "recorded"
ROOM = {"max_prompt_tokens": 9000, "max_response_tokens": 3000, "context_tokens": 12000}
ASKS = {
    "claude_code": "<think>hmm</think>let me see"
    + call("Bash", command="echo hello", description="say"),
    "codex": "<think>hmm</think>" + call("exec_command", cmd="echo hello"),
}
IGNORED = {
    "claude_code": {
        *("metadata", "thinking", "context_management", "effort", "anthropic-beta"),
        "cache_control",
    },
    "codex": {
        *("tools", "reasoning", "store", "include", "prompt_cache_key", "client_metadata"),
    },
}


def recorded(name: str) -> list[dict[str, Any]]:
    first, second = json.loads((RECORDED / f"{name}.json").read_text())["requests"]
    return [first, {**second, "body": {**first["body"], **second["body"]}}]


@pytest.mark.parametrize("name", ASKS)
async def test_a_recorded_program_plays_one_sequence(name: str) -> None:
    engine = SpeakingEngine([say(ASKS[name]), say("done")])
    answers = []
    async with serving(engine, **ROOM) as served:
        episode = await served.open()
        for request in recorded(name):
            url = f"/episodes/{episode.id}{request['path']}"
            answer = await served.http.post(
                url, json=request["body"], headers=request["headers"]
            )
            assert answer.status_code == 200, answer.text
            answers.append(answer.text)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert_true(trajectory, engine)
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert "hello" in record.result.content
    for turn in trajectory.turns:
        assert turn.info["ignored"].keys() == IGNORED[name]
        assert "breaches" not in turn.info
    if name == "codex":
        left_out = ["multi_agent_v1 (namespace)", "web_search (web_search)"]
        assert trajectory.turns[0].info["ignored"]["tools"] == left_out
        assert '"type": "response.completed"' in answers[1]
    else:
        assert put_together(answers[1])["content"] == [{"type": "text", "text": "done"}]
