"""What stages may start from, and which reward models may score their episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config

Problems = Callable[..., list[str]]
Write = Callable[..., Path]

STAGES = """
stages:
  - {{name: sft, algorithm: sft, steps: 1}}
  - {{name: rm, from: sft, algorithm: {{name: reward_model, centring: 0.01, use_margin: false}}, steps: 1{rm}}}
  - {{name: rl, from: {origin}, steps: 1, reward: {{model: {{{model}}}}}}}
"""  # noqa: E501


def stages(origin: str = "sft", model: str = "stage: rm", rm: str = "") -> str:
    return STAGES.format(origin=origin, model=model, rm=rm)


def test_three_entries_load(write: Write) -> None:
    sft, rm, rl = load_config(write(stages())).resolved_stages()
    assert (rl.reward.model.stage, rl.reward.model.weight, rl.starts_from) == (
        "rm",
        1.0,
        "sft",
    )
    assert rm.algorithm.settings == {"centring": 0.01, "use_margin": False}
    assert not sft.reward.model.given


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            stages(origin="rm"),
            "stages.rl.from must name a policy (model, sft), since algorithm.name='grpo' trains "
            "one",
        ),
        (stages(origin="rm"), "got the reward model 'rm'"),
        (
            stages(model="stage: sft"),
            "must name an earlier stage that trains a reward model (those are: rm), got 'sft'",
        ),
        (
            stages(model="stage: rl"),
            "stages.rl.reward.model.stage must name an earlier stage",
        ),
        (
            stages(model="stage: rm, path: x"),
            "reward.model.stage and reward.model.path exclude each other",
        ),
        (stages(model="stag: rm"), "unknown key stages.rl.reward.model.stag; did you mean"),
        (
            stages().replace(
                "from: sft, steps: 1, reward",
                "from: sft, steps: 1, "
                "algorithm: {name: grpo, kl_coef: 0.1}, reference: {stage: rm}, reward",
            ),
            "reference.stage must name what the reference starts from (model, sft), got 'rm'",
        ),
        (stages(model="stage: rm, weight: much"), "weight must be a number, got 'much'"),
        (stages(rm=", when: built"), "'rm' is skipped, since it is `when: built`"),
        (
            "algorithm: {name: reward_model, centring: -1}",
            "algorithm.centring must be at least 0, got -1",
        ),
        (
            "algorithm: {name: reward_model, centering: 1.0}",
            "did you mean algorithm.centring?",
        ),
        (
            "reward: {model: {path: x}, functions: [a.py:reward_model]}",
            "needs another name than 'reward_model'",
        ),
        (
            "env: {entry_point: a.py:E}\neval: {sets: {a: {data: a.py:t, tools: false}}}",
            "env.entry_point='a.py:E' has its own",
        ),
    ],
)
def test_a_broken_rule_is_told(problems: Problems, text: str, words: str) -> None:
    assert any(words in problem for problem in problems(text)), problems(text)


def test_by_default_a_policy_after_a_reward_model_is_told_where_to_start(
    problems: Problems,
) -> None:
    text = stages().replace("from: sft, steps: 1, reward", "steps: 1, reward")
    assert any("stages.rl.from must name a policy" in problem for problem in problems(text))


def test_a_given_model_leaves_a_stage_to_run(problems: Problems) -> None:
    assert problems(
        "stages:\n  - {name: a, when: built}\n  - {name: b, when: built}\n"
    ) == [
        "config.yaml:1:9: model.path='some/model' skips each of the stages, since all have "
        "when='built'; set when='always' for one of them, or model.build in place of model.path"
    ]
