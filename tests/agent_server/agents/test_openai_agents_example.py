"""The example's agent by the OpenAI Agents SDK, as it comes, on a model that generates: what it
samples is trained.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.render import RendererSpec
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.training.data.demonstrations import tool_specs
from agentrl.types import concat_ids, load_object
from tests.kit.account import Account, extended
from tests.run.tiny_run import metrics

EXAMPLE = Path(__file__).parents[3] / "examples" / "openai_agents"
OVERRIDES = (
    *("run.seed=0", "placement.mode=inline", "rollout.max_running=2"),
    *("stages.warmup.steps=40", "stages.warmup.train.batch_prompts=8"),
    *(
        "stages.rl.train.steps=2",
        "stages.rl.train.batch_prompts=1",
        "stages.rl.eval.sets={}",
    ),
    # answers of different length are a signal
    "stages.rl.reward.functions=[tests.rollouts.bytewise:length_reward]",
)


@pytest.mark.agents
@pytest.mark.slow
def test_the_agent_is_trained_on_what_the_engine_sampled(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(monkeypatch)
    overrides = [
        f"run.dir={tmp_path / 'run'}",
        f"stages.rl.env.agent_command=[{python}, agent.py]",
        *OVERRIDES,
    ]
    with Trainer(load_config(EXAMPLE / "config.yaml", overrides)) as trainer:
        trainer.train()
    batches = account.checked()
    assert len(batches) == 2
    # the SDK brought a tool's answer, and its sequence was gone on with
    assert extended(batches) > 0
    assert [row["step"] for row in metrics(tmp_path / "run") if row["stage"] == "rl"] == [
        1,
        2,
    ]
    assert prompts_differ(tmp_path / "run") == []


def prompts_differ(run: Path) -> list[str]:
    """Opening prompts that are not those of the demonstrations: a changed SDK would tell of its
    tool otherwise.
    """
    renderer = RendererSpec(str(next(run.rglob("tokenizer.json")).parent)).build()
    tool, system = (load_object(f"task.py:{name}", EXAMPLE) for name in ("TOOL", "SYSTEM"))
    wrong = []
    reader = TrajectoryReader(RunDirectory(run))
    for found in reader.summaries():
        trajectory = reader.get(found.id).trajectory
        if trajectory.policy_versions:
            opening = [{"role": "system", "content": system}, *trajectory.task.messages]
            wanted = concat_ids(
                renderer.prompt(opening, tool_specs([tool], "task.py:TOOL"))
            )  # type: ignore[arg-type]
            given = concat_ids(trajectory.turns[0].context)
            wrong += [] if given.tolist() == wanted.tolist() else [renderer.decode(given)]
    return wrong
