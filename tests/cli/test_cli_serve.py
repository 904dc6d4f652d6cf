"""`agentrl serve policy` as a process: a tiny model behind real HTTP, its episodes kept and
shown.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.engines.openai import OpenAIEngine
from agentrl.guards.http_guard import TOKEN_VARIABLE
from agentrl.llm import ChatServerSpec
from agentrl.rollouts import EpisodeContext, run_episode
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.tools.parsers import load_parser
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import KEY, TASK, rollout_spec
from tests.run.tiny_run import CONFIG
from tests.run.tiny_task import build_model

# a model is built, and torch loaded by two processes
pytestmark = [
    pytest.mark.slow,
]

HI: Any = {"role": "user", "content": "3 and 4?"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The endpoint's URL and the run directory that it fills; it is ended as a user would end
    it.
    """
    folder = tmp_path_factory.mktemp("serve")
    build_model(folder / "model", 0)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    command = [
        "serve",
        "policy",
        str(folder / "model"),
        str(folder / "config.yaml"),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl", *command, "--out", str(folder / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", TOKEN_VARIABLE: "s3cret"},
    )
    try:
        yield announced(process), folder / "run"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def announced(process: subprocess.Popen[str]) -> str:
    """The URL in the first line that it prints."""
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    stdout = process.stdout
    threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
    return next(
        word for word in lines.get(timeout=DEADLINE_S).split() if word.startswith("http://")
    )


def test_an_episode_over_http_is_kept_and_shown(
    served: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url, run_dir = served
    opened = httpx.post(
        f"{url}/episodes",
        json={"task": {"id": "sum", "answer": "7"}},
        headers={"Authorization": "Bearer s3cret"},
        timeout=DEADLINE_S,
    ).json()
    assert httpx.post(f"{url}/episodes", json={}, timeout=DEADLINE_S).status_code == 401
    with openai.OpenAI(
        base_url=opened["base_url"], api_key="any", max_retries=0, timeout=DEADLINE_S
    ) as client:
        first = (
            client.chat.completions.create(model="policy", messages=[HI]).choices[0].message
        )
        said: Any = first.model_dump(exclude_none=True)
        client.chat.completions.create(
            model="policy", messages=[HI, said, {"role": "user", "content": "and?"}]
        )
    outcome = httpx.post(
        f"{url}/episodes/{opened['id']}/end", json={"reward": 0.25}, timeout=DEADLINE_S
    ).json()
    assert (outcome["status"], outcome["turns"], outcome["rewards"]["step"]) == (
        "terminated",
        2,
        0.25,
    )
    stored = TrajectoryReader(RunDirectory(run_dir)).get(outcome["trajectory"]).trajectory
    assert [turn.parent for turn in stored.turns] == [None, 0]
    assert stored.num_policy_tokens == outcome["policy_tokens"] > 0
    assert stored.policy_versions == (0, 0)
    assert run_command_line(["show", str(run_dir), outcome["trajectory"]]) == 0
    shown = capsys.readouterr().out
    assert "3 and 4?" in shown
    assert "policy |" in shown


async def test_another_agentrl_plays_on_it(
    served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    spec = replace(rollout_spec(), renderer=None)
    engine = OpenAIEngine(ChatServerSpec(f"{served[0]}/v1", "policy", timeout_s=60))
    parts = EpisodeContext(spec, engine, None, load_parser("none"), spec.rubric.build())
    trajectory = await run_episode(parts, TASK, KEY)
    await engine.close()
    assert trajectory.status.finished
    assert trajectory.turns[0].completion == ()
    assert engine.client.usage.completion_tokens > 0


def test_a_port_that_is_taken_is_named(
    served: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url, run_dir = served
    model, config = run_dir.parent / "model", run_dir.parent / "config.yaml"
    assert (
        run_command_line(
            ["serve", "policy", str(model), str(config), "--port", url.rpartition(":")[2]]
        )
        == 4
    )
    assert "cannot listen on 127.0.0.1:" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    assert (
        run_command_line(
            ["serve", "policy", str(tmp_path / "none"), str(tmp_path / "config.yaml")]
        )
        == 3
    )
    assert "none" in capsys.readouterr().err
