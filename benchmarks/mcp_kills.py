"""MCP kills: episodes that share an MCP server which is killed in mid-call again and again.

``python -m benchmarks.mcp_kills`` plays 512 episodes at once on one server over standard streams.
The server is killed every few seconds, with calls in flight. Its log, which survives, says which
calls it was sent. A scripted engine makes calls that are unique to attempt and turn.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agentrl.envs import EnvSpec, ToolEnv
from agentrl.rollouts import EpisodeRunner, GroupRequest
from agentrl.rollouts.rollout_spec import StagePermits
from agentrl.tools import McpServerSpec, close_shared_tools
from agentrl.types import Task, Trajectory
from benchmarks.figures import Figures, add_arguments
from tests.rollouts.bytewise import call, rollout_spec, say, scripted

SERVER = Path(__file__).with_name("mcp") / "slow_server.py"
ANSWER_S = 2.0
"""Seconds until the server answers a call."""
DEADLINE_S = 300.0

NOTE = (
    "Every episode makes 4 calls of 2 s and has 3 attempts. A reward is of a dead server where an "
    "episode was rewarded though a call of it was not answered."
)


def killer(log: Path, every_s: float, ended: threading.Event) -> int:
    """Kills the server that the log names last, until ``ended``; how often."""
    kills = 0
    while not ended.wait(every_s):
        started = [
            line for line in log.read_text().splitlines() if line.startswith("start")
        ]
        try:
            os.kill(int(started[-1].split()[1]), signal.SIGKILL)
            kills += 1
        except (ProcessLookupError, IndexError):
            continue
    return kills


def turn(request: Any) -> Any:
    """The scripted policy: four calls, then an answer."""
    number = int(request.request_id.rpartition("/")[2])
    return say(call("note", key=request.request_id) if number < 4 else "done")


def played(log: Path, episodes: int, every_s: float, idempotent: bool) -> tuple[Any, int]:
    """The last attempts of all episodes, and how often the server was killed."""
    command = (sys.executable, str(SERVER), str(log), str(ANSWER_S))
    server = McpServerSpec(command=command, idempotent=idempotent)
    settings = {"mcp": {"slow": server}, "describe_tools_in_prompt": False}
    spec = rollout_spec(
        env=EnvSpec(ToolEnv, settings),
        permits=StagePermits(running=episodes),
        max_turns=6,
        turn_timeout_s=120.0,
        episode_timeout_s=300.0,
    )
    runner = EpisodeRunner(spec, scripted(turn))
    ended = threading.Event()
    kills: list[int] = []
    killing = threading.Thread(target=lambda: kills.append(killer(log, every_s, ended)))
    killing.start()
    try:
        task = Task("t", ({"role": "user", "content": "hi"},))
        runner.submit([GroupRequest(index, task, 1) for index in range(episodes)])
        outcomes: list[Any] = []
        end = time.monotonic() + DEADLINE_S
        while len(outcomes) < episodes and time.monotonic() < end:
            outcomes += runner.collect(1.0)
    finally:
        ended.set()
        killing.join()
        runner.close()
        close_shared_tools()
    return [one for outcome in outcomes for one in outcome.group.trajectories], kills[0]


def is_of_dead_server(trajectory: Trajectory) -> bool:
    """Whether it was rewarded though a call was not answered."""
    calls = [record for turn in trajectory.turns for record in turn.calls]
    answered = [
        one for one in calls if one.result and one.result.content.startswith("noted ")
    ]
    return trajectory.reward is not None and len(answered) < 4


def measure(figures: Figures, episodes: int, every_s: float) -> None:
    """Calls that are sent once, then calls that may be sent again."""
    for name, idempotent in (("calls sent once", False), ("idempotent calls", True)):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.touch()
            start = time.monotonic()
            ends, kills = played(log, episodes, every_s, idempotent)
            seconds = time.monotonic() - start
            sent = Counter(
                line for line in log.read_text().splitlines() if line[:4] == "call"
            )
        finished = sum(one.status.finished for one in ends)
        dead = sum(map(is_of_dead_server, ends))
        figures.at_least(f"{name}: episodes that came back", len(ends), "", episodes)
        figures.at_most(f"{name}: rewards from a dead server", dead, "", 0)
        if idempotent:
            figures.at_least(f"{name}: finished", 100 * finished / episodes, "%", 95)
        else:
            twice = sum(count > 1 for count in sent.values())
            figures.at_most(f"{name}: calls sent twice", twice, "", 0)
            figures.report(f"{name}: finished", 100 * finished / episodes, "%")
        figures.report(f"{name}: kills", kills, "")
        figures.report(f"{name}: calls", sum(sent.values()), "")
        figures.report(f"{name}: took", seconds, "s")
    figures.note(NOTE)


def main(arguments: list[str] | None = None) -> int:
    """All of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, benchmark="mcp_kills")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between kills")
    parsed = parser.parse_args(arguments)
    figures = Figures()
    measure(figures, parsed.episodes, parsed.every)
    return figures.finish(parsed, seeds=[])


if __name__ == "__main__":
    sys.exit(main())
