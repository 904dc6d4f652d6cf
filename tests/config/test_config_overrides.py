"""``key=value`` goes before the file, and a mistake in it is told as in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config

Problems = Callable[..., list[str]]
Write = Callable[..., Path]

STAGES = """\
stages:
  - {name: warmup, algorithm: sft, steps: 5, data: demos.py:rows}
  - {name: rl, algorithm: grpo, steps: 7}
"""


def test_a_later_override_wins(write: Write) -> None:
    assert (
        load_config(write("run: {seed: 1}\n"), ["run.seed=2", "run.seed=3"]).run.seed == 3
    )


def test_a_value_is_yaml(write: Write) -> None:
    config = load_config(
        write(""),
        ["optim.lr=1e-4", "rollout.stop=['</a>', b]", "eval.sets={code: {data: t.py:f}}"],
    )
    assert (config.optim.lr, config.rollout.stop) == (1e-4, ("</a>", "b"))
    assert config.eval.sets["code"].data == "t.py:f"


def test_a_mapping_of_overrides_is_taken_as_it_is(write: Write) -> None:
    config = load_config(write(""), {"optim.lr": 0.5, "run.notes": "a: b"})
    assert (config.optim.lr, config.run.notes) == (0.5, "a: b")


def test_a_stage_is_named_by_name_or_position(write: Write) -> None:
    config = load_config(write(STAGES), ["stages.rl.steps=11", "stages.0.optim.lr=0.25"])
    warmup, rl = config.resolved_stages()
    assert (warmup.optim.lr, rl.train.steps) == (0.25, 11)


def test_an_override_at_the_top_reaches_every_stage_that_does_not_say_otherwise(
    write: Write,
) -> None:
    warmup, rl = load_config(write(STAGES), ["train.batch_prompts=4"]).resolved_stages()
    assert (warmup.train.batch_prompts, rl.train.batch_prompts) == (4, 4)


def test_an_override_reaches_the_last_stage_although_that_has_a_value_of_its_own(
    write: Write,
) -> None:
    warmup, rl = load_config(write(STAGES), ["train.steps=3"]).resolved_stages()
    assert (warmup.train.steps, rl.train.steps) == (5, 3)


def test_an_override_of_an_algorithm_reaches_the_stage_that_names_its_own(
    write: Write,
) -> None:
    _, rl = load_config(write(STAGES), ["algorithm.clip_low=0.1"]).resolved_stages()
    assert rl.algorithm.settings == {"clip_low": 0.1}


def test_an_override_reaches_into_what_only_the_last_stage_has(write: Write) -> None:
    stages = STAGES.replace("steps: 7", "steps: 7, eval: {sets: {code: t.py:f}}")
    warmup, rl = load_config(
        write(stages), ["eval.sets.code.num_tasks=9"]
    ).resolved_stages()
    assert (warmup.eval.sets, rl.eval.sets["code"].num_tasks) == ({}, 9)


@pytest.mark.parametrize(
    ("top", "rl", "override", "expected"),
    [
        ("", "", "train.batch_prompts=4", (4, 4)),
        ("", "train: {batch_prompts: 8}", "train.batch_prompts=4", (4, 4)),
        (
            "train: {batch_prompts: 9}",
            "train: {batch_prompts: 8}",
            "train.batch_prompts=4",
            (4, 4),
        ),
        (
            "train: {batch_prompts: 9}",
            "train: {batch_prompts: 8}",
            "placement.world_size=2",
            (9, 8),
        ),
        ("", "train: {batch_prompts: 8}", "train={batch_prompts: 4}", (4, 4)),
        ("", "train: {batch_prompts: 8}", "stages.rl.train.batch_prompts=4", (16, 4)),
    ],
)
def test_an_override_is_set_at_the_top_and_where_the_last_stage_has_the_key(
    write: Write, top: str, rl: str, override: str, expected: tuple[int, int]
) -> None:
    text = top + "\n" + STAGES.replace("steps: 7", f"steps: 7{', ' * bool(rl)}{rl}")
    first, last = load_config(write(text), [override]).resolved_stages()
    assert (first.train.batch_prompts, last.train.batch_prompts) == expected


def test_settings_at_the_top_hold_for_stages_that_name_the_same_algorithm(
    write: Write,
) -> None:
    _, rl = load_config(write("algorithm: {clip_low: 0.1}\n" + STAGES)).resolved_stages()
    assert rl.algorithm.settings == {"clip_low": 0.1}


def test_text_for_a_section_keeps_what_else_the_section_says(write: Write) -> None:
    head = "model: {path: m}\ndata: {train: a.py:f, max_prompt_tokens: 77}\n"
    config = load_config(write("", head=head), ["data=b.py:g"])
    assert (config.data.train, config.data.max_prompt_tokens) == ("b.py:g", 77)


def test_a_short_form_can_be_descended_into(write: Write) -> None:
    config = load_config(
        write("eval: {sets: {code: t.py:f}}\n"), ["eval.sets.code.num_tasks=5"]
    )
    assert (config.eval.sets["code"].data, config.eval.sets["code"].num_tasks) == (
        "t.py:f",
        5,
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lr", "an override is written key=value, got 'optim.lr'"),
        ("=3", "an override is written key=value, got '=3'"),
        ("optim.lr=fast", "optim.lr must be a number, got 'fast'"),
        ("optim.rl=1", "unknown key optim.rl; did you mean optim.lr?"),
        ("optm.lr=1", "unknown key optm; did you mean optim?"),
        ("optim.lr.peak=1", "optim.lr is 0.1, which has no 'peak' in it"),
        ("rollout.stop=[a", "the value of rollout.stop is not YAML"),
        ("stages.r1.steps=3", "stages has no entry named 'r1'; did you mean 'rl'?"),
        ("stages.2.steps=3", "stages has 2 entries, counted from 0, so there is no 2"),
        ("stages.rl.steps=x", "stages.rl.steps must be an integer, got 'x'"),
    ],
)
def test_a_mistake_in_an_override_is_named(
    problems: Problems, override: str, message: str
) -> None:
    (line,) = problems("optim: {lr: 0.1}\n" + STAGES, [override])
    assert line.startswith(f"command line: {override}: {message}")
