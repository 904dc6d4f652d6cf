"""What environment, rewards and sandbox leave in a trajectory: observations, states, files,
reasons, times.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from agentrl.envs import Env, EnvSpec, EpisodeView, Score, ToolEnv
from agentrl.rollouts import run_episode
from agentrl.rollouts.deadlines import Deadlines
from agentrl.rollouts.states import state_recorder
from agentrl.sandbox import Limits, SandboxSpec
from agentrl.tools import PythonTool, tool
from agentrl.types import Action, Blob, Observation, StepResult, Task, ToolSpec, Trajectory
from tests.rollouts.bytewise import (
    KEY,
    TASK,
    add,
    call,
    context_of,
    play,
    rollout_spec,
    say,
    scripted,
)


class Counter(Env):
    """Counts the steps; ends after two."""

    def __init__(self, task: Task) -> None:
        self.steps = 0

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "go"},), info={"level": 1})

    def step(self, action: Action) -> StepResult:
        self.steps += 1
        said = Observation(
            ({"role": "user", "content": f"step {self.steps}"},), info={"at": self.steps}
        )
        return StepResult(said, terminated=self.steps == 2)

    def snapshot(self) -> Any:
        return {"form": "text", "text": f"even: {self.steps // 2}"}


def state_of(blob: Blob | None) -> Any:
    assert blob is not None
    assert blob.data is not None
    return json.loads(blob.data)


async def test_the_last_observation_and_the_info_of_each_are_kept() -> None:
    trajectory = await play([say("a"), say("b")], env=EnvSpec(Counter))
    assert [turn.observed_info for turn in trajectory.turns] == [{"level": 1}, {"at": 1}]
    assert trajectory.last_observed == ({"role": "user", "content": "step 2"},)
    assert trajectory.last_info == {"at": 2}


async def test_an_observation_that_no_turn_answers_any_more_is_kept() -> None:
    trajectory = await play([say(call("add", a=1, b=2))], tools=[add], max_turns=1)
    assert str(trajectory.status) == "truncated(max_turns)"
    assert [message["content"] for message in trajectory.last_observed] == ["3"]


@pytest.mark.parametrize(
    "last", [None, Observation(("bye",)), Observation(info={"a": {1}})]
)  # type: ignore[arg-type]
async def test_a_last_observation_that_is_none_fails_no_episode(last: Any) -> None:
    class Rude(Counter):
        def step(self, action: Action) -> StepResult:
            return StepResult(last, terminated=True)

    trajectory = await play([say("a")], env=EnvSpec(Rude))
    assert (str(trajectory.status), trajectory.last_observed) == ("terminated", ())
    assert ("last_observation_error" in trajectory.info) == (last is not None)


async def test_the_state_is_asked_after_reset_and_each_step_and_equal_ones_are_one() -> (
    None
):
    trajectory = await play([say("a"), say("b")], env=EnvSpec(Counter))
    first, second = (turn.state for turn in trajectory.turns)
    assert state_of(trajectory.first_state) == {"form": "text", "text": "even: 0"}
    assert first is trajectory.first_state
    assert state_of(second) == {"form": "text", "text": "even: 1"}
    assert second is trajectory.last_state
    assert all(turn.timings["snapshot_s"] >= 0 for turn in trajectory.turns)


async def test_an_environment_without_a_state_is_never_asked() -> None:
    trajectory = await play([say("x")])
    assert (trajectory.first_state, trajectory.turns[0].state) == (None, None)
    assert "snapshot_s" not in trajectory.turns[0].timings


async def test_a_state_of_more_than_a_megabyte_is_a_note_of_its_size() -> None:
    class Large(Counter):
        def snapshot(self) -> Any:
            return "x" * 2**20

    state = (await play([say("a"), say("b")], env=EnvSpec(Large))).turns[0].state
    assert state is not None
    assert (state.sha256, state.num_bytes, state.data) == ("", 2**20 + 2, None)
    assert "1048578 bytes, and at most 1048576 are kept" in str(state)


@pytest.mark.parametrize("fault", ["raises", "no JSON"])
async def test_a_state_that_cannot_be_had_is_named_once(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    class Faulty(Counter):
        def snapshot(self) -> Any:
            nonlocal asked
            asked += 1
            if fault == "raises":
                raise KeyError("board")
            return {1, 2}

    context = context_of(
        rollout_spec(env=EnvSpec(Faulty)), scripted(lambda request: say("a"))
    )
    with caplog.at_level(logging.WARNING, "agentrl"):
        played = [
            await run_episode(context, TASK, replace(KEY, rollout_index=n)) for n in (0, 1)
        ]
    assert [str(trajectory.status) for trajectory in played] == ["terminated", "terminated"]
    assert asked == 2  # once an episode
    named = "KeyError" if fault == "raises" else "must give JSON, got set"
    assert all(named in trajectory.info["snapshot_error"] for trajectory in played)
    events = [
        record
        for record in caplog.records
        if record.__dict__.get("event") == "state_not_stored"
    ]
    assert len(events) == 1


async def test_each_turn_names_the_tools_that_were_on_offer() -> None:
    class Grows(Counter):
        def reset(self, *, seed: int) -> Observation:
            return replace(super().reset(seed=seed), tools=(add.spec,))

        def step(self, action: Action) -> StepResult:
            made = super().step(action)
            more = ToolSpec("stop", "Ends it.", {"type": "object", "properties": {}})
            said = replace(
                made.observation, tools=(add.spec, more) if self.steps == 2 else None
            )
            return StepResult(said, terminated=self.steps == 3)

    trajectory = await play([say("a"), say("b"), say("c")], env=EnvSpec(Grows))
    first, second, third = (turn.offered_tools for turn in trajectory.turns)
    assert first is second
    assert state_of(first) == [add.spec.openai()]
    assert [tool["function"]["name"] for tool in state_of(third)] == ["add", "stop"]
    assert list(trajectory.blobs()).count(first) == 2  # type: ignore[arg-type]


async def test_without_tools_none_are_named() -> None:
    trajectory = await play([say("a"), say("b")], env=EnvSpec(Counter))
    assert [turn.offered_tools for turn in trajectory.turns] == [None, None]


async def test_the_likeliest_tokens_are_asked_for_in_every_turn() -> None:
    for count in (0, 5):
        engine = scripted([say(call("add", a=1, b=2)), say("3")])
        spec = replace(rollout_spec(tools=[add]), num_alternatives=count)
        await run_episode(context_of(spec, engine), TASK, KEY)
        assert [request.num_alternatives for request in engine.requests] == [count, count]


async def test_a_reward_says_why() -> None:
    def judged(view: EpisodeView) -> Score:
        return Score(0.25, {"prompt": "good?", "answer": "so so"})

    trajectory = await play([say("x")], reward=judged)
    assert (trajectory.reward, trajectory.rewards) == (0.25, {"judged": 0.25})
    assert trajectory.reasons == {"judged": {"prompt": "good?", "answer": "so so"}}


async def test_a_number_alone_needs_no_reason() -> None:
    assert (await play([say("x")])).reasons == {}


async def test_generation_tool_and_step_lie_on_one_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @tool
    async def slow() -> str:
        """Takes a moment, while somebody sets the time of day back."""
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        await asyncio.sleep(0.02)
        return "done"

    before = time.time()
    trajectory = await play([say(call("slow")), say("ok")], tools=[slow])
    first, second = trajectory.turns
    result = first.calls[0].result
    assert result is not None
    generated = first.started_at + first.timings["generate_s"]
    stepped = first.started_at + first.timings["step_at_s"]
    assert before <= first.started_at < generated <= stepped <= result.started_at
    assert result.started_at + result.latency_s <= second.started_at
    assert result.latency_s >= 0.02


async def test_a_pause_of_the_engine_is_a_part_of_the_generation() -> None:
    deadlines = Deadlines()

    async def pauses(request: Any) -> None:
        with deadlines.paused():
            await asyncio.sleep(0.02)

    with deadlines.of_this_task():
        timings = (await play(scripted([say("x")], latency=pauses))).turns[0].timings
    assert 0.02 <= timings["paused_s"] <= timings["generate_s"]
    assert "paused_s" not in (await play([say("x")])).turns[0].timings


async def test_a_wait_for_a_sandbox_has_its_start(unsafe: SandboxSpec) -> None:
    from agentrl.sandbox import SandboxPool

    pool = SandboxPool(unsafe, max_running=1)
    taken = await pool.acquire()
    spec = rollout_spec(env=EnvSpec(ToolEnv, {"tools": [PythonTool()]}, sandbox=unsafe))
    engine = scripted([say(call("python", code="print(1)")), say("1")])
    context = replace(context_of(spec, engine), sandboxes=pool)
    try:
        episode = asyncio.create_task(run_episode(context, TASK, KEY))
        while not pool.counts().waiting:
            await asyncio.sleep(0)
        waited_from = time.monotonic()
        while time.monotonic() < waited_from + 0.02:
            await asyncio.sleep(0)
        await pool.release(taken)
        timings = (await episode).turns[0].timings
    finally:
        await pool.close()
    assert timings["wait_s"] >= 0.02
    assert timings["step_at_s"] <= timings["wait_at_s"]
    assert (
        timings["wait_at_s"] + timings["wait_s"] <= timings["step_at_s"] + timings["step_s"]
    )


@pytest.fixture
def unsafe() -> SandboxSpec:
    return SandboxSpec("unsafe", limits=Limits(file_bytes=2**21))


CODES = (
    "open('a.txt', 'w').write('one'); open('b.txt', 'w').write('same')",
    "open('a.txt', 'w').write('two')",
    "import os; os.remove('b.txt'); open('big', 'wb').write(bytes(2**20 + 1))",
    "print('nothing')",
)


async def with_files(states: str, unsafe: SandboxSpec) -> Trajectory:
    tools = {"tools": [PythonTool()], "describe_tools_in_prompt": False}
    spec = rollout_spec(env=EnvSpec(ToolEnv, tools, sandbox=unsafe), max_turns=9)
    script = [*(say(call("python", code=code)) for code in CODES), say("done")]
    context = context_of(replace(spec, states=states), scripted(script))  # type: ignore[arg-type]
    return await run_episode(context, TASK, KEY)


def contents(files: Any) -> dict[str, Any]:
    return {
        path: blob and (blob.data if blob.data is not None else blob.num_bytes)
        for path, blob in files.items()
    }


async def test_the_files_that_each_turn_changed_are_kept(unsafe: SandboxSpec) -> None:
    trajectory = await with_files("turn", unsafe)
    assert [contents(turn.files) for turn in trajectory.turns] == [
        {"a.txt": b"one", "b.txt": b"same"},
        {"a.txt": b"two"},
        {"big": 2**20 + 1, "b.txt": None},
        {},
        {},
    ]
    assert "files_s" in trajectory.timings


async def test_the_files_of_the_end_lie_in_the_last_turn(unsafe: SandboxSpec) -> None:
    trajectory = await with_files("end", unsafe)
    assert [contents(turn.files) for turn in trajectory.turns] == [
        *({},) * 4,
        {"a.txt": b"two", "big": 2**20 + 1},
    ]


async def test_no_files_are_looked_at_unless_asked_for(unsafe: SandboxSpec) -> None:
    trajectory = await with_files("off", unsafe)
    assert not any(turn.files for turn in trajectory.turns)
    assert "files_s" not in trajectory.timings


async def test_files_are_kept_within_their_bounds(
    unsafe: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_recorder, "_MAX_FILES", 2)
    monkeypatch.setattr(state_recorder, "_MAX_FILE_BYTES", 6)
    trajectory = await with_files("turn", unsafe)
    first, second, third = (turn.files for turn in trajectory.turns[:3])
    assert contents(first) == {"a.txt": b"one", "b.txt": 4}
    assert "more than 6 bytes of files" in str(first["b.txt"])
    assert contents(second) == {"a.txt": b"two"}
    assert contents(third) == {"big": 2**20 + 1, "b.txt": None}
    assert "files_left_out" not in trajectory.info
    monkeypatch.setattr(state_recorder, "_MAX_FILES", 1)
    trajectory = await with_files("turn", unsafe)
    assert contents(trajectory.turns[0].files) == {"a.txt": b"one"}
    assert trajectory.info["files_left_out"] == "after turn 0: more files than are listed"


async def test_a_sandbox_that_fails_to_tell_its_files_fails_no_episode(
    unsafe: SandboxSpec,
) -> None:
    class Boxed(Counter):
        def __init__(self, task: Task) -> None:
            super().__init__(task)
            self.sandbox = unsafe.build()
            self.sandbox.kill_now()

        async def step(self, action: Action) -> StepResult:  # type: ignore[override]
            await self.sandbox.close()
            return super().step(action)

    spec = replace(rollout_spec(env=EnvSpec(Boxed)), states="turn")
    trajectory = await run_episode(
        context_of(spec, scripted(lambda _: say("a"))), TASK, KEY
    )
    assert str(trajectory.status) == "terminated"
    assert "the sandbox is closed" in trajectory.info["files_error"]
