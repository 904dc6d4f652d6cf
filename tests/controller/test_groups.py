"""Who is called with what over the ranks, and what becomes of an error."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.controller.cluster.role_group import LocalGroup, WorkerGroup
from agentrl.controller.cluster.role_handle import ActorHandle, invoke
from agentrl.controller.cluster.rollout_pool import collect_groups
from agentrl.controller.cluster.worker import WorkerSpec
from agentrl.errors import ConfigError, DataError, EngineError, TrainingError
from agentrl.rollouts import GroupRequest
from agentrl.types import Collect, Dispatch, Stat, Stats, register
from tests.controller.tiny import TASKS, actor_spec, worker_spec


class Role:
    """Methods of each mark; what they are given is what a CallGroup saw."""

    @register(Dispatch.ALL)
    def everywhere(self, value: int) -> int:
        raise NotImplementedError

    @register(Dispatch.FIRST)
    def first(self, value: int) -> int:
        raise NotImplementedError

    @register(Dispatch.RANK_ZERO)
    def zero(self, value: int) -> int:
        raise NotImplementedError

    @register(Dispatch.DATA)
    def shards(self, part: int, shared: int) -> int:
        raise NotImplementedError

    @register(Dispatch.DATA, collect=Collect.STATS)
    def stats(self, part: int) -> Stats:
        raise NotImplementedError

    def unmarked(self) -> None:
        raise NotImplementedError


class CallGroup:
    """The ``call`` of a group of three ranks, each answering by ``answer``."""

    num_ranks = 3

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.calls: list[tuple[str, str, list[tuple[Any, ...]]]] = []
        self._answer = answer

    def call(self, role: str, method: str, args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        self.calls.append((role, method, [tuple(args) for args in args_by_rank]))
        return [self._answer(rank, *args) for rank, args in enumerate(args_by_rank)]


def invoked(
    method: Callable[..., Any], *args: Any, answer: Callable[..., Any] = lambda rank, *args: rank
) -> Any:
    group = CallGroup(answer)
    result = invoke(group, "role", method, *args)  # type: ignore[arg-type]
    return result, group.calls


def test_all_ranks_get_the_same_and_answer_by_rank() -> None:
    assert invoked(Role.everywhere, 7) == ([0, 1, 2], [("role", "everywhere", [(7,)] * 3)])


def test_of_first_all_are_called_and_rank_0_answers() -> None:
    assert invoked(Role.first, 7) == (0, [("role", "first", [(7,)] * 3)])


def test_of_rank_zero_one_is_called() -> None:
    assert invoked(Role.zero, 7) == (0, [("role", "zero", [(7,)])])


def test_of_data_each_gets_its_part() -> None:
    assert invoked(Role.shards, [10, 11, 12], 7) == (
        [0, 1, 2],
        [("role", "shards", [(10, 7), (11, 7), (12, 7)])],
    )


def test_statistics_of_all_parts_are_merged() -> None:
    merged, _ = invoked(
        Role.stats, [1, 2, 3], answer=lambda rank, part: Stats({"x": Stat.of([part])})
    )
    assert (merged["x"].sum, merged["x"].count, merged["x"].max) == (6.0, 3, 3.0)


def test_a_method_without_a_mark_is_refused() -> None:
    with pytest.raises(TypeError, match="is not marked with @register"):
        invoked(Role.unmarked)


@pytest.fixture
def local(model: Path) -> Iterator[LocalGroup]:
    group = LocalGroup(threads=1)
    group.setup(worker_spec(model))
    yield group
    group.close()


def test_a_group_in_this_process_says_where_it_is(local: LocalGroup) -> None:
    assert local.describe() == [{"rank": 0, "host": socket.gethostname(), "pid": os.getpid()}]
    assert ActorHandle(local).num_ranks == 1


def test_it_publishes_and_plays(local: LocalGroup) -> None:
    (report,) = local.publish(5)
    assert report is not None
    assert (report.version, report.bytes > 0) == (5, True)
    (outcome,) = collect_groups(local, [GroupRequest(0, TASKS[0], 2)], 60.0)
    assert {version for t in outcome.group.trajectories for version in t.policy_versions} == {5}


def broken(group: WorkerGroup) -> TrainingError:
    with pytest.raises(TrainingError) as caught:
        group.call("actor", "no_such_method", [()] * group.num_ranks)
    return caught.value


def test_an_error_brings_its_rank_host_and_traceback(local: LocalGroup) -> None:
    error = broken(local)
    assert "rank 0: actor.no_such_method raised AttributeError" in str(error)
    assert (error.rank, error.host) == (0, socket.gethostname())
    assert "Traceback" in error.traceback_text


def test_and_the_group_is_poisoned_ever_after(local: LocalGroup) -> None:
    broken(local)
    for later in (lambda: local.call("actor", "facts", [()]), lambda: local.publish(2)):
        with pytest.raises(
            TrainingError, match="the group is poisoned by an earlier error: rank 0: actor"
        ):
            later()


def test_a_publish_that_fails_poisons_too(
    local: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: object) -> None:
        raise EngineError("torn", retryable=False)

    monkeypatch.setattr("agentrl.controller.cluster.worker.publish_in_process", torn)
    with pytest.raises(EngineError, match="torn"):
        local.publish(1)
    with pytest.raises(TrainingError, match="poisoned by an earlier error: torn"):
        local.call("actor", "facts", [()])


def test_a_stage_without_rollouts_plays_nothing(model: Path) -> None:
    group = LocalGroup(threads=1)
    try:
        group.setup(WorkerSpec(actor_spec(model)))
        assert group.publish(1) == [None]
        with pytest.raises(ConfigError, match="this stage has no rollouts"):
            group.submit([GroupRequest(0, TASKS[0], 1)])
    finally:
        group.close()


def test_a_new_stage_ends_what_the_earlier_one_left(local: LocalGroup, model: Path) -> None:
    local.publish(1)
    local.submit([GroupRequest(0, TASKS[0], 1)])
    local.setup(WorkerSpec(actor_spec(model)))
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("episodes")]


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(TrainingError("x", rank=3, host="h", traceback_text="tb")))
    assert (str(error), error.rank, error.host, error.traceback_text) == ("x", 3, "h", "tb")


@pytest.fixture
def pair(ray_started: None, model: Path) -> Iterator[Any]:
    from agentrl.controller.cluster.ray_role_group import RayGroup

    group = RayGroup(2, threads=1)
    group.setup(worker_spec(model))
    yield group
    group.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestOverRay:
    def test_two_ranks_publish_and_play_each_its_draws(self, pair: Any) -> None:
        assert [place["rank"] for place in pair.describe()] == [0, 1]
        assert len({place["pid"] for place in pair.describe()} | {os.getpid()}) == 3
        assert [report.version for report in pair.publish(3)] == [3, 3]
        outcomes = collect_groups(
            pair,
            [GroupRequest(group_index, TASKS[group_index], 2) for group_index in range(4)],
            120.0,
        )
        assert [o.request.group_index for o in outcomes] == [0, 1, 2, 3]
        assert {v for o in outcomes for t in o.group.trajectories for v in t.policy_versions} == {3}
        error = broken(pair)
        assert (error.rank in (0, 1), error.host) == (True, socket.gethostname())
        assert "AttributeError" in str(error)
        assert "Traceback" in error.traceback_text
        with pytest.raises(TrainingError, match="poisoned"):
            pair.call("actor", "facts", [(), ()])

    def test_a_rank_that_is_killed_is_named_within_seconds(self, pair: Any) -> None:
        pids = [place["pid"] for place in pair.describe()]
        errors: list[BaseException] = []

        def gather_alone() -> None:
            try:
                pair.call(
                    "actor", "checksum", [()]
                )  # collective: rank 0 waits for the other, which is never called
            except TrainingError as error:
                errors.append(error)

        caller = threading.Thread(target=gather_alone, daemon=True)
        caller.start()
        caller.join(1.0)
        killed = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        caller.join(60.0)
        (error,) = errors
        assert isinstance(error, TrainingError)
        assert "the worker of rank 0 died" in str(error)
        assert (error.rank, error.host) == (0, socket.gethostname())
        assert time.monotonic() - killed < 30  # some seconds, on a machine that has time
        with pytest.raises(TrainingError, match="poisoned"):
            pair.publish(2)

    def test_a_model_that_cannot_be_read_is_named_as_what_it_is(
        self, pair: Any, tmp_path: Path
    ) -> None:
        with pytest.raises(DataError):
            pair.setup(WorkerSpec(actor_spec(tmp_path / "nowhere")))
