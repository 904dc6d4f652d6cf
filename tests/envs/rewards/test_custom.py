"""verl's and TRL's reward functions, as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trl.rewards import accuracy_reward, think_format_reward

from agentrl.envs import Rubric, Score
from agentrl.envs.rewards.custom import custom_reward
from agentrl.errors import ConfigError, RewardError

from .episodes import episode


def reward(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    args = settings.pop("args", {})
    return custom_reward(
        function, "own", args, lambda rule: ConfigError(f"reward.custom{rule}"), **settings
    )


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any
) -> float:
    assert (data_source, extra_info) == ("default", {"level": 3, "num_turns": 1})
    return float(solution_str.split("####")[-1].strip() == ground_truth)


async def test_verls_function_gets_what_verl_gives_it() -> None:
    own = episode("It is\n#### 42", "42", info={"level": 3})
    assert await Rubric([reward(compute_score)]).score(own) == {"own": 1.0}


async def test_the_other_entries_of_verls_mapping_are_the_reason() -> None:
    def compute(
        data_source: str, solution_str: str, ground_truth: str, **extra: Any
    ) -> Any:
        return {"score": 0.5, "acc": np.True_, "pred": solution_str, "kind": extra["kind"]}

    scores = await Rubric([reward(compute, args={"kind": "x"})]).scores(episode("4"))
    assert scores == {"own": Score(0.5, {"acc": 1.0, "pred": "4", "kind": "x"})}


async def test_verls_batched_function_gets_a_group() -> None:
    def batched(
        data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any
    ) -> Any:
        return [
            float(said == truth)
            for said, truth in zip(solution_strs, ground_truths, strict=True)
        ]

    found = await Rubric([reward(batched)]).group_scores(
        [episode("4", "4"), episode("5", "4")]
    )
    assert [own["own"].value for own in found] == [1.0, 0.0]


async def test_a_mapping_of_verls_batched_function_is_refused() -> None:
    def batched(
        data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any
    ) -> Any:
        return {0: 0.5, 1: 0.5}

    with pytest.raises(
        RewardError, match=r"must give a list of 2 numbers, .* got \{0: 0\.5"
    ):
        await Rubric([reward(batched)]).group_scores([episode("4", "4"), episode("5", "4")])


async def test_trls_own_functions_run_as_they_are() -> None:
    views = [episode("<think>hm</think>\\boxed{\\frac{1}{2}}"), episode("\\boxed{3}")]
    views = [replace(v, task=replace(v.task, info={"solution": "$0.5$"})) for v in views]
    accuracy, form = reward(accuracy_reward), reward(think_format_reward)
    form.__name__ = "form"
    found = await Rubric([accuracy, form]).group_scores(views)
    assert [own["own"].value for own in found] == [1.0, 0.0]
    assert [own["form"].value for own in found] == [1.0, 0.0]


async def test_trls_function_of_texts_and_columns() -> None:
    def lengths(prompts: Any, completions: Any, level: Any, **columns: Any) -> Any:
        assert prompts == ["?", "?"]
        assert columns["answer"] == ["4", "4"]
        return [len(text) * own for text, own in zip(completions, level, strict=True)]

    views = [episode("ab", "4", info={"level": 2}), episode("abc", "4", info={"level": 2})]
    found = await Rubric([reward(lengths, conversational=False)]).group_scores(views)
    assert [own["own"].value for own in found] == [4.0, 6.0]


async def test_a_column_that_the_data_lacks_is_named() -> None:
    def wants(completions: Any, solution: Any) -> Any:
        return [0.0 for _ in completions]

    with pytest.raises(
        RewardError, match="needs the column 'solution', and task 't-1' has answer"
    ):
        await Rubric([reward(wants)]).group_scores([episode("4")])


@pytest.mark.parametrize("value", [None, float("nan"), "1"])
async def test_what_trls_function_gives_for_one_is_named_and_never_zero(value: Any) -> None:
    def odd(completions: Any, **columns: Any) -> Any:
        return [1.0, value]

    with pytest.raises(
        RewardError, match=r"must be a finite number, got .*test_custom\.py:\d+"
    ):
        await Rubric([reward(odd)]).group_scores([episode("4"), episode("5")])


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (
            lambda episode: 1.0,
            "must take verl's .* or TRL's .*belongs into reward.functions",
        ),
        (
            lambda data_source, solution_str, ground_truth, tokenizer: 1.0,
            "needs the argument 'tokenizer'.*reward.custom.args",
        ),
    ],
)
def test_a_function_of_another_kind_is_refused(function: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        reward(function)


async def test_a_task_that_a_model_scores_is_not_given_to_the_rule() -> None:
    own = episode("It is 42", "42", info={"reward_style": "model"})
    assert await Rubric([reward(compute_score)]).score(own) == {}
