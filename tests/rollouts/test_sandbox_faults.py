"""Whose fault: what the code did is a result, rewarded and trained; what the sandbox did is
retried, then excluded.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms.functions.credit import group_advantages
from agentrl.envs import EnvSpec, ToolEnv
from agentrl.errors import MachineError
from agentrl.metrics import rollout_metrics
from agentrl.rollouts import EpisodeRunner, GroupOutcome, GroupRequest, make_batch
from agentrl.sandbox import Limits, SandboxSpec
from agentrl.sandbox.forkserver.hosts import _servers
from agentrl.tools import PythonTool
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import TASK, call, rollout_spec, say, scripted

LIMITS = Limits(
    wall_s=30, memory_bytes=64 * 2**20, processes=8, output_bytes=10_000, file_bytes=10**6
)
_numbers = itertools.count(1_000_000)


@pytest.fixture
def spec() -> SandboxSpec:
    """With a host that no other test shares, since these tests kill it."""
    made = SandboxSpec("landlock", limits=LIMITS, recycle_after=next(_numbers))
    try:
        made.check()
    except MachineError as error:
        pytest.skip(f"the landlock backend is missing here: {error}")
    return made


def play(
    spec: SandboxSpec, code: str, *, group_size: int = 1, timeout_s: float = 30.0
) -> GroupOutcome:
    """Rollouts beyond the first answer at once; the first runs the code, then answers."""

    def script(request: Any) -> list[int]:
        first = request.session_id.split("-")[1] == "0"
        return (
            say(call("python", code=code))
            if first and request.request_id.endswith("/0")
            else say("the end")
        )

    kwargs = {
        "tools": [PythonTool(deadline_s=timeout_s)],
        "describe_tools_in_prompt": False,
    }
    env = EnvSpec(ToolEnv, kwargs=kwargs, sandbox=spec)
    runner = EpisodeRunner(
        rollout_spec(
            env=env, max_turn_tokens=2000, max_response_tokens=50_000, context_tokens=60_000
        ),
        scripted(script),
    )
    try:
        runner.submit([GroupRequest(0, TASK, group_size)])
        (outcome,) = runner.collect(DEADLINE_S)
        return outcome
    finally:
        runner.close()


@contextmanager
def host_killed(spec: SandboxSpec, times: int) -> Iterator[list[int]]:
    """SIGKILL of the sandbox's host whenever code runs in it, so many times."""
    done, killed = threading.Event(), list[int]()

    def kill() -> None:
        before = {server.facts["pid"]: server.num_runs for server in hosts()}
        while len(killed) < times and not done.wait(0.01):
            for server in hosts():
                pid = server.facts["pid"]
                if pid not in killed and server.num_runs > before.get(pid, 0):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    def hosts() -> list[Any]:
        return [
            server
            for settings, server in list(_servers.items())
            if settings.recycle_after == spec.recycle_after
        ]

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


CODE = {
    "an exception": ("1 / 0", "exception"),
    "a timeout": ("while True: pass", "timeout"),
    "memory": ("x = bytearray(2**30)", "exception"),
    "output": ("while True: print('x' * 99)", "output_limit"),
    "a crash": ("import ctypes; ctypes.string_at(0)", "exception"),
    "its own end": ("import os; os.kill(os.getpid(), 9)", "exception"),
    "a fork bomb": ("import os\nwhile True: os.fork()", None),
    "a file over its limit": ("open('f', 'wb').write(b'x' * 10**7)", "exception"),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", CODE)
def test_what_the_code_did_is_a_result_that_is_rewarded(
    spec: SandboxSpec, name: str
) -> None:
    code, kind = CODE[name]
    outcome = play(spec, code, timeout_s=3.0)
    (trajectory,) = outcome.group.trajectories
    assert (str(trajectory.status), trajectory.reward) == ("terminated", len("the end"))
    assert outcome.retried == ()
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert kind is None or result.error == kind


def test_a_host_that_dies_costs_an_attempt_and_the_next_one_counts(
    spec: SandboxSpec,
) -> None:
    with host_killed(spec, times=1) as killed:
        outcome = play(spec, "import time; time.sleep(1); print('done')")
    assert len(killed) == 1
    (failed,) = outcome.retried
    assert (str(failed.status), failed.reward) == ("failed(sandbox)", None)
    (trajectory,) = outcome.group.trajectories
    assert (str(trajectory.status), trajectory.attempt, trajectory.reward) == (
        "terminated",
        1,
        len("the end"),
    )
    result = trajectory.turns[0].calls[0].result
    assert result is not None
    assert result.content == "done"


def test_a_host_that_keeps_dying_fails_the_episode_which_no_statistic_sees(
    spec: SandboxSpec,
) -> None:
    with host_killed(spec, times=99):
        outcome = play(spec, "import time; time.sleep(1); print('done')", group_size=3)
    assert [str(t.status) for t in outcome.retried] == ["failed(sandbox)"] * 2
    failed, *rollouts = outcome.group.trajectories
    assert (str(failed.status), failed.reward) == ("failed(sandbox)", None)
    assert [(str(t.status), t.reward) for t in rollouts] == [("terminated", 7.0)] * 2

    assert outcome.group.finished == tuple(rollouts)
    metrics = rollout_metrics([outcome.group])
    assert metrics["reward/mean"] == 7.0  # a zero for the failed one would make it 4.67
    assert metrics["excluded_frac"] == pytest.approx(1 / 3)
    rewards = np.array([t.reward for t in outcome.group.finished], np.float64)
    credit = group_advantages(rewards, np.zeros(2, np.int64))
    assert credit.tolist() == [0.0, 0.0]
    assert (
        make_batch([outcome.group], credit=credit.astype(np.float32)).num_trajectories == 2
    )
