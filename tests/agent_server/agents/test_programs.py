"""Claude Code and Codex from their packages play an episode: each runs the policy's call, and its
history stays one sequence.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.envs import Rubric
from tests.agent_server.agents.conftest import play_command
from tests.rollouts.bytewise import call, length_reward

# not in the gate: the programs are 808 MB
pytestmark = [pytest.mark.agents, pytest.mark.tooling]

CODEX = """\
exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m policy \
  -c model_provider=agentrl -c model_providers.agentrl.name=agentrl \
  -c model_providers.agentrl.wire_api=responses -c model_providers.agentrl.env_key=OPENAI_API_KEY \
  -c model_providers.agentrl.base_url="$OPENAI_BASE_URL" -"""
COMMANDS = {
    "claude": (
        ["claude", "-p", "--dangerously-skip-permissions"],
        call("Bash", command="echo it costs 43", description="look"),
    ),
    "codex": (["sh", "-c", CODEX], call("exec_command", cmd="echo it costs 43")),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_program_runs_a_call_and_answers_in_one_sequence(
    programs: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    command, asks = COMMANDS[name]
    (work := tmp_path / "work").mkdir()
    trajectory = await play_command(
        command,
        [asks, "43 cents"],
        tmp_path,
        cwd=work,
        rubric=Rubric([length_reward]),
        environment={"IS_SANDBOX": "1"},
    )
    assert str(trajectory.status) == "terminated", trajectory.status.detail
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert "it costs 43" in record.result.content
    assert trajectory.reward == len("43 cents")
