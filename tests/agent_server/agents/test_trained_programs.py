"""Claude Code, Codex and mini-swe-agent from their packages are trained: two steps on the tasks of
the code example, by a tiny model that has seen one conversation of the program.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.run.trainer import Trainer
from tests.agent_server.agents.conftest import QUIET, ROOT, play_command
from tests.agent_server.agents.test_programs import CODEX
from tests.kit.account import Account, extended
from tests.rollouts.bytewise import call
from tests.run.tiny_run import metrics

# not in the gate: each warms a model up for some minutes
pytestmark = [pytest.mark.agents, pytest.mark.tooling]

TASK = Path(__file__).with_name("program_task.py")
CODE = ROOT / "examples" / "code" / "task.py"

MINI = """\
import json, sys
from pathlib import Path
import yaml
import minisweagent
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
task = json.load(sys.stdin)["messages"][-1]["content"]
settings = yaml.safe_load(Path(minisweagent.package_dir, "config", "mini.yaml").read_text())
model = LitellmModel(model_name="openai/policy", cost_tracking="ignore_errors", **settings["model"])
DefaultAgent(model, LocalEnvironment(), **settings["agent"]).run(task)
"""
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 43"
PLAYED = {
    "mini": [call("bash", command="echo 43"), call("bash", command=DONE)],
    "claude": [call("Bash", command="echo 43", description="look"), "43"],
    "codex": [call("exec_command", cmd="echo 43"), "43"],
}
LEARNED, ROUNDS = 0.01, 8
"""Nats a token below which the model says what it has seen, and the rounds that it is given."""


def command(name: str, python: str) -> list[str]:
    own = ["--tools", "Bash", "--system-prompt", "You have a shell."]
    return {
        "mini": [python, "-c", MINI],
        "claude": ["claude", "-p", *own, "--dangerously-skip-permissions"],
        "codex": ["sh", "-c", CODEX],
    }[name]


MODEL = """\
run: {{base_dir: "{work}", seed: 0}}
placement: {{mode: inline}}
model: {{build: "{task}:build_model", build_args: {{recorded: "{recorded}"}}}}
"""
WARM_UP = """\
algorithm: sft
data: {{train: "{task}:demonstrations", args: {{recorded: "{recorded}"}}, max_prompt_tokens: 16384}}
rollout: {{context_tokens: 20000}}
train: {{steps: 80, batch_prompts: 1, micro_batch_tokens: 20000}}
optim: {{name: muon, lr: 2.0e-3, muon_lr: 0.02, warmup_steps: 10, schedule: linear}}
"""
CONFIG = """\
env: {{agent_command: {command}}}
data: {{train: "{code}:tasks", max_prompt_tokens: 16384}}
reward: {{functions: ["{task}:in_turn"]}}
rollout:
  {{group_size: 2, max_turns: 3, max_turn_tokens: 100, max_response_tokens: 3000,
    context_tokens: 20000, max_running: 2, temperature: 0.3, episode_timeout_s: 600,
    turn_timeout_s: 600}}
train: {{steps: 2, batch_prompts: 1, micro_batch_tokens: 20000}}
optim: {{lr: 1.0e-4}}
"""


def train(text: str, run_dir: Path, **values: object) -> list[dict[str, Any]]:
    """Trains what a configuration says, and gives the rows of its steps."""
    config = run_dir.with_suffix(".yaml")
    config.write_text((MODEL + text).format(task=TASK, code=CODE, **values))
    settings = [f"run.dir={run_dir}"]
    if "model" in values:
        settings.append(f"model.path={values['model']}")
    with Trainer(load_config(config, settings)) as trainer:
        trainer.train()
    return metrics(run_dir)


def warmed_up(folder: Path, **values: object) -> Path:
    """A model that says what it has seen: prompts of a program differ from day to day, so that no
    number of steps would do for all.
    """
    for number in range(ROUNDS):
        run_dir = folder / f"warmup-{number}"
        last = train(WARM_UP, run_dir, **values)[-1]
        values["model"] = run_dir / "models" / "train"
        if last["policy/nll"] < LEARNED:
            return run_dir / "models" / "train"
    raise AssertionError(f"nothing was learned in {ROUNDS} rounds: {last}")


@pytest.fixture
def program(request: pytest.FixtureRequest, python: str) -> str:
    """The name of a program; skips where its package is not there."""
    name = str(request.param)
    if name != "mini":
        request.getfixturevalue("programs")
    return name


@pytest.mark.parametrize("program", PLAYED, indirect=True)
async def test_a_program_is_trained_on_what_the_engine_sampled(
    program: str, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(python).parents[1] / "node_modules" / ".bin"
    for name, value in {**QUIET, "IS_SANDBOX": "1", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    (work := tmp_path / "work").mkdir()
    played = await play_command(
        command(program, python), PLAYED[program], tmp_path, cwd=work
    )
    offered = played.turns[0].offered_tools
    assert offered is not None
    said = [message for turn in played.turns for message in (*turn.observed, turn.message)]
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps({"messages": said, "tools": json.loads(offered.data)}))
    values = {"work": work, "recorded": recorded}
    model = warmed_up(tmp_path, **values)
    asked = json.dumps(command(program, python))
    account = Account(monkeypatch)
    rows = train(CONFIG, tmp_path / "run", command=asked, model=model, **values)
    batches = account.checked()
    assert len(batches) == 2
    # the program brought a result, and its sequence was gone on with
    assert extended(batches) > 0
    restarts = Counter[str]()
    for trajectory in chain.from_iterable(batches):
        restarts.update(trajectory.info.get("restarts", {}))
    # Claude Code and Codex only append. mini-swe-agent leaves out an answer that it cannot read.
    assert restarts.keys() <= ({"compaction"} if program == "mini" else set())
    assert [row["step"] for row in rows] == [1, 2]
