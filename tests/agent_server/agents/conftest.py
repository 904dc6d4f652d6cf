"""Agent programs of the SDKs that people use, in an environment of their own, on the real
endpoint.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from agentrl.agent_server import AgentProgramSpec
from agentrl.envs import Rubric
from agentrl.rollouts import run_episode
from agentrl.types import Message, Task, Trajectory
from tests.agent_server.served_policy import assert_true
from tests.rollouts.bytewise import KEY, Script, context_of, rollout_spec, say, scripted

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it fetches that from the network otherwise
    "LANGSMITH_TRACING": "false",
    "MSWEA_SILENT_STARTUP": "1",
    "INSPECT_DISABLE_MODEL_API_RETRIES": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

Play: TypeAlias = Callable[..., Awaitable[Trajectory]]


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter of the agents' environment: ``AGENTRL_AGENTS_PYTHON``, or where `make agents`
    puts it.
    """
    path = Path(
        os.environ.get("AGENTRL_AGENTS_PYTHON") or ROOT / ".venv-agents" / "bin" / "python"
    )
    if not path.is_file():
        pytest.skip(f"no environment of agents' SDKs at {path}: run `make agents`")
    return str(path)


@pytest.fixture(scope="session")
def programs(python: str) -> Path:
    """The folder of Claude Code and Codex, where `make programs` puts them beside ``python``."""
    found = Path(python).parents[1] / "node_modules" / ".bin"
    if not (found / "claude").exists():
        pytest.skip(f"no Claude Code at {found}: run `make programs`")
    return found


async def play_command(
    command: Sequence[str],
    turns: Sequence[str],
    home: Path,
    *,
    cwd: Path,
    expected: Any = None,
    rubric: Rubric | None = None,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> Trajectory:
    """An episode of a program; the policy's turns are written down."""
    room = {
        "max_turns": 8,
        "max_prompt_tokens": 30_000,
        "max_response_tokens": 30_000,
        "context_tokens": 90_000,
    }
    # an SDK is slow to load on a busy machine
    room |= {
        "episode_timeout_s": 240,
        "turn_timeout_s": 240,
    }
    engine = scripted(
        Script([say(turn) for turn in turns]),
        decode=lambda ids: bytes(i for i in ids.tolist() if i < 256).decode(),
    )
    context = context_of(rollout_spec(**room, **settings), engine)
    parts = replace(context, rubric=rubric or Rubric([]))
    variables = {**QUIET, "HOME": str(home), **(environment or {})}
    spec = AgentProgramSpec(tuple(command), cwd=str(cwd), environment=variables)
    message: Message = {"role": "user", "content": "How much is a fig?"}
    task = Task("t", (message,), info={"expected": expected})
    try:
        trajectory = await run_episode(parts, task, KEY, env=spec)
    finally:
        await parts.close()
    assert_true(trajectory, engine)
    return trajectory


@pytest.fixture
def play(python: str, tmp_path: Path) -> Play:
    """Plays an episode of a program of ``programs``, by its name and arguments."""

    async def played(
        program: str, turns: Sequence[str], expected: Any, **settings: Any
    ) -> Trajectory:
        name, *arguments = program.split()
        command = (python, f"{name}.py", *arguments)
        return await play_command(
            command, turns, tmp_path, cwd=PROGRAMS, expected=expected, **settings
        )

    return played
