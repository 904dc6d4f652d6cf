"""Every fault is named with its place, its key, the rule, the value found, and what was probably
meant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError

Problems = Callable[..., list[str]]


def test_a_misspelt_key_says_where_it_is_and_what_was_meant(problems: Problems) -> None:
    assert problems("rollout: {grup_size: 4}\n") == [
        "config.yaml:3:11: unknown key rollout.grup_size; did you mean rollout.group_size?"
    ]


def test_a_key_of_another_section_is_found_there(problems: Problems) -> None:
    assert problems("train:\n  group_size: 4\n") == [
        "config.yaml:4:3: unknown key train.group_size; did you mean rollout.group_size?"
    ]


def test_an_unknown_key_like_no_other_is_named_alone(problems: Problems) -> None:
    assert problems("zebra: 1\n") == ["config.yaml:3:1: unknown key zebra"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optim: {lr: fast}", "optim.lr must be a number, got 'fast'"),
        ("optim: {lr: '1e-3'}", "optim.lr must be a number, got '1e-3'"),
        ("train: {steps: 1.0}", "train.steps must be an integer, got 1.0"),
        ("train: {steps: true}", "train.steps must be an integer, got True"),
        ("train: {steps: 0}", "train.steps must be at least 1, got 0"),
        ("rollout: {stop: ['']}", "rollout.stop.0 must not be empty, got ''"),
        ("run: {deterministic: no}", "run.deterministic must be true or false, got 'no'"),
        ("model: {path: 3}", "model.path must be a text, got 3"),
        ("rollout: {stop: x}", "rollout.stop must be a list, got 'x'"),
        ("rollout: [1]", "rollout must be a mapping of settings, got [1]"),
        ("data: {train: t.py:f, args: 3}", "data.args must be a mapping, got 3"),
        ("rollout: {top_p: 0}", "rollout.top_p must be more than 0, got 0"),
        ("optim: {lr: .inf}", "optim.lr must be a finite number, got inf"),
        ("optim: {betas: [0.9]}", "optim.betas must have at least 2 entries, got (0.9,)"),
        ("optim: {betas: [0.9, 1.0]}", "optim.betas.1 must be less than 1, got 1.0"),
        ("rollout: {engine: "
         "sglnag}", "rollout.engine='sglnag' is unknown; did you mean 'sglang'?; choose one of "
                    "openai, sglang, torch, vllm, or name your own as file.py:NAME or module:NAME"),
        ("stages: 3", "stages must be a list, got 3"),
        ("stages: [3]", "stages.0 must be a mapping of settings, got 3"),
        ("env: {tools: [{args: {}}]}", "env.tools.0.function is required"),
        ("eval: {sets: {code: {dat: x.py:f}}}", "eval.sets.code.data is required"),
    ],
)  # fmt: skip
def test_a_wrong_value_says_rule_and_value(
    problems: Problems, setting: str, message: str
) -> None:
    lines = problems("", head=setting + "\n")
    assert message in [line.split(": ", 1)[1] for line in lines]


def test_all_problems_come_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    sizes = "train: {batch_prompts: 6, mini_batch_prompts: 4}\n"
    found = problems(
        "optim: {lr: fast}\nrollout:\n  engine: tgi\n  group_size: 1\n" + sizes,
        ["run.sede=1"],
    )
    assert [line.split(": ", 1)[0] for line in found] == [
        "config.yaml:3:9",
        "config.yaml:5:3",
        "config.yaml:6:3",
        "config.yaml:7:27",
        "command line",
    ]


def test_a_fault_at_the_top_is_told_once_however_many_stages_inherit_it(
    problems: Problems,
) -> None:
    stages = "stages:\n  - {name: a, algorithm: sft, steps: 1}\n  - {name: b, steps: 1}\n"
    assert problems("optim: {lr: fast}\n" + stages) == [
        "config.yaml:3:9: optim.lr must be a number, got 'fast'"
    ]


def test_a_rule_about_a_faulty_value_keeps_quiet(problems: Problems) -> None:
    # mini_batch_prompts=5 cannot be judged against a batch_prompts that is no number
    assert problems("train: {batch_prompts: many, mini_batch_prompts: 5}\n") == [
        "config.yaml:3:9: train.batch_prompts must be an integer, got 'many'"
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration file .*absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; name the configuration file in it"):
        load_config(tmp_path)


def test_a_file_that_is_not_yaml_says_where(problems: Problems) -> None:
    (line,) = problems("rollout: {group_size: 8\noptim: }\n")
    assert line.startswith("config.yaml:4:")
    assert "is not YAML" in line


def test_a_file_of_bytes_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00model")
    with pytest.raises(ConfigError, match="cannot be read as a configuration"):
        load_config(path)


def test_a_file_must_hold_a_mapping(problems: Problems) -> None:
    assert problems("", head="- a\n- b\n") == [
        "config.yaml:1:1: the file must be a mapping of settings"
    ]


def test_an_empty_file_lacks_its_model_and_data(problems: Problems) -> None:
    found = problems("", head="")
    assert any("model.path or model.build is required" in line for line in found)
    assert any("data.train is required" in line for line in found)


def test_a_long_value_is_cut(problems: Problems) -> None:
    (line,) = problems(f"rollout: {{group_size: {'x' * 500}}}\n")
    assert len(line) < 200


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("lr=1", "optim.lr"),
        ("rank=8", "model.lora.rank"),
        ("tp_size=2", "placement.tp_size"),
    ],
)
def test_a_key_of_several_sections_is_meant_for_the_most_usual(
    problems: Problems, override: str, meant: str
) -> None:
    (told,) = problems("", [override])
    assert told.endswith(f"; did you mean {meant}?")
