"""What is written to config.resolved.yaml loads again, and every value knows where it came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.config import load_with_origins, to_yaml
from agentrl.config.document import parse_document
from agentrl.config.load import load_config
from agentrl.errors import ConfigError

Write = Callable[..., Path]

ONE = """\
run: {notes: "two lines\\n# not a comment: no"}
rollout: {stop: ["012", "no", "1e-6"]}
env: {tools: [t.py:f, {function: t.py:g, args: {limit: 1e-6, name: "on"}}], system_prompt: "a: b # c"}
"""  # noqa: E501
STAGES = """\
algorithm: {clip_low: 0.1}
train: {batch_prompts: 16}
stages:
  - {name: warmup, when: built, algorithm: sft, data: demos.py:rows, steps: 5, train: {batch_prompts: 8}}
  - {name: rl, steps: 7, from: model}
"""  # noqa: E501


@pytest.mark.parametrize("text", [ONE, STAGES])
def test_the_resolved_file_loads_to_the_same_stages(
    write: Write, tmp_path: Path, text: str
) -> None:
    config = load_config(write(text), ["model.path=null", "model.build=m.py:build"])
    resolved = tmp_path / "elsewhere" / "config.resolved.yaml"
    resolved.parent.mkdir()
    resolved.write_text(to_yaml(config))
    again = load_config(resolved)
    assert again.resolved_stages() == config.resolved_stages()
    assert to_yaml(again) == to_yaml(config)


def test_the_resolved_file_with_origins_loads_to_the_same_too(
    write: Write, tmp_path: Path
) -> None:
    loaded = load_with_origins(write(ONE))
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(to_yaml(loaded.config, loaded.origin))
    assert load_config(resolved).resolved_stages() == loaded.config.resolved_stages()


# Texts that YAML could read as something else, or folds.
TEXTS = st.text(
    st.one_of(
        st.sampled_from("?:-#,[]{}&*!|>'\"%@`~ \t\na1.e\x85\u2028\ufeff"),
        st.characters(codec="utf-8"),
    ),
    max_size=6,
)
LEAVES = st.one_of(TEXTS, st.integers(), st.booleans(), st.none())
VALUES = st.recursive(
    LEAVES, lambda own: st.lists(own, max_size=3) | st.dictionaries(TEXTS, own, max_size=3)
)


@settings(max_examples=2, deadline=None, database=None, derandomize=True)
@given(args=st.dictionaries(TEXTS, VALUES, min_size=20, max_size=40))
@example(
    args={"x": [{"a": 1}, 2], "y": ["? x", ": x", "\x85"], "z": [[{"a": ["? x"]}], []]}
)
def test_arguments_of_any_kind_load_again(args: dict[str, Any]) -> None:
    loaded = load_with_origins(
        {"model": {"path": "m"}, "data": {"train": "t.py:f", "args": args}}
    )
    text = to_yaml(loaded.config, loaded.origin)
    assert parse_document(text, "config.yaml").tree["data"]["args"] == args


@pytest.mark.parametrize("stop", ["? x", ": x", "\x85"])
def test_a_text_in_a_list_loads_again(write: Write, tmp_path: Path, stop: str) -> None:
    config = load_config(write(), {"rollout.stop": [stop]})
    resolved = tmp_path / "config.resolved.yaml"
    resolved.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(resolved).rollout.stop == (stop,)


def test_origins_are_file_command_line_and_default(write: Write) -> None:
    path = write("optim:\n  lr: 0.5\n")
    loaded = load_with_origins(path, ["run.seed=3"])
    assert loaded.origin(("optim", "lr")) == f"{path}:4:3"
    assert loaded.origin(("run", "seed")) == "command line: run.seed=3"
    assert loaded.origin(("optim", "eps")) == "default"


def test_origins_of_a_stage_are_its_own_or_the_tops(write: Write) -> None:
    path = write(STAGES)
    loaded = load_with_origins(path, ["stages.rl.optim.lr=0.5"])
    assert loaded.origin(("train", "batch_prompts"), 0) == f"{path}:6:88"
    assert loaded.origin(("train", "batch_prompts"), 1) == f"{path}:4:9"
    assert loaded.origin(("train", "steps"), 1) == f"{path}:7:16"
    assert loaded.origin(("optim", "lr"), 1) == "command line: stages.rl.optim.lr=0.5"


def test_sources_name_what_is_no_default_by_its_key_in_the_resolved_file(
    write: Write,
) -> None:
    path = write(STAGES)
    found = load_with_origins(path, ["run.seed=3", "stages.rl.optim.lr=0.5"]).sources()
    assert found["run.seed"] == "command line: run.seed=3"
    assert found["stages.rl.optim.lr"] == "command line: stages.rl.optim.lr=0.5"
    assert found["stages.rl.train.batch_prompts"] == f"{path}:4:9"
    assert found["stages.rl.from"] == f"{path}:7:26"
    assert found["stages.warmup.train.batch_prompts"] == f"{path}:6:88"
    assert "stages.warmup.algorithm.clip_low" not in found
    assert "default" not in found.values()
    alone = load_with_origins(write("optim: {lr: 0.5}\n"), []).sources()
    assert alone["optim.lr"] == f"{path}:3:9"


def test_what_does_not_carry_over_into_a_stage_is_its_default(write: Write) -> None:
    loaded = load_with_origins(write(STAGES))
    assert loaded.origin(("algorithm", "clip_low"), 0) == "default"


def test_the_run_directory_is_named_for_the_folder_of_the_file(
    write: Write, tmp_path: Path
) -> None:
    assert load_config(write()).run.dir == f"runs/{tmp_path.name}"


def test_references_start_at_the_folder_of_the_file(write: Write, tmp_path: Path) -> None:
    assert load_config(write()).run.base_dir == str(tmp_path)
    assert load_config(write("run: {base_dir: sub}\n")).run.base_dir == str(
        tmp_path / "sub"
    )


def test_the_folders_of_a_run_may_start_at_home(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = (f"run.{name}=~/{name}" for name in ("dir", "base_dir", "replay"))
    run = load_config(write(), [*home]).run
    assert [run.dir, run.base_dir, run.replay] == [
        f"{tmp_path}/home/{name}" for name in ("dir", "base_dir", "replay")
    ]


def test_a_mapping_is_a_configuration_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config({"model": {"path": "m"}, "data": "t.py:f", "optim": {"lr": 1}})
    assert (config.data.train, config.optim.lr, config.run.base_dir) == (
        "t.py:f",
        1.0,
        str(tmp_path),
    )


def test_loading_leaves_the_given_mapping_alone() -> None:
    given = {"model": {"path": "m"}, "data": "t.py:f"}
    load_config(given, ["run.seed=1"])
    assert given == {"model": {"path": "m"}, "data": "t.py:f"}


def test_the_configuration_of_a_run_of_another_format_is_refused_by_its_format(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.json").write_text('{"format": 1}')
    path = tmp_path / "config.resolved.yaml"
    path.write_text("rollout: {retries: 1}\n")
    with pytest.raises(
        ConfigError, match=r"run\.json has format=1 and this agentrl reads 4; use"
    ):
        load_config(path)
