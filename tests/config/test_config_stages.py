"""Stages: each whole, merged over the top, started where it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentrl.config.load import load_config

Problems = Callable[..., list[str]]
Write = Callable[..., Path]

BUILT = "model: {build: m.py:build}\ndata: {train: task.py:tasks, args: {n: 3}}\n"
TWO = """\
algorithm: {name: grpo, clip_low: 0.1}
optim: {lr: 0.5, eps: 1e-5}
stages:
  - name: warmup
    when: built
    algorithm: sft
    data: demos.py:rows
    steps: 5
    optim: {lr: 0.25}
  - name: rl
    steps: 7
"""


def test_a_file_without_stages_is_one_stage(write: Write) -> None:
    (stage,) = load_config(write("train: {steps: 3}\n")).resolved_stages()
    assert (stage.name, stage.train.steps, stage.starts_from) == ("train", 3, "model")


def test_a_stage_is_merged_over_the_top(write: Write) -> None:
    warmup, rl = load_config(write(TWO, head=BUILT)).resolved_stages()
    assert (warmup.optim.lr, warmup.optim.eps, rl.optim.lr) == (0.25, 1e-5, 0.5)


def test_settings_of_another_algorithm_or_data_set_do_not_carry_over(write: Write) -> None:
    warmup, rl = load_config(write(TWO, head=BUILT)).resolved_stages()
    assert (warmup.algorithm.settings, rl.algorithm.settings) == ({}, {"clip_low": 0.1})
    assert (warmup.data.args, rl.data.args) == ({}, {"n": 3})


def test_steps_of_a_stage_replace_epochs_of_the_top(write: Write) -> None:
    warmup, _ = load_config(
        write("train: {epochs: 2}\n" + TWO, head=BUILT)
    ).resolved_stages()
    assert (warmup.train.steps, warmup.train.epochs) == (5, None)


def test_a_stage_starts_from_the_one_before(write: Write) -> None:
    assert [
        s.starts_from for s in load_config(write(TWO, head=BUILT)).resolved_stages()
    ] == [
        "model",
        "warmup",
    ]


def test_a_model_of_ones_own_skips_the_warm_up_and_starts_the_next_stage(
    write: Write,
) -> None:
    (rl,) = load_config(write(TWO, head=BUILT), ["model.path=m"]).resolved_stages()
    assert (rl.name, rl.starts_from) == ("rl", "model")


def test_a_warm_up_can_be_forced(write: Write) -> None:
    stages = load_config(
        write(TWO, head=BUILT), ["model.path=m", "stages.warmup.when=always"]
    ).resolved_stages()
    assert [stage.name for stage in stages] == ["warmup", "rl"]


def test_from_names_an_earlier_stage(write: Write) -> None:
    third = "  - {name: again, steps: 1, from: warmup}\n"
    assert (
        load_config(write(TWO + third, head=BUILT)).resolved_stages()[2].starts_from
        == "warmup"
    )


def test_from_must_name_an_earlier_stage(problems: Problems) -> None:
    text = "stages:\n  - {name: a, steps: 1, from: b}\n  - {name: b, steps: 1}\n"
    assert problems(text) == [
        "config.yaml:4:25: stages.a.from must be one of model (the stages before it), got 'b'"
    ]


def test_stages_have_different_names(problems: Problems) -> None:
    (line,) = problems("stages:\n  - {name: a, steps: 1}\n  - {name: a, steps: 2}\n")
    assert line.startswith("config.yaml:5:6: stages need different names")


def test_a_stage_says_its_steps_once(problems: Problems) -> None:
    (line,) = problems("stages:\n  - {name: a, steps: 1, train: {steps: 2}}\n")
    assert "stages.a.steps is short for train.steps, got both (1 and 2)" in line


def test_a_stage_may_not_change_what_the_run_shares(problems: Problems) -> None:
    (line,) = problems("stages:\n  - {name: a, steps: 1, model: {path: x}}\n")
    assert line.startswith("config.yaml:4:25: unknown key stages.a.model")


def test_a_fault_in_a_stage_is_placed_in_the_stage(problems: Problems) -> None:
    (line,) = problems(
        "stages:\n  - name: a\n    steps: 1\n    rollout: {temperature: hot}\n"
    )
    assert (
        line == "config.yaml:6:15: stages.a.rollout.temperature must be a number, got 'hot'"
    )
