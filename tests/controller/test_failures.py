"""How many failed episodes of a batch a run goes on with: counted by boundary, against a whole
batch.
"""

from __future__ import annotations

import pytest

from agentrl.config import StageConfig
from agentrl.controller.failures import check_failures, failure_causes
from agentrl.errors import EpisodesFailedError
from agentrl.types import Status, Task, Trajectory

FINE = Status("terminated")
ENGINE = Status("failed", "engine", "no server is left")
ENV = Status("failed", "env", "Maze.step raised KeyError: 'exit'")
AGAIN = Status("truncated", "env_exception", "Maze.step raised KeyError: 'exit'")
CANCELLED = Status("cancelled", "stale")


def episodes(*many: tuple[int, Status], raised_at: str = "") -> list[Trajectory]:
    statuses = [status for number, status in many for _ in range(number)]
    info = (
        {"raised_at": raised_at, "traceback": f"Traceback: {raised_at}"}
        if raised_at
        else {}
    )
    return [
        Trajectory(
            Task("t"),
            group_index,
            0,
            0,
            "train",
            (),
            status,
            reward=1.0 if status.finished else None,
            info=info,
        )
        for group_index, status in enumerate(statuses)
    ]


def hold(*many: tuple[int, Status], batch: int = 8, max_frac: float = 0.5) -> None:
    stage = StageConfig(
        name="rl",
        train={"batch_prompts": batch},
        rollout={"group_size": 1, "max_failed_frac": max_frac},
    )
    check_failures(episodes(*many), stage, 3)


def test_a_batch_of_which_most_episodes_failed_for_want_of_an_engine_is_no_step() -> None:
    with pytest.raises(EpisodesFailedError) as caught:
        hold((125, ENGINE), (3, FINE), batch=128)
    assert str(caught.value) == (
        "125 of the 128 episodes of step 3 of stage 'rl' failed at one boundary, more than "
        "RolloutConfig.max_failed_frac=0.5 of them: no server is left\nfix that, then "
        "continue with --resume"
    )


def test_half_of_a_batch_may_fail() -> None:
    hold((4, ENGINE), (4, FINE))


def test_causes_are_counted_apart() -> None:
    hold((3, ENGINE), (3, ENV), (2, FINE))


def test_an_exception_that_is_blamed_on_the_policy_counts_as_the_environments() -> None:
    with pytest.raises(EpisodesFailedError, match="5 of the 8 episodes"):
        hold((3, ENV), (2, AGAIN), (3, FINE))


def test_the_policy_may_cut_episodes_short_in_any_other_way() -> None:
    hold((8, Status("truncated", "max_turns")))


def test_a_failure_among_few_episodes_is_no_reason_to_stop() -> None:
    hold((1, ENGINE))  # the others of the batch waited already


def test_where_all_fail_the_run_stops_whatever_the_share() -> None:
    with pytest.raises(
        EpisodesFailedError,
        match=r"every one of the 8 episodes .* ended as failed\(engine\)",
    ):
        hold((8, ENGINE), max_frac=1.0)
    with pytest.raises(EpisodesFailedError, match="every one of the 8 episodes"):
        hold((4, ENGINE), (4, ENV), max_frac=1.0)


def test_what_was_cancelled_is_no_failure_and_no_episode() -> None:
    hold((8, CANCELLED))
    with pytest.raises(EpisodesFailedError, match="every one of the 8 episodes"):
        hold((8, ENGINE), (8, CANCELLED))


def test_a_cause_is_told_by_its_commonest_reason_and_the_users_line() -> None:
    other = episodes((1, Status("failed", "env", "Maze.reset raised OSError: no map")))
    (cause,) = failure_causes(
        [*other, *episodes((2, ENV), (1, AGAIN), raised_at="maze.py:41")]
    )
    assert str(cause) == (
        "3 failed(env), 1 truncated(env_exception): Maze.step raised KeyError: 'exit', at "
        "maze.py:41"
    )
    assert cause.traceback == "Traceback: maze.py:41"
