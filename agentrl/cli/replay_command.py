"""Replay command: ``agentrl replay``, and what came out otherwise."""

from __future__ import annotations

import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentrl.cli.terminal import (
    Count,
    Flag,
    counted,
    print_json,
    print_table,
    reading_stored_files,
    say,
)
from agentrl.errors import ConfigError, DataError
from agentrl.guards.secret_mask import beginning
from agentrl.store import RunDirectory

if TYPE_CHECKING:
    from agentrl.run.replay import Replayed, Replayer


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
    columns = (
        "environment",
        "episodes",
        "same",
        "differ",
        "failed",
        "deterministic",
        "first seen",
    )
    rows = [
        (
            one["environment"],
            *(one[name] for name in ("episodes", "same", "differs", "failed")),
            "yes"
            if one["same"] == one["episodes"]
            else "no"
            if one["differs"]
            else "unknown",
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
    return beginning(text, _LONGEST)


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


@reading_stored_files()
def replay_command(
    run: Path,
    /,
    *ids: str,
    query: str = "",
    limit: Count = 200,
    trust: Flag = False,
    json: Flag = False,
) -> int:
    """Play the recorded actions of episodes again, and say what comes out otherwise.

    Each episode gets a fresh environment and sandbox, with the recorded seed. The first
    observation, state or reward that differs is named. The command runs code: that of the run's
    environment, tools and rewards, and what the model wrote in its calls. Before it imports any of
    it, it names the files, modules and programs of the run's configuration and asks. The exit code
    is 1 where something differs.

    Parameters
    ----------
    run
        The run directory.
    ids
        Ids of `agentrl ls`; by default those of the query.
    query
        Only those that fit, such as 'stage:rl step:50..60 reward<0.5' (docs/query.md).
    limit
        At most so many of the query's, the latest; 0 for all.
    trust
        Run the code without asking.
    json
        As JSON, with both values of each difference.
    """
    from agentrl.run.replay import Replayer

    directory = RunDirectory.open(run)
    if ids and query:
        raise ConfigError("agentrl replay takes ids or --query, not both; leave one out")
    chosen = ids or _found(directory, query, limit)
    if not chosen:
        listing = f"agentrl ls {shlex.quote(str(run))}"
        raise DataError(f"{run} has no trajectory that fits; `{listing}` lists its own")
    replayer = Replayer(directory)
    if not trust:
        _ask(replayer, len(chosen))
    replayed = replayer.replay(chosen)
    result = report(replayed)
    print_json(result) if json else print_report(result)
    wrong = [one.replayed for one in replayed if one.difference or one.failure]
    return max((played.info.get("exit_code", 1) for played in wrong), default=0)


def _found(run: RunDirectory, query: str, limit: int) -> Sequence[str]:
    from agentrl.viewer.index import RunIndex

    with RunIndex(run) as index:
        index.refresh(timeout_s=60.0)
        return index.ids(query)[: limit or None]


def _ask(replayer: Replayer, count: int) -> None:
    """Goes on where a person says so.

    Raises:
        ConfigError: nobody can be asked, or the answer is no.
    """
    code = replayer.code()
    if not sys.stdin.isatty():
        listed = "; ".join(code) or "agentrl's own environment alone"
        raise ConfigError(
            f"a replay runs code ({listed}), and there is no terminal to ask; read it, then pass "
            "--trust"
        )
    say(f"{counted(count, 'episode')} to play again. That may run:", file=sys.stderr)
    for line in code:
        say(f"  {line}", file=sys.stderr)
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
        raise ConfigError("nothing was run; `agentrl replay --trust` does not ask")
