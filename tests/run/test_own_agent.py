"""An agent's own program is trained: GRPO of the example, whose every episode is a process with an
OpenAI client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.agent_server import AgentProgramSpec
from agentrl.config.load import load_config
from agentrl.controller.stage import passes as controller_stage
from agentrl.engines.torch.engine import TorchEngine
from agentrl.errors import ConfigError
from agentrl.run.build import LiveObjects, player_spec
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import (
    Batch,
    Completion,
    GenerateRequest,
    Trajectory,
    TrajectoryGroup,
    concat_ids,
)
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


class Account:
    """What the engine made, by its own requests, and what was trained of it; both are only
    watched.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self.batches: list[tuple[Sequence[TrajectoryGroup], Batch]] = []
        generate, make_batch = TorchEngine.generate, controller_stage.make_batch

        async def watched(engine: TorchEngine, request: GenerateRequest) -> Completion:
            completion = await generate(engine, request)
            given = tuple(request.token_ids.tolist())
            self.made.setdefault(given, []).append(tuple(concat_ids(completion.segments).tolist()))
            return completion

        def kept(groups: Sequence[TrajectoryGroup], **settings: Any) -> Batch:
            batch = make_batch(groups, **settings)
            self.batches.append((groups, batch))
            return batch

        monkeypatch.setattr(TorchEngine, "generate", watched)
        monkeypatch.setattr(controller_stage, "make_batch", kept)

    def rollout_batches(self) -> list[tuple[list[Trajectory], Batch]]:
        return [
            ([t for group in groups for t in group.finished], batch)
            for groups, batch in self.batches
            if any(t.policy_versions for group in groups for t in group.finished)
        ]


@pytest.mark.slow
def test_the_tokens_trained_are_those_that_the_engine_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(monkeypatch)
    train(tmp_path, text=CONFIG)
    batches = account.rollout_batches()
    assert batches
    turns_of_two = 0
    for trajectories, batch in batches:
        sampled: Counter[tuple[int, ...]] = Counter()
        for trajectory in trajectories:
            assert trajectory.status.finished
            for turn in trajectory.turns:
                completion = tuple(concat_ids(turn.completion).tolist())
                given = trajectory.sequence(turn.index)[: -len(completion)]
                # by the engine's own account
                assert completion in account.made[tuple(given.tolist())]
                sampled[completion] += 1
                turns_of_two += turn.parent is not None
        trained: Counter[tuple[int, ...]] = Counter()
        for turn_row in range(len(batch.turn_trajectory)):
            mask = (batch.turn_index == turn_row) & (batch.loss_mask > 0)
            trained[tuple(batch.token_ids[mask].tolist())] += 1
        assert trained == sampled
        assert int(np.count_nonzero(batch.loss_mask)) == sum(
            t.num_policy_tokens for t in trajectories
        )
    # an agent asked again with a tool's answer, and its sequence was gone on with
    assert turns_of_two > 0
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
