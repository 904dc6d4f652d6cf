"""Custom rewards: verl's ``compute_score`` and TRL's reward functions, called as they are there.

Which of them a function is follows from the names of its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from agentrl.envs.score import Score, group_rewards
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.types import Message
from agentrl.types.user_code.load import needed_arguments, signature_of, taken_arguments
from agentrl.types.user_code.values import is_series, private_copy

_VERL = {
    "data_source": "data_sources",
    "solution_str": "solution_strs",
    "ground_truth": "ground_truths",
    "extra_info": "extra_infos",
}
"""verl's arguments of one episode, and of a batch of them."""


def custom_reward(
    function: Callable[..., Any],
    name: str,
    args: Mapping[str, Any],
    broken: Callable[[str], ConfigError],
    *,
    conversational: bool = True,
) -> Callable[..., Any]:
    """A reward function of agentrl's that calls the user's.

    Args:
        function: the user's.
        name: of the part.
        args: further keywords of each call.
        broken: makes the error of its setting.
        conversational: whether TRL's function gets completions as messages; else as texts.

    Raises:
        ConfigError: its arguments are neither verl's nor TRL's, or it needs others.
    """
    signature = signature_of(function)
    names = set(signature.parameters)
    compute: Callable[..., Any]
    if "completions" in names:
        compute = partial(_trl_rewards, conversational=conversational)
    elif (_VERL.keys() - {"extra_info"}) & names:
        _check_given(function, [*_VERL, *args], broken)
        compute = _verl_reward
    elif ({*_VERL.values()} - {"extra_infos"}) & names:
        _check_given(function, [*_VERL.values(), *args], broken)
        compute = _verl_rewards
    else:
        raise broken(
            f" must take verl's (data_source, solution_str, ground_truth, extra_info) or TRL's "
            f"(prompts, completions, **columns), but has the signature {signature}; a function of "
            "the episode belongs into reward.functions"
        )

    def reward(of: Any) -> Any:
        return compute(function, args, of)

    reward.__name__ = name
    reward.__dict__.update({"__wrapped__": function, "rule_based": True})
    return reward if compute is _verl_reward else group_rewards(reward)


def _check_given(
    function: Callable[..., Any], given: Sequence[str], broken: Callable[[str], ConfigError]
) -> None:
    for name in needed_arguments(function):
        if name not in given:
            raise broken(
                f" needs the argument {name!r}, which nobody gives; put it into reward.custom.args"
            )


def _called(
    function: Callable[..., Any], given: Mapping[str, Any], args: Mapping[str, Any]
) -> Any:
    """What a function gives for those of ``given`` that it takes, and for ``args``."""
    return function(**{**taken_arguments(function, given), **private_copy(args)})


def _verl_reward(
    function: Callable[..., Any], args: Mapping[str, Any], view: EpisodeView
) -> Any:
    return _then(_called(function, _verl_arguments(view), args), _verl_score)


def _verl_rewards(
    function: Callable[..., Any], args: Mapping[str, Any], views: Sequence[EpisodeView]
) -> Any:
    rows = [_verl_arguments(view) for view in views]
    given = {many: [row[one] for row in rows] for one, many in _VERL.items()}
    scores = _called(function, given, args)
    return _then(
        scores,
        lambda scores: (
            [_verl_score(one) for one in scores] if is_series(scores) else scores
        ),
    )


def _verl_arguments(view: EpisodeView) -> dict[str, Any]:
    """What verl passes, with the policy's own texts in the place of the decoded response."""
    said = [text for turn in view.turns if (text := turn.text)]
    return {
        "data_source": view.task.data_source,
        "solution_str": "\n".join(said) or view.final_text,
        "ground_truth": view.task.answer,
        "extra_info": {**view.task.info, "num_turns": len(view.turns)},
    }


def _verl_score(given: Any) -> Any:
    """A number, or a mapping whose ``score`` is one and whose other entries are for people; but
    ``acc`` is the episode's accuracy (``agentrl.metrics.rollout.correctness``).
    """
    if not isinstance(given, Mapping):
        return given
    if "score" not in given:
        raise RewardError(f"a mapping of compute_score needs 'score', got {sorted(given)}")
    why = {key: own for key, own in given.items() if key != "score"}
    if isinstance(why.get("acc"), bool | np.bool_ | np.number):
        why["acc"] = float(why["acc"])
    return Score(given["score"], why or None)


def _trl_rewards(
    function: Callable[..., Any],
    args: Mapping[str, Any],
    views: Sequence[EpisodeView],
    conversational: bool,
) -> Any:
    task = views[0].task
    columns = {**task.info, "answer": task.answer, "data_source": task.data_source}
    given: dict[str, Any] = {key: [own] * len(views) for key, own in columns.items()}
    given |= {
        "prompts": [_prompt(view, conversational) for view in views],
        "completions": [_completion(view, conversational) for view in views],
        "completion_ids": [_policy_ids(view) for view in views],
        **private_copy(args),
    }
    for name in needed_arguments(function):
        if name not in given:
            raise RewardError(
                f"it needs the column {name!r}, and task {task.id!r} has "
                f"{', '.join(sorted(columns))}; add it to the data or to reward.custom.args"
            )
    return _called(function, given, {})


def _prompt(view: EpisodeView, conversational: bool) -> list[Message] | str:
    messages = list(view.task.messages)
    return messages if conversational else _text(messages)


def _completion(view: EpisodeView, conversational: bool) -> list[Message] | str:
    opening = [*view.task.messages]
    # The task's own opening may hold assistant's messages, as examples.
    start = len(opening) if list(view.messages[: len(opening)]) == opening else 0
    roles = [message["role"] for message in view.messages[start:]]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    messages = list(view.messages[start + first :])
    return messages if conversational else _text(messages)


def _text(messages: Sequence[Message]) -> str:
    contents = [message.get("content") for message in messages]
    return "\n".join(
        content for content in contents if isinstance(content, str) and content
    )


def _policy_ids(view: EpisodeView) -> list[int]:
    return [
        int(token)
        for turn in view.turns
        for segment in turn.completion
        for token in segment.token_ids
    ]


def _then(given: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` of what a function gave, also where that is awaited first."""
    if not inspect.isawaitable(given):
        return change(given)

    async def later(awaited: Awaitable[Any]) -> Any:
        return change(await awaited)

    return later(given)
