"""Replay report: which environments are deterministic, and which rewards changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentrl.cli.terminal import print_table, say

if TYPE_CHECKING:
    from agentrl.run.replay import Replayed

_LONGEST = 300
_SHOWN = 20


def report(replayed: Sequence[Replayed]) -> dict[str, Any]:
    """The replayed episodes, their environments and their rewards, as JSON."""
    return {
        "episodes": [_episode(one) for one in replayed],
        "environments": _environments(replayed),
        "rewards": _rewards(replayed),
    }


def print_report(result: Mapping[str, Any]) -> None:
    """Prints what ``report`` gave: differences one by one, then the tables."""
    odd = [episode for episode in result["episodes"] if episode["outcome"] != "same"]
    for episode in odd[:_SHOWN]:
        _print_episode(episode)
    if len(odd) > _SHOWN:
        say(f"and {len(odd) - _SHOWN} more that are not the same (--json has all)")
    if odd:
        say()
    columns = ("environment", "episodes", "same", "differ", "failed", "deterministic", "first seen")
    rows = [
        (
            one["environment"],
            *(one[name] for name in ("episodes", "same", "differs", "failed")),
            "yes" if one["same"] == one["episodes"] else "no" if one["differs"] else "unknown",
            ", ".join(f"{what} {count}" for what, count in one["first"].items()) or None,
        )
        for one in result["environments"]
    ]
    print_table(columns, rows)
    if result["rewards"]:
        say()
        print_table(
            ("reward", "episodes", "changed", "recorded mean", "replayed mean"),
            [tuple(one.values()) for one in result["rewards"]],
        )


def _print_episode(episode: Mapping[str, Any]) -> None:
    if episode["outcome"] == "failed":
        say(f"{episode['id']}  failed: {episode['failure']}")
        return
    where = "" if episode["turn"] is None else f" after turn {episode['turn']}"
    say(f"{episode['id']}  {episode['what']}{where}")
    say(f"  recorded  {_short(episode['recorded'])}")
    say(f"  replayed  {_short(episode['replayed'])}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _outcome(one: Replayed) -> str:
    return "failed" if one.failure else "differs" if one.difference else "same"


def _episode(one: Replayed) -> dict[str, Any]:
    told: dict[str, Any] = {"id": one.recorded.id, "outcome": _outcome(one)}
    found = one.difference
    if one.failure:
        told["failure"] = one.failure
    elif found is not None:
        names = ("what", "turn", "recorded", "replayed")
        told |= {name: getattr(found, name) for name in names}
    return told


def _environments(replayed: Sequence[Replayed]) -> list[dict[str, Any]]:
    by_name: defaultdict[str, list[Replayed]] = defaultdict(list)
    for one in replayed:
        by_name["/".join(filter(None, (one.stage, one.recorded.env)))].append(one)
    rows = []
    for name, own in sorted(by_name.items()):
        outcomes = Counter(map(_outcome, own))
        first = Counter(one.difference.what for one in own if one.difference is not None)
        rows.append(
            {
                "environment": name,
                "episodes": len(own),
                **{outcome: outcomes[outcome] for outcome in ("same", "differs", "failed")},
                "first": dict(first.most_common()),
            }
        )
    return rows


def _rewards(replayed: Sequence[Replayed]) -> list[dict[str, Any]]:
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in replayed:
        again = one.replayed.rewards
        for name, value in one.recorded.rewards.items():
            if name in again:
                pairs[name].append((value, again[name]))
    return [
        {
            "reward": name,
            "episodes": len(values),
            "changed": sum(was != found for was, found in values),
            "recorded": fmean(was for was, _ in values),
            "replayed": fmean(found for _, found in values),
        }
        for name, values in pairs.items()
    ]
