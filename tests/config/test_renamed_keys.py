"""Renamed keys: refused in what a user writes, and read from what a run of an older version
wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config import RunConfig, load_config, to_yaml
from agentrl.config.renamed_keys import RENAMED
from agentrl.config.schema import StageConfig
from agentrl.errors import ConfigError
from agentrl.types.section import sections_within
from tests.run.tiny_run import TASK

OLD = Path(__file__).parents[1] / "run" / "old" / "config.resolved.yaml"
"""Written by agentrl before the keys were renamed, every renamed one with a value that is not its
default.
"""


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """The configuration of an old run, in its run directory."""
    (tmp_path / "run.json").write_text("{}")
    path = tmp_path / OLD.name
    path.write_text(OLD.read_text().replace("TASK", str(TASK)).replace("BASE", str(tmp_path)))
    return path


def test_an_old_key_of_a_file_is_refused_with_its_new_name(
    problems: Callable[..., list[str]],
) -> None:
    assert problems("rollout: {retries: 1}\n") == [
        "config.yaml:3:11: rollout.retries is called rollout.max_retries now; rename it, got 1"
    ]
    (line,) = problems("eval: {sets: {a: {data: t.py:f, only_before: true}}}\n")
    assert "eval.sets.a.only_before is called eval.sets.a.baseline_only now" in line


def test_an_old_key_of_an_override_is_refused_with_its_new_name(
    problems: Callable[..., list[str]],
) -> None:
    (line,) = problems("", ["train.tool_tokens=true"])
    assert line.startswith("command line: train.tool_tokens=true: train.tool_tokens is called ")
    assert "debug.train_on_tool_tokens now" in line


def test_a_rule_about_a_renamed_setting_keeps_quiet(problems: Callable[..., list[str]]) -> None:
    (line,) = problems("rollout: {top_k: 5, allow_truncated_sampling: true}\n")
    assert "is called rollout.allow_biased_sampling now" in line


@pytest.mark.parametrize("old", RENAMED)
def test_every_old_key_is_refused(problems: Callable[..., list[str]], old: str) -> None:
    key = old.replace("*", "a")
    given = [f"{key}=null", *(["eval.sets.a.data=t.py:f"] if "*" in old else [])]
    assert any(
        f"{key} is called {RENAMED[old].replace('*', 'a')} now" in p for p in problems("", given)
    )


def test_every_new_key_exists_and_no_old_one_does() -> None:
    from agentrl.algorithms import GRPOSettings

    known = {f"{at}.{name}" for at, s in sections_within(StageConfig) for name in s.model_fields}
    known |= {f"algorithm.{name}" for name in GRPOSettings.model_fields}
    nested = {(at, s) for at, s in sections_within(GRPOSettings)}
    known |= {f"algorithm.{at}.{name}" for at, s in nested for name in s.model_fields}
    assert {new.replace("*", "NAME") for new in RENAMED.values()} <= known
    assert not {old.replace("*", "NAME") for old in RENAMED} & known


def test_the_configuration_of_an_old_run_is_read_by_the_new_names(old_run: Path) -> None:
    warmup, rl = load_config(old_run).resolved_stages()
    assert warmup.debug.train_on_tool_tokens
    assert rl.debug.shuffle_rewards
    rollout = rl.rollout
    assert (rollout.on_stale, rollout.pause_mode, rollout.max_retries) == (
        "mask_tokens",
        "in_place",
        1,
    )
    assert (rollout.worker_liveness_timeout_s, rollout.max_resample_ratio) == (60.0, 2.0)
    assert (rollout.oversample_per_group, rollout.min_group_size) == (1, 3)
    assert rollout.allow_biased_sampling
    assert not rl.env.describe_tools_in_prompt
    assert rl.eval.sets["sums"].baseline_only
    assert rl.algorithm.settings == {
        "rollout_correction": {"level": "token", "cap": 3.0},
        "scale_rewards": "none",
        "filter_zero_variance": False,
    }


def test_what_was_read_by_the_new_names_is_written_by_them(old_run: Path, tmp_path: Path) -> None:
    config = load_config(old_run)
    again = tmp_path / "again" / "config.resolved.yaml"
    again.parent.mkdir()
    (again.parent / "run.json").write_text("{}")
    again.write_text(to_yaml(config))
    assert load_config(again).resolved_stages() == config.resolved_stages()


def test_an_override_of_an_old_run_is_a_users(old_run: Path) -> None:
    with pytest.raises(ValueError, match=r"rollout\.retries is called rollout\.max_retries now"):
        load_config(old_run, ["rollout.retries=3"])
    assert (
        load_config(old_run, ["rollout.max_retries=3"]).resolved_stages()[-1].rollout.max_retries
        == 3
    )


def test_a_setting_of_a_users_own_algorithm_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "own.py").write_text(
        "from agentrl.algorithms import make_algorithm\n"
        "def own(scale=1.0):\n    return make_algorithm('grpo')\n"
    )
    path = tmp_path / "config.resolved.yaml"
    path.write_text(
        "model: {path: m}\ndata: {train: t.py:f}\nalgorithm: {name: 'own.py:own', scale: 2.0}\n"
    )
    config: RunConfig = load_config(path)
    assert config.algorithm.settings == {"scale": 2.0}


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_an_old_run_without_a_kl_in_its_reward_opens(tmp_path: Path, kl_coef: float) -> None:
    (tmp_path / "run.json").write_text("{}")
    path = tmp_path / "config.resolved.yaml"
    path.write_text(
        "model: {path: m}\ndata: {train: t.py:f}\ncritic: {stage: model}\n"
        f"algorithm: {{name: ppo, kl_coef: {kl_coef}, kl_estimator: k3, kl_cap: 10.0}}\n"
    )
    if kl_coef:
        with pytest.raises(ConfigError, match="kl_estimator must be 'k1'"):
            load_config(path)
    else:
        assert load_config(path).algorithm.settings == {"kl_coef": 0.0}


@pytest.mark.parametrize("engine", ["torch", "sglang", "openai"])
def test_the_arguments_of_an_old_runs_engine_go_to_its_own_section(
    tmp_path: Path, engine: str
) -> None:
    given = {
        "torch": "device: cuda:1",
        "sglang": "tp_size: 2",
        "openai": "base_url: http://localhost/v1",
    }
    (tmp_path / "run.json").write_text("{}")
    path = tmp_path / "config.resolved.yaml"
    path.write_text(
        "model: {path: m}\ndata: {train: t.py:f}\n"
        f"rollout: {{engine: {engine}, engine_args: {{{given[engine]}}}, num_engines: 3}}\n"
    )
    rollout = load_config(path, trains=False).rollout
    own = getattr(rollout, engine).model_dump(exclude_unset=True)
    name, value = given[engine].split(": ")
    assert str(own[name]) == value
    assert rollout.sglang.num_servers == 3
    assert engine == "openai" or not rollout.openai.model_dump()
