"""Evaluation on an OpenAI-compatible server: no weights here, the same tasks, tools and rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.trainer import Trainer
from tests.kit.http import Answering, serving
from tests.run.tiny_run import CONFIG

TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "add"}}


class Adding(Answering):
    """Asks ``add`` for the sum of the question's numbers, then says what it answered; HTTP 500 for
    one in three.
    """

    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = body["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": last["content"]}
        if last["role"] == "user":
            a, _, b = last["content"].rstrip("?").split()
            function = {"name": "add", "arguments": json.dumps({"a": int(a), "b": int(b)})}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**TOOL_CALL, "function": function}],
            }
        broken = self.asked % 3 == 0
        answer = {"choices": [{"message": message, "finish_reason": "stop"}]}
        raw = json.dumps({"error": {"message": "busy"}} if broken else answer).encode()
        self.answer(raw, 500 if broken else 200)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Adding) as address:
        yield f"{address}/v1"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path / "config.yaml"


def overrides(url: str) -> list[str]:
    engine = ["rollout.engine=openai", "run.deterministic=false", "rollout.openai.model=m"]
    return [
        *engine,
        f"rollout.openai.base_url={url}",
        "rollout.openai.max_backoff_s=0.01",
    ]


def test_eval_asks_a_server_and_scores_what_it_says(
    config: Path, url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "eval.parquet"
    assert (
        run_command_line(
            [
                "eval",
                str(config),
                *overrides(url),
                "--samples",
                "2",
                "--json",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["failed_samples"] == 0
    assert report["sources"]["sums"]["avg@2"]["value"] == 1.0
    assert out.is_file()


def test_episodes_collected_from_a_server_have_turns_and_no_tokens(
    config: Path, url: str
) -> None:
    with Trainer(load_config(config, overrides(url), trains=False)) as trainer:
        (result,) = trainer.evaluate_sets("sums", samples=1, greedy=False)
    for trajectory in result.trajectories:
        assert [turn.segments for turn in trajectory.turns] == [(), ()]
        assert trajectory.turns[0].calls[0].result is not None
        assert trajectory.turns[1].text == trajectory.task.answer


def test_a_server_cannot_be_trained(config: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.engine='openai' cannot train"):
        load_config(config, overrides(url))
    with (
        Trainer(load_config(config, overrides(url), trains=False)) as trainer,
        pytest.raises(ConfigError, match="cannot be used for training"),
    ):
        trainer.train()


def test_a_reward_model_is_refused_where_no_ranks_score_with_it(
    config: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", str(config), *overrides(url), "reward.model.path=scorer"]
    assert run_command_line(command) == 2
    assert "reward.model scores episodes on the ranks of a run" in capsys.readouterr().err
    # what the message advises
    assert run_command_line([*command, "reward.model={}"]) == 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.openai={model: m}", "rollout.openai.base_url"),
        ("rollout.openai.modle=m", "rollout.openai.modle"),
        ("rollout.openai.max_retries=many", "rollout.openai.max_retries"),
        ("rollout.openai.base_url=localhost", "base_url must be"),
        ("rollout.openai.api_key_env=NO_SUCH_KEY", "NO_SUCH_KEY"),
    ],
)
def test_a_server_that_is_described_wrongly_is_named(
    config: Path, url: str, override: str, words: str
) -> None:
    with (
        Trainer(load_config(config, [*overrides(url), override], trains=False)) as trainer,
        pytest.raises(ConfigError, match=words),
    ):
        trainer.evaluate()


def test_a_configuration_alone_needs_a_server(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["eval", str(config)]) == 2
    assert "set rollout.engine=openai" in capsys.readouterr().err


def test_rollout_collects_from_a_server_and_goes_on_where_it_was(
    config: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import load_dataset

    monkeypatch.setattr(Adding, "asked", 0)
    out = tmp_path / "out"
    command = [
        "rollout",
        str(config),
        *overrides(url),
        "--samples",
        "2",
        "--out",
        str(out),
        "--tasks",
    ]
    assert run_command_line([*command, "2"]) == 0
    asked = Adding.asked
    assert asked >= 2 * 2 * 2  # two turns an episode, and what failed once more
    assert run_command_line([*command, "2"]) == 0
    assert Adding.asked == asked
    assert run_command_line([*command, "3"]) == 0
    pattern = str(out / "traj" / "sealed" / "*" / "*.parquet")
    rows = list(
        load_dataset(
            "parquet", data_files=pattern, split="train", cache_dir=str(tmp_path / "cache")
        )
    )
    assert sorted((row["group_index"], row["rollout_index"]) for row in rows) == [
        (d, s) for d in range(3) for s in range(2)
    ]
    assert all(row["num_turns"] == 2 and row["reward"] > 1 for row in rows)
    assert all(row["token_ids"] == [] and row["num_policy_tokens"] == 0 for row in rows)
