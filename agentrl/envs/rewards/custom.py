"""Custom rewards: verl's ``compute_score`` and TRL's reward functions, called as they are there.

Which of them a function is follows from the names of its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.envs.score import Score, group_rewards
from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError, RewardError
from agentrl.types import Message
from agentrl.types.user_code.load import signature_of
from agentrl.types.user_code.values import private_copy

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
    reward: Callable[..., Any]
    if "completions" in names:
        reward = group_rewards(_of_trl(function, signature, args, conversational))
    elif (_VERL.keys() - {"extra_info"}) & names:
        reward = _of_verl(_asked(function, signature, list(_VERL), args, broken))
    elif ({*_VERL.values()} - {"extra_infos"}) & names:
        asked = _asked(function, signature, list(_VERL.values()), args, broken)
        reward = group_rewards(_of_verl_batch(asked))
    else:
        raise broken(
            f" must take verl's (data_source, solution_str, ground_truth, extra_info) or TRL's "
            f"(prompts, completions, **columns), but has the signature {signature}; a function of "
            "the episode belongs into reward.functions"
        )
    reward.__dict__.update({"__wrapped__": function, "rule_based": True})
    reward.__name__ = name
    return reward


def _asked(
    function: Callable[..., Any],
    signature: inspect.Signature,
    names: Sequence[str],
    args: Mapping[str, Any],
    broken: Callable[[str], ConfigError],
) -> Callable[[Mapping[str, Any]], Any]:
    """Calls verl's function with those of ``names`` that it takes, and ``args``."""
    parameters = signature.parameters
    for name, own in parameters.items():
        plain = own.kind not in (own.VAR_KEYWORD, own.VAR_POSITIONAL)
        if plain and own.default is own.empty and name not in {*names, *args}:
            raise broken(
                f" needs the argument {name!r}, which nobody gives; put it into reward.custom.args"
            )
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = [name for name in names if everything or name in parameters]

    def asked(given: Mapping[str, Any]) -> Any:
        known = {key: own for key, own in given.items() if key in takes}
        return function(**known, **private_copy(args))

    return asked


def _of_verl(asked: Callable[[Mapping[str, Any]], Any]) -> Callable[[EpisodeView], Any]:
    def compute(view: EpisodeView) -> Any:
        return _then(asked(_verl_arguments(view)), _verl_score)

    return compute


def _of_verl_batch(
    asked: Callable[[Mapping[str, Any]], Any],
) -> Callable[[Sequence[EpisodeView]], Any]:
    def compute(views: Sequence[EpisodeView]) -> Any:
        rows = [_verl_arguments(view) for view in views]
        given = {many: [row[one] for row in rows] for one, many in _VERL.items()}
        return _then(asked(given), lambda scores: [_verl_score(score) for score in scores])

    return compute


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


def _of_trl(
    function: Callable[..., Any],
    signature: inspect.Signature,
    args: Mapping[str, Any],
    conversational: bool,
) -> Callable[[Sequence[EpisodeView]], Any]:
    everything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    needed = [
        name
        for name, own in signature.parameters.items()
        if own.default is own.empty and own.kind not in (own.VAR_KEYWORD, own.VAR_POSITIONAL)
    ]

    def compute(views: Sequence[EpisodeView]) -> Any:
        task = views[0].task
        columns = {**task.info, "answer": task.answer, "data_source": task.data_source}
        given: dict[str, Any] = {key: [own] * len(views) for key, own in columns.items()}
        given |= {
            "prompts": [_prompt(view, conversational) for view in views],
            "completions": [_completion(view, conversational) for view in views],
            "completion_ids": [_policy_ids(view) for view in views],
            **private_copy(args),
        }
        if lacking := [name for name in needed if name not in given]:
            raise RewardError(
                f"it needs the column {lacking[0]!r}, and task {task.id!r} has "
                f"{', '.join(sorted(columns))}; add it to the data or to reward.custom.args"
            )
        kept = {key: own for key, own in given.items() if everything or key in signature.parameters}
        return function(**kept)

    return compute


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
    return "\n".join(content for content in contents if isinstance(content, str) and content)


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
