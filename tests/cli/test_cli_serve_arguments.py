"""What `agentrl serve policy` says of its arguments before anything is loaded: nothing that it
cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Agentrl = Callable[..., tuple[int, str, str]]


def test_a_folder_that_holds_a_run_is_refused_without_advice_that_it_lacks(
    agentrl: Agentrl, run_dir: Path, tmp_path: Path
) -> None:
    code, _, err = agentrl(
        "serve", "policy", tmp_path / "model", tmp_path / "config.yaml", "--out", run_dir
    )
    assert code == 2
    assert (
        err
        == f"error: --out {run_dir} must be a new or empty folder, and it holds files; name another folder\n"  # noqa: E501
    )


def test_a_run_without_a_policy_is_told_what_finishes_it(
    agentrl: Agentrl, run_dir: Path, tmp_path: Path
) -> None:
    text = "model: {path: m}\ndata: {train: 'task.py:tasks'}\n"
    (run_dir / "config.resolved.yaml").write_text(text)
    (tmp_path / "config.yaml").write_text(text)
    code, _, err = agentrl("serve", "policy", run_dir, tmp_path / "config.yaml")
    assert code == 3
    assert "by `agentrl train CONFIG --resume`, or name a model's folder" in err


def test_a_reward_model_that_nothing_here_could_ask_is_refused(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: {train: 'task.py:tasks'}\nreward: {model: {path: scorer}}\n"
    )
    code, _, err = agentrl("serve", "policy", tmp_path / "model", config)
    assert code == 2
    assert (
        "reward.model scores episodes on the ranks of a run, and a served policy has none"
        in err
    )


def test_a_port_that_is_none_is_refused(agentrl: Agentrl, tmp_path: Path) -> None:
    code, _, err = agentrl(
        "serve", "policy", "model", tmp_path / "config.yaml", "--port", "70000"
    )
    assert code == 2
    assert "--port" in err
