"""Rollout metrics: the statistics of a step's trajectories by name, and what its questions tell.

Failed and cancelled trajectories are counted, and enter no other statistic: zeros for errors would
bias every mean.

With a template collapse the policy's answers stay diverse, so that entropy stays high, and stop
depending on the question (arXiv:2604.06268). What falls is the mutual information of the two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from agentrl.types import (
    CallRecord,
    SegmentKind,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    concat_ids,
)
from agentrl.types.arrays import F64, I64
from agentrl.types.user_code.values import finite_number

_MOST_GROUPS = 64
_MOST_TOKENS = 256
"""Tokens of an answer, its first ones. Both bounds keep the cost of a step small."""
_POOLED = 0.5
"""Weight of the pooled distribution in a question's own: no token costs more than log 2 nats."""

TokenCounts = tuple[I64, I64]
"""The tokens of an answer, each once, and how often each occurs."""


def question_information(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The information of each finished trajectory about its question, in nats a token.

    It is the log of how much likelier the other answers to the same question make an answer's
    tokens than all other answers do, both as distributions over single tokens. The same of groups
    that are made across questions is taken off, which is what chance gives. Its mean estimates the
    mutual information of question and answer from below: words in another order are not seen.

    Args:
        groups: of a step; of at most 64 of them the first 256 policy tokens count.

    Returns:
        By trajectory id. Empty with fewer than two questions that have two answers each.
    """
    answers = [own for group in groups if len(own := _answers(group)) >= 2][:_MOST_GROUPS]
    if len({group[0][0].task.id for group in answers}) < 2:
        return {}
    ids = [tokens for group in answers for _, tokens in group]
    vocabulary, flat = np.unique(np.concatenate(ids), return_inverse=True)
    parts = np.split(flat.astype(np.int64), np.cumsum([len(tokens) for tokens in ids])[:-1])
    counts = [np.unique(part, return_counts=True) for part in parts]
    owners = np.repeat(np.arange(len(answers)), [len(group) for group in answers])
    places = np.concatenate([np.arange(len(group)) for group in answers])
    found = _log_ratios(counts, owners, len(vocabulary))
    # An answer moves on by its place in its group, so that a group has answers of many questions.
    chance = _log_ratios(counts, (owners + places) % len(answers), len(vocabulary)).mean()
    names = [trajectory.id for group in answers for trajectory, _ in group]
    return dict(zip(names, (found - chance).tolist(), strict=True))


def _answers(group: TrajectoryGroup) -> list[tuple[Trajectory, I64]]:
    """The finished trajectories that have policy tokens, with the first of these."""
    found = []
    for trajectory in group.finished:
        segments = [
            s
            for turn in trajectory.turns
            for s in turn.completion
            if s.kind == SegmentKind.POLICY
        ]
        tokens = concat_ids(segments)[:_MOST_TOKENS] if segments else ()
        if len(tokens):
            found.append((trajectory, np.asarray(tokens, np.int64)))
    return found


def _log_ratios(answers: Sequence[TokenCounts], owners: I64, size: int) -> F64:
    """Of each answer the mean over its tokens of log(pooled weight + own weight · own / pooled),
    the answer itself left out of both distributions."""
    everyone = _sum(answers, size)
    total = everyone.sum()
    means = np.zeros(len(answers))
    for owner in np.unique(owners):
        members = np.flatnonzero(owners == owner).tolist()
        together = _sum([answers[member] for member in members], size)
        siblings = together.sum()
        for member in members:
            tokens, counts = answers[member]
            length = counts.sum()
            pooled = (everyone[tokens] - counts) / (total - length)
            own = (together[tokens] - counts) / max(1.0, siblings - length)
            # a token that no other answer has says nothing of the question
            ratio = np.divide(own, pooled, out=np.ones_like(own), where=pooled > 0)
            means[member] = counts @ np.log(_POOLED + (1 - _POOLED) * ratio) / length
    return means


def _sum(answers: Sequence[TokenCounts], size: int) -> F64:
    """How often each token occurs in these answers."""
    tokens, counts = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    found = np.bincount(tokens, weights=counts, minlength=size)
    return np.asarray(found, dtype=np.float64)


HEADLINES = ("reward/mean", "accuracy/mean", "turns/mean")
CORRECT = "correct"
"""The rubric's part that scores the answer, from 0 to 1."""


def correctness(trajectory: Trajectory) -> float:
    """Whether a finished trajectory solved its task: the rubric's ``correct``; else ``acc``, where
    a part's reason has it, as verl's ``compute_score`` gives; else 1 for a reward above 0.

    Raises:
        ValueError: the trajectory has no reward, because it failed or was cancelled.
    """
    if CORRECT in trajectory.rewards:
        return float(trajectory.rewards[CORRECT])
    told = (why["acc"] for why in trajectory.reasons.values() if _tells_accuracy(why))
    if (accuracy := next(told, None)) is not None:
        return float(accuracy)
    if trajectory.reward is None:
        raise ValueError(
            f"trajectory {trajectory.id} has no reward: its status is {trajectory.status}"
        )
    return float(trajectory.reward > 0)


def _tells_accuracy(why: object) -> bool:
    accuracy = why.get("acc") if isinstance(why, Mapping) else None
    return finite_number(accuracy) is not None


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The metrics of a step's groups, finished and failed rollouts together.

    A name whose statistic has no observation is left out, so no value is NaN.

    Args:
        groups: each with all its rollouts, of any status.
    """
    finished = [trajectory for group in groups for trajectory in group.finished]
    metrics = _counts(groups)
    if finished:
        metrics |= (
            _rewards(finished) | _lengths(finished) | _tools(finished) | _mismatch(finished)
        )
        if informed := question_information(groups):
            metrics["answer/question_mi"] = float(np.mean(list(informed.values())))
    return metrics


def ended_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The metrics of groups that ended while others were trained, as ``ended/...``."""
    found = {name: f"ended/{name}" for name in ("count/groups", *HEADLINES)}
    metrics = rollout_metrics(groups)
    return {new: metrics[name] for name, new in found.items() if name in metrics}


def no_signal(groups: Sequence[TrajectoryGroup]) -> str:
    """The reason why a step's groups gave no gradient, such as ``no signal: 16 of 16 groups
    equal``.

    A group with equal rewards has zero advantages.
    """
    finished = [[trajectory.reward for trajectory in group.finished] for group in groups]
    alone = sum(len(rewards) < 2 for rewards in finished)
    equal = sum(len(rewards) >= 2 and len(set(rewards)) == 1 for rewards in finished)
    parts = [f"no signal: {equal} of {len(groups)} groups equal"]
    if alone:
        parts.append(f"{alone} with less than 2 finished episodes")
    if others := len(groups) - alone - equal:
        parts.append(f"{others} dropped or without credit")
    return ", ".join(parts)


def _counts(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    played = [trajectory for group in groups for trajectory in group.trajectories]
    everyone = [trajectory for trajectory in played if trajectory.purpose != "baseline"]
    rewards = [[trajectory.reward for trajectory in group.finished] for group in groups]
    effective = sum(map(len, rewards))
    compared = [own for own in rewards if len(own) >= 2]
    with_signal = [own for own in compared if len(set(own)) > 1]
    metrics = {
        "count/groups": float(len(groups)),
        "count/trajectories": float(len(everyone)),
        "count/effective": float(effective),
        "count/with_signal": float(sum(map(len, with_signal))),
    }
    if everyone:
        failed = sum(trajectory.status.kind == "failed" for trajectory in everyone)
        metrics["excluded_frac"] = 1.0 - effective / len(everyone)
        metrics["failed_frac"] = failed / len(everyone)
    if compared:
        metrics["group/zero_std_frac"] = 1.0 - len(with_signal) / len(compared)
    if stragglers := sum(
        trajectory.status.reason == "straggler" for trajectory in everyone
    ):
        metrics["count/stragglers"] = float(stragglers)
    excluded = Counter(
        f"{trajectory.status.kind}/{trajectory.status.reason or 'unknown'}"
        for trajectory in played
        if not trajectory.status.finished
    )
    greedy = [group.baseline for group in groups]
    if rewards_of_greedy := [float(one.reward or 0.0) for one in greedy if one is not None]:
        metrics["group/baseline_reward"] = float(np.mean(rewards_of_greedy))
    return metrics | {name: float(count) for name, count in excluded.items()}


def _rewards(finished: Sequence[Trajectory]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in finished:
        for scope in ("", f"/{_segment(trajectory.task.data_source)}"):
            values[f"reward{scope}"].append(float(trajectory.reward or 0.0))
            values[f"accuracy{scope}"].append(correctness(trajectory))
        for part, value in trajectory.rewards.items():
            values[f"reward_part/{_segment(part)}"].append(float(value))
        for agent, seat in trajectory.seats.items():
            values[f"reward_agent/{_segment(agent)}"].append(seat.reward)
    means = {f"{name}/mean": float(np.mean(own)) for name, own in values.items()}
    return means | {
        f"{name}/std": float(np.std(own))
        for name, own in values.items()
        if name.partition("/")[0] == "reward"
    }


def _lengths(finished: Sequence[Trajectory]) -> dict[str, float]:
    response = [one.num_policy_tokens for one in finished]
    total = [sum(len(s) for turn in one.turns for s in turn.segments) for one in finished]
    prompts = [
        sum(len(s) for turn in one.turns if turn.parent is None for s in turn.context)
        for one in finished
    ]
    # A sequence that begins anew repeats its prompt, which was given and not played.
    after_prompt = np.subtract(total, prompts)
    turns = [len(one.turns) for one in finished]
    spread = {
        "length/response": response,
        "length/after_prompt": after_prompt,
        "turns": turns,
    }
    metrics = {
        f"{name}/{kind}": float(of(values))
        for name, values in spread.items()
        for kind, of in (("mean", np.mean), ("max", np.max))
    }
    truncated = [one.status.kind == "truncated" for one in finished]
    return metrics | {
        "length/total/mean": float(np.mean(total)),
        "length/truncated_frac": float(np.mean(truncated)),
        **_histories(finished),
    }


def _histories(finished: Sequence[Trajectory]) -> dict[str, float]:
    """New sequences by cause, and the turns whose request told their history otherwise."""
    counts = Counter({"turns/restarts": 0})
    for one in finished:
        restarts, repairs = one.info.get("restarts", {}), one.info.get("repairs", {})
        counts.update(
            {f"turns/restarts/{cause}": count for cause, count in restarts.items()}
        )
        counts.update({f"turns/repairs/{kind}": count for kind, count in repairs.items()})
        counts["turns/restarts"] += sum(restarts.values())
    return {name: count / len(finished) for name, count in counts.items()}


def _mismatch(finished: Sequence[Trajectory]) -> dict[str, float]:
    """The measured differences between the episodes' ids and those of their text."""
    metrics = {}
    for name in ("retok_frac", "template_frac", "unknown_frac"):
        measured = [
            trajectory.info[name] for trajectory in finished if name in trajectory.info
        ]
        if measured:
            metrics[f"mismatch/{name}"] = float(np.mean(measured))
    return metrics


def _tools(finished: Sequence[Trajectory]) -> dict[str, float]:
    calls = [
        call for trajectory in finished for turn in trajectory.turns for call in turn.calls
    ]
    metrics = {"tool/calls_per_traj": len(calls) / len(finished)}
    known = [call for call in calls if call.is_known]
    if known:
        metrics["tool/success_frac"] = sum(call.error is None for call in known) / len(
            known
        )
    metrics |= {f"tool/{key}": value for key, value in _errors(known).items()}
    by_tool: defaultdict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        # a name that the model invented is no tool, and would make a new metric each time
        if call.call is not None and call.error != "unknown_tool":
            by_tool[_segment(call.call.name)].append(call)
    for name, own in by_tool.items():
        metrics |= {f"tool/{name}/{key}": value for key, value in _of_tool(own).items()}
    return metrics


def _errors(known: Sequence[CallRecord]) -> dict[str, float]:
    """The share of each kind among calls whose results are known."""
    kinds = Counter(call.error for call in known if call.error is not None)
    return {f"error/{kind}_frac": count / len(known) for kind, count in kinds.items()}


def _of_tool(own: Sequence[CallRecord]) -> dict[str, float]:
    """The metrics of one tool's calls."""
    known = [call for call in own if call.is_known]
    results = [call.result for call in own if call.result is not None]
    metrics = {"calls": float(len(own)), **_errors(known)}
    if known:
        metrics["error_frac"] = sum(call.error is not None for call in known) / len(known)
    # invalid arguments are refused before the tool runs: their latency is not the tool's
    ran = [result.latency_s for result in results if result.error != "invalid_arguments"]
    waits = (_measured(result, "queued_s") for result in results)
    queued = [seconds for seconds in waits if seconds is not None]
    for key, seconds in (("latency_s", ran), ("queued_s", queued)):
        if seconds:
            p50, p95 = np.percentile(seconds, [50, 95])
            metrics |= {f"{key}/p50": float(p50), f"{key}/p95": float(p95)}
    if results:
        sizes = [len(result.content.encode(errors="replace")) for result in results]
        metrics["output_bytes/mean"] = float(np.mean(sizes))
        retries = [_measured(result, "retries") or 0.0 for result in results]
        metrics["retries_per_call"] = float(np.mean(retries))
    return metrics


def _measured(result: ToolResult, name: str) -> float | None:
    """What the executor measured of a call; a tool may keep anything under the same name."""
    return finite_number((result.metrics or {}).get(name))


def _segment(name: str) -> str:
    """``name`` as one part of a metric's name."""
    return name.replace("/", ".") or "unnamed"
