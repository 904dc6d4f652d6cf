"""An agent's own program is trained: GRPO of the example, whose every episode is a process with an
OpenAI client.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.agent_server import AgentProgramSpec
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.build import LiveObjects, player_spec
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from tests.kit.account import Account, extended
from tests.run.tiny_run import metrics, train

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_agent"

CONFIG = f"""\
run: {{base_dir: "{EXAMPLE}"}}
placement: {{mode: inline}}
model: {{build: "task.py:build_model"}}
env: {{agent_command: [python, agent.py]}}
data: {{train: "task.py:tasks", max_prompt_tokens: 64}}
reward: {{functions: ["agentrl.envs:exact_answer"]}}
rollout: {{group_size: 4, max_turns: 3, max_turn_tokens: 32, max_response_tokens: 120, max_running: 4}}
train: {{steps: 2, batch_prompts: 2}}
optim: {{lr: 1.0e-3}}
stages:
  - name: warmup
    steps: 40
    algorithm: sft
    env: {{agent_command: []}}
    data: "task.py:demonstrations"
    train: {{batch_prompts: 8}}
    optim: {{name: muon, lr: 2.0e-3, muon_lr: 0.02}}
  - name: rl
"""  # noqa: E501


@pytest.mark.slow
def test_the_tokens_trained_are_those_that_the_engine_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(monkeypatch)
    train(tmp_path, text=CONFIG)
    # an agent asked again with a tool's answer, and its sequence was gone on with
    assert extended(account.checked()) > 0
    rows = [row for row in metrics(tmp_path / "run") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    stored = TrajectoryReader(RunDirectory(tmp_path / "run"))
    versions = {
        v
        for found in stored.summaries()
        if found.label == ""
        for v in stored.get(found.id).trajectory.policy_versions
    }
    # the second step was played by the weights that the first one trained
    assert versions == {
        0,
        1,
    }


def test_a_program_stands_in_place_of_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"env\.system_prompt=.* does nothing with .*env\.agent_command="
    ):
        load_config(path, ["stages.rl.env.system_prompt=hi"])


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([], (False, False)),
        (["agent_keys=strict"], (True, False)),
        (["history=loose"], (False, True)),
    ],
)
def test_a_programs_requests_are_read_as_the_configuration_says(
    tmp_path: Path, given: list[str], read: tuple[bool, bool]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    config = load_config(path, [f"stages.rl.env.{setting}" for setting in given])
    spec = player_spec(config.resolved_stages()[-1], LiveObjects())
    assert isinstance(spec, AgentProgramSpec)
    assert (spec.strict_keys, spec.loose_history) == read


def test_a_program_that_is_not_there_is_refused_before_a_run_directory_is_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    config = load_config(
        path, [f"run.dir={tmp_path / 'run'}", "stages.rl.env.agent_command=[no-such-agent]"]
    )
    with Trainer(config) as trainer, pytest.raises(ConfigError, match="no-such-agent"):
        trainer.train()
    assert not (tmp_path / "run").exists()
