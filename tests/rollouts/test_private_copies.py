"""User code that changes all that it is given, and what it gave: siblings, later epochs, the record
and a resumed episode are those of user code that changes nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from agentrl.envs import (
    Env,
    EnvSpec,
    EpisodeView,
    Rubric,
    Score,
    ToolEnv,
    Wrapper,
    group_rewards,
)
from agentrl.envs.wrappers import WrapperReference
from agentrl.rollouts import (
    EpisodeRunner,
    EpisodeState,
    GroupRequest,
    RolloutSpec,
    run_episode,
)
from agentrl.rollouts.states.snapshots import StateSlot
from agentrl.tools import ToolContext, tool
from agentrl.types import Action, Message, Observation, Status, StepResult, Task, Trajectory
from tests.rollouts.bytewise import (
    KEY,
    Built,
    Script,
    call,
    context_of,
    rollout_spec,
    say,
    scripted,
)

TASK = Task(
    "q",
    ({"role": "user", "content": "hi"},),
    answer=["a", {"b": 1}],
    info={"queue": [3, 2, 1], "deep": {"er": {"x": 1}}},
)
TURNS = 3


def spoil(value: Any) -> None:
    """Changes every dict and list that can be reached, objects of agentrl's included."""
    if is_dataclass(value):
        for field in fields(value):
            spoil(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for own in list(value.values()):
            spoil(own)
        if isinstance(value, dict):
            value.update(dict.fromkeys(value, "spoilt"), added="spoilt")
    elif isinstance(value, list | tuple):
        for own in value:
            spoil(own)
        if isinstance(value, list):
            value[:] = ["spoilt"]


def told(*parts: Any) -> Message:
    return {"role": "user", "content": json.dumps(parts)}


class World(Env):
    """Tells what it was given, and spoils it once it was asked to; what it gave too, later."""

    def __init__(self, task: Task, spoils: bool, board: list[list[int]]) -> None:
        self.task, self.spoils, self.board = task, spoils, board
        self.given: list[Any] = []
        self.steps = 0

    def spoil(self, *given: Any) -> None:
        if self.spoils:
            spoil([*given, self.given])

    def reset(self, *, seed: int) -> Observation:
        opening = (
            *copy.deepcopy(self.task.messages),
            told(self.task.answer, self.task.info),
        )
        observation = Observation((*opening, told(self.board)), info={"state": [0]})
        self.spoil(self.task, self.board)
        self.given.append(observation)
        return observation

    def step(self, action: Action) -> StepResult:
        self.steps += 1
        said = told(
            action.text, action.message, [one.arguments for one in action.tool_calls]
        )
        done = self.steps == TURNS
        self.spoil(action)
        observation = Observation((said,), info={"state": [self.steps]})
        result = StepResult(
            observation, 1.0, terminated=done, info={"seen": [{"n": self.steps}]}
        )
        self.given.append(result)
        return result

    def close(self) -> None:
        self.spoil()

    def state_dict(self) -> Mapping[str, Any]:
        return {"steps": self.steps}


def env_of(spoils: bool) -> EnvSpec:
    kwargs = {"spoils": spoils, "board": [[1, 2], [3]]}
    return EnvSpec(World, kwargs, copied=("board",))


def recorded(trajectory: Trajectory) -> dict[str, Any]:
    """All that is kept of an episode but its name and its clocks."""
    turns = [
        {
            "said": (turn.text, turn.message, turn.observed, turn.info, turn.observed_info),
            "rewards": turn.rewards,
            "tokens": [segment.token_ids.tolist() for segment in turn.segments],
            "calls": [
                (one.call and one.call.arguments, one.result and one.result.content)
                for one in turn.calls
            ],
        }
        for turn in trajectory.turns
    ]
    names = ("task", "status", "rewards", "reward", "reasons", "last_observed", "last_info")
    return copy.deepcopy(
        {name: getattr(trajectory, name) for name in names} | {"turns": turns}
    )


def script() -> Script:
    calls = say(call("add", numbers=[[1, 2]]))
    return Script([calls, calls, say("end")])


async def epochs(spec: RolloutSpec) -> list[dict[str, Any]]:
    """The records of two groups of two of one task, played one after the other."""
    runner = EpisodeRunner(spec, scripted(script()))
    try:
        played = [await runner.run_group(GroupRequest(n, TASK, 2)) for n in range(2)]
    finally:
        runner.close()
    return [recorded(t) for outcome in played for t in outcome.group.trajectories]


async def test_an_environment_that_spoils_all_it_is_given_and_gave_changes_no_record() -> (
    None
):
    before = copy.deepcopy(TASK)
    tame = await epochs(rollout_spec(env=env_of(False)))
    assert tame[0]["status"] == Status("terminated")
    assert await epochs(rollout_spec(env=env_of(True))) == tame
    assert tame == [tame[0]] * 4  # siblings and epochs were given the same
    assert before == TASK


class Kept(StateSlot):
    """Keeps the state after each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Any] = []

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if isinstance(value, EpisodeState):
            self.states.append(value)


async def test_a_spoilt_episode_goes_on_from_its_checkpoint_as_an_unspoilt_one_would() -> (
    None
):
    resumed = []
    for spoils in (False, True):
        spec = rollout_spec(env=env_of(spoils))
        slot = Kept()
        await run_episode(context_of(spec, scripted(script())), TASK, KEY, slot=slot)
        parts = context_of(spec, scripted(script()))
        resumed.append(recorded(await run_episode(parts, TASK, KEY, saved=slot.states[0])))
        assert resumed[-1]["status"] == Status("terminated")
    assert resumed[0] == resumed[1]


class Spoiler(Wrapper):
    """Spoils what goes through it, and gives what it was before."""

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        given = copy.deepcopy(result)
        spoil((action, result))
        return given


async def test_a_wrapper_that_spoils_actions_and_results_changes_no_record() -> None:
    wrapper = WrapperReference(function=f"{__name__}:Spoiler")
    spec = replace(env_of(False), wrappers=(wrapper,))
    tame = await epochs(rollout_spec(env=env_of(False)))
    assert await epochs(rollout_spec(env=spec)) == tame


def sees(view: EpisodeView) -> Score:
    """What a reward is given, as its reason."""
    given = [
        view.task.answer,
        view.task.info,
        view.messages,
        [turn.message for turn in view.turns],
    ]
    return Score(1.0, json.loads(json.dumps(given)))


def spoils_view(view: EpisodeView) -> float:
    spoil((view.task, view.messages, view.turns))
    return 0.0


@group_rewards
def spoils_group(views: Sequence[EpisodeView]) -> list[float]:
    return [spoils_view(view) for view in views]


async def test_rewards_that_spoil_their_views_change_neither_each_other_nor_the_record() -> (
    None
):
    spec = rollout_spec(env=env_of(False))
    tame = await epochs(replace(spec, rubric=Built(Rubric([sees]))))
    parts = [spoils_view, (spoils_group, 0.0), sees]
    spoilt = await epochs(replace(spec, rubric=Built(Rubric(parts))))
    assert spoilt[0]["rewards"].keys() == {"spoils_view", "spoils_group", "sees", "step"}
    alike = ("task", "turns", "reasons", "reward", "last_observed")
    assert [[one[name] for name in alike] for one in spoilt] == [
        [one[name] for name in alike] for one in tame
    ]


async def test_what_a_reward_gives_as_its_reason_is_kept_as_it_was() -> None:
    shared: list[int] = []

    async def counting(view: EpisodeView) -> Score:
        shared.append(1)
        return Score(0.0, shared)

    rubric = Rubric([counting])
    view = EpisodeView(TASK, (), (), Status("terminated"))
    reasons = [(await rubric.scores(view))["counting"].why for _ in range(2)]
    assert reasons == [[1], [1, 1]]


async def test_a_tool_that_spoils_arguments_defaults_and_task_changes_no_record() -> None:
    @tool
    def add(numbers: list[Any], context: ToolContext, seen: list[int] = []) -> str:  # noqa: B006
        """The sum.

        Args:
            numbers: what is added.
            seen: what was seen before.
        """
        assert context.task is not None
        answer = f"{sum(numbers[0])} {seen} {context.task.info}"
        spoil((numbers, seen))
        return answer

    kwargs = {"tools": [add], "describe_tools_in_prompt": False}
    records = await epochs(rollout_spec(env=EnvSpec(ToolEnv, kwargs)))
    calls = [turn["calls"] for record in records for turn in record["turns"]]
    called = [({"numbers": [[1, 2]]}, f"3 [] {TASK.info}")]
    assert calls == [called, called, []] * 4
