"""A setting that is given and cannot act is refused, or told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms import ALGORITHMS
from agentrl.config.dump import to_yaml
from agentrl.config.load import load_config
from agentrl.config.schema import RunConfig
from agentrl.config.stage_merge import merge
from agentrl.errors import ConfigError
from agentrl.types.section import (
    ActsWith,
    Key,
    Section,
    entry_section,
    plain_section,
)

Problems = Callable[..., list[str]]
Write = Callable[..., Path]


def marked(section: type[Section], at: Key = ()) -> Iterator[tuple[Key, ActsWith]]:
    """Every field below a section that is marked by ``ActsWith``."""
    for name, field in section.model_fields.items():
        for base in section.__mro__:
            own = base.model_fields.get(name) if issubclass(base, Section) else None
            for mark in own.metadata if own else ():
                if isinstance(mark, ActsWith):
                    yield (*at, name), mark
        if (inner := plain_section(field.annotation)) is not None:
            yield from marked(inner, (*at, name))
        elif (inner := entry_section(field.annotation)) is not None:
            yield from marked(inner, (*at, name, "*"))


RULES = {
    (".".join(map(str, key)).replace("*", "x"), mark.other): (key, mark, algorithm)
    for algorithm, settings in [
        *((name, ALGORITHMS[name].settings) for name in sorted(ALGORITHMS, reverse=True)),
        ("grpo", ALGORITHMS["grpo"].settings),
        ("grpo", RunConfig),
    ]
    for key, mark in marked(settings, () if settings is RunConfig else ("algorithm",))
}
"""Each rule by the field and what it acts with, and an algorithm that has it."""

GIVEN: dict[str, Any] = {
    "above": 0.01, "agent_keys": "strict", "agents": {"b": {"train": False}}, "args": {"a": 1},
    "before": False, "history": "loose",
    "build_args": {"a": 1}, "cap": 3.0, "constant_tokens": 7, "conversational": False,
    "discount": 0.5, "describe_tools_in_prompt": False, "docker": {"cpus": 1.0},
    "ep_size": 2, "endpoints": ["http://127.0.0.1:1"], "entry_point": "a.py:E", "env": {"A": "b"},
    "entity": "a", "host": "0.0.0.0", "mode": "offline", "space": "a/b", "tracking_uri": "http://a",
    "every": 3, "final_fraction": 0.5, "flat_fraction": 0.5, "floor": 0.5,
    "gradient_sync": "mini_batch", "greedy": False, "kl_cap": 3.0, "kl_estimator": "k2",
    "kl_horizon": 3, "kl_target": 0.5, "kl_weighted": True, "lam": 0.5,
    "max_tool_seconds": 3.0, "mcp": {"x": {"command": ["x"]}}, "muon_lr": 0.5,
    "muon_momentum": 0.5, "muon_weight_decay": 0.5, "name": "other", "on_stale": "mask_tokens",
    "openai": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}, "outside": "mask",
    "pass_env": ["A"], "pause_mode": "in_place", "penalty": 0.5, "positive_above": 0.5,
    "rank_restarts": 1, "ray_address": "auto", "reject_below": -1.0, "reject_by": "k1",
    "samples": 3, "wait_s": 3.0,
    "sglang": {"tp_size": 2}, "shard": "grad_op", "shard_size": 1, "std_eps": 0.5,
    "resources": {"x": "a.py:r"}, "system_prompt": "a", "tools": ["a.py:t"], "wrappers": ["a.py:w"],
    "temperature": 0.5, "top_p": 0.5, "torch": {"num_threads": 3},
    "vllm": {"tp_size": 2}, "weight": 0.5,
    "worker_liveness_timeout_s": 3.0, "worker_resources": {"x": 1},
    "rollout": "main",
    "command": ["x"], "kv_memory_fraction": 0.5, "max_restarts": 1, "max_running_requests": 9,
    "page_size": 16, "python": "x", "server_args": {"a": 1}, "tp_size": 2,
    "worker_restarts": 1, "clip_dual": 3.0, "clip_high": 0.1, "clip_low": 0.1, "cwd": "x",
    "divergence": "kl", "ratio_cap": 3.0, "ratio_floor": 0.5, "tau_negative": 0.5,
    "tau_positive": 0.5,
}  # fmt: skip
"""A value of each field that is not its default."""
ACTING: dict[str, Any] = {
    "agent_command": ["x"], "build": "m.py:f", "command": ["x"],
    "entry_point": "a.py:E", "kl_coef": 0.1,
    "kl_target": 0.5, "level": "token", "max_tokens": 100, "path": "x",
    "experiment": "e", "port": 1, "project": "p",
    "positive_coef": 0.1, "reject": "token", "rollout_workers": 1, "schedule": "async",
    "sets": {"a": "t.py:f"},
    "step_weight": 1.0, "backend": "docker",
}  # fmt: skip
"""A value beside which a field acts, where all but some do."""
IDLE: dict[str, Any] = {
    "reduction": "token_mean", "scale_rewards": "none", "length_alpha": 0.05, "engine": "policy",
    "level": "token",
    "mode": "inline", "backend": "plain", "shard": "full", "name": "adamw", "kl_estimator": "k1",
    "schedule": "constant", "agent_command": ["x"], "policy_loss": "math:sqrt",
    "urls": ["http://127.0.0.1:1"],
}  # fmt: skip
"""A value beside which a field does nothing, where only some let it act."""
CORRECTED = {"algorithm": {"rollout_correction": {"level": "token"}}}
NEEDED: dict[str, dict[str, Any]] = {
    "algorithm.kl_cap": {"algorithm": {"kl_coef": 0.1}},
    "algorithm.kl_horizon": {"algorithm": {"kl_coef": 0.1}},
    "algorithm.rollout_correction.reject_below": {
        "algorithm": {"rollout_correction": {"reject_by": "k1"}}
    },
    "env.agents.x.openai": {"env": {"agents": {"x": {"train": False}}}},
    "rollout.on_stale": CORRECTED,
    "rollout.pause_mode": CORRECTED,
}
"""What other rules ask for beside a field."""
NEEDED_TO_ACT: dict[str, dict[str, Any]] = {
    "backend": {"placement": {"world_size": 2}},
    "max_tokens": {"algorithm": {"overlong": {"buffer_tokens": 9}}},
    "reject": {"algorithm": {"rollout_correction": {"reject_above": 1.0}}},
}
"""And beside what it acts with."""
BASE = {"model": {"path": "m"}, "data": {"train": "task.py:tasks"}}


def at(key: Key, value: Any) -> dict[str, Any]:
    """A tree with one value."""
    for part in reversed(key):
        value = {("x" if part == "*" else part): value}
    return dict(value)


def needed(name: str) -> dict[str, Any]:
    """What other rules ask for beside a field."""
    section, _, own = name.removeprefix("rollout.").partition(".")
    if own and section in ("sglang", "vllm"):
        # a command cannot be asked for the device
        return {"rollout": {"engine": section, section: {"device": "cpu"}}}
    return NEEDED.get(name, {})


def tree(name: str, other: str, *, acts: bool) -> dict[str, Any]:
    """A configuration with a setting, and what lets it act or not."""
    key, mark, algorithm = RULES[name, other]
    if other == "given":
        other, found = "path", "x" if acts else None
    elif acts:
        found = mark.only[0] if mark.only else ACTING[other]
    else:
        found = IDLE[other] if mark.only else mark.but[0]
    if name.startswith("rollout.") and other == "engine" and not acts:
        found = "sglang" if name == "rollout.torch" else "torch"
    if "optim" in name and other == "schedule" and acts:
        found = "linear"
    made = merge(BASE, {"algorithm": {"name": algorithm}})
    if algorithm in ("ppo", "vapo", "pf_ppo") or name.startswith("critic."):
        made = merge(made, {"critic": {"stage": "model"}})
    if name.startswith("critic."):
        made["algorithm"] = {"name": "ppo"}
    if name.startswith("roles."):
        made = merge(made, {"roles": {"x": {"role": "agentrl.training:CriticSpec"}}})
    made = merge(made, at(key, GIVEN[str(key[-1])]))
    made = merge(made, needed(name))
    made = merge(made, NEEDED_TO_ACT.get(other, {}) if acts else {})
    made = merge(made, at((*key[:-1], other), found))
    if name.startswith("model.build_args"):
        made["model"].pop("path" if acts else "build")
    if name.startswith("env.mcp.") and not acts:
        made = merge(made, at((*key[:-1], "url"), "http://127.0.0.1:1/mcp"))
    return made


@pytest.mark.parametrize(("name", "other"), RULES)
def test_a_setting_is_refused_exactly_where_it_cannot_act(name: str, other: str) -> None:
    # the engine of messages plays, and never trains
    load_config(tree(name, other, acts=True), trains=name != "rollout.openai")
    with pytest.raises(ConfigError) as caught:
        load_config(tree(name, other, acts=False))
    (line,) = [line for line in str(caught.value).splitlines() if f" {name}" in line]
    assert "does nothing with" in line
    assert "leave it out, or set" in line


SHARED = """\
algorithm: {name: grpo, kl_estimator: k1}
stages:
  - {name: sft, algorithm: sft, steps: 1}
  - {name: a, steps: 1}
  - {name: b, steps: 1, algorithm: {kl_coef: %s}}
