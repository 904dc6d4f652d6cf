"""Replay command: ``agentrl replay``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from agentrl.cli.arguments import Count
from agentrl.cli.terminal import counted, print_json, reading_stored_files, say
from agentrl.cli.views.replay_report import print_report, report
from agentrl.errors import ConfigError, DataError
from agentrl.store import RunDirectory

if TYPE_CHECKING:
    from agentrl.run.replay import Replayer


@reading_stored_files()
def replay_command(
    run: Path,
    /,
    *ids: str,
    query: str = "",
    limit: Count = 200,
    trust: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Play the recorded actions of episodes again, and say what comes out otherwise.

    Each episode gets a fresh environment and sandbox, with the recorded seed. The first
    observation, state or reward that differs is named. The command runs code: that of the run's
    environment, tools and rewards, and what the model wrote in its calls. It names the files and
    asks. The exit code is 1 where something differs.

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
        raise DataError(f"{run} has no trajectory that fits; `agentrl ls {run}` lists its own")
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
        raise ConfigError(
            f"a replay runs code ({_listed(code)}), and there is no terminal to ask; read it, then "
            "pass --trust"
        )
    say(f"{counted(count, 'episode')} to play again. That runs:", file=sys.stderr)
    for line in code:
        say(f"  {line}", file=sys.stderr)
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
        raise ConfigError("nothing was run; `agentrl replay --trust` does not ask")


def _listed(code: Sequence[str]) -> str:
    return "; ".join(code) or "agentrl's own environment alone"