"""


def test_what_stages_share_may_act_in_one_of_them_alone(
    write: Write, problems: Problems
) -> None:
    load_config(write(SHARED % 0.1))
    (line,) = problems(SHARED % 0.0)  # it is in none
    assert line.startswith(
        "config.yaml:3:25: algorithm.kl_estimator='k1' does nothing with"
    )


def test_what_stages_share_may_be_merged_with_what_one_has(write: Write) -> None:
    text = """\
critic: {optim: {lr: 0.5}}
stages:
  - {name: sft, algorithm: sft, steps: 1}
  - {name: rl, steps: 1, algorithm: ppo, critic: {stage: sft, optim: {warmup_steps: 3}}}
"""
    optim = load_config(write(text)).resolved_stages()[-1].critic.optim
    assert (optim.lr, optim.warmup_steps) == (0.5, 3)


def test_a_stages_own_setting_must_act_in_it(problems: Problems) -> None:
    text = SHARED % "0.1}}\n  - {name: c, steps: 1, algorithm: {kl_weighted: true"
    (line,) = problems(text)
    assert (
        "stages.c.algorithm.kl_weighted=True does nothing with algorithm.kl_coef=0.0"
        in line
    )


def test_what_an_override_makes_idle_is_told(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("algorithm: {kl_coef: 0.1, kl_estimator: k1}\n")
    with caplog.at_level(logging.WARNING):
        load_config(path, ["optim.lr=1"])
        assert not caplog.messages
        load_config(path, ["algorithm.kl_coef=0"])
    (message,) = caplog.messages
    assert message.startswith(
        f"{path}:3:27: algorithm.kl_estimator='k1' does nothing with algorithm.kl_coef=0"
    )
    with pytest.raises(ConfigError, match="kl_weighted=True does nothing"):
        load_config(path, ["algorithm.kl_coef=0", "algorithm.kl_weighted=true"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algorithm: {name: grpo, rollout_correction: {level: none, cap: 2.0}}",
         "algorithm.rollout_correction.cap=2.0 does nothing with "
         "algorithm.rollout_correction.level='none'; leave it out, or set "
         "algorithm.rollout_correction.level to another value"),
        ("rollout: {on_stale: wait}",
         "rollout.on_stale='wait' does nothing with rollout.schedule='sync'; leave it out, or set "
         "rollout.schedule to another value"),
        ("run: {deterministic: true}\nrollout: {on_stale: wait}",
         "rollout.on_stale='wait' does nothing with rollout.schedule='sync'"),
        ("algorithm: {name: ppo, gae: {lam: 0.95, length_alpha: 0.1}}\ncritic: {stage: model}",
         "algorithm.gae.lam=0.95 does nothing with algorithm.gae.length_alpha=0.1; leave it out, "
         "or set algorithm.gae.length_alpha to None"),
        ("algorithm: {name: distillation, kl_estimator: k1}\nreference: {stage: model}",
         "algorithm.kl_estimator='k1' does nothing with algorithm.kl_coef=0.0"),
        ("algorithm: {name: distillation, overlong: {max_tokens: 9, buffer_tokens: 3}}",
         "algorithm.overlong has no use here, since the teacher alone says"),
        ("critic: {optim: {lr: 0.5}}",
         "critic.optim does nothing with algorithm.name='grpo' as it is set; leave it out, or "
         "choose one with it, such as ppo"),
        ("rollout: {full_sync_every: 5}",
         "rollout.full_sync_every=5 does nothing with placement.rollout_workers=0 (nothing is "
         "then sent as changes); leave it out, or set it above 0"),
        ("reference: {path: x}",
         "reference.path does nothing with algorithm.name='grpo' as it is set"),
        ("algorithm: sft\neval: {sets: {a: t.py:f}}",
         "eval.sets does nothing with algorithm.name='sft' as it is set; leave it out, or evaluate "
         "the trained model by `agentrl eval`"),
        ("algorithm: sft\ntrain: {router_replay: rollout}",
         "train.router_replay does nothing with algorithm.name='sft' as it is set; leave it out, "
         "or choose one that trains what a sampler wrote"),
        ("algorithm: reward_model\ntrain: {router_replay: rollout}",
         "train.router_replay does nothing with algorithm.name='reward_model' as it is set"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_told(problems: Problems, text: str, words: str) -> None:
    assert any(words in line for line in problems(text)), problems(text)


def test_what_was_printed_of_a_configuration_loads(write: Write, tmp_path: Path) -> None:
    """It has all defaults, of settings that cannot act too."""
    config = load_config(write(SHARED % 0.1))
    own = tmp_path / "own.yaml"
    own.write_text(to_yaml(load_config(write("algorithm: {name: grpo, kl_coef: 0.0}"))))
    assert load_config(own).train == RunConfig().train
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"format": 4}')
    (run / "config.resolved.yaml").write_text(to_yaml(config))
    assert (
        load_config(run / "config.resolved.yaml").resolved_stages()
        == config.resolved_stages()
    )


def test_the_placement_of_processes_is_the_runs_and_no_stages() -> None:
    stages = [{"name": "a", "steps": 1, "placement": {"world_size": 2}}]
    with pytest.raises(
        ConfigError, match=r"unknown key stages\.a\.placement; did you mean"
    ):
        load_config({**BASE, "stages": stages})
