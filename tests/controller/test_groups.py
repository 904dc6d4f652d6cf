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

from agentrl.config.sections import PoolConfig
from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.role_group import Look, RoleGroup
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import ProcessInfo, collect_groups
from agentrl.errors import ConfigError, DataError, EngineError, RankLostError, TrainingError
from agentrl.rollouts import GroupRequest
from agentrl.training import ReferenceSpec
from agentrl.types import Collect, Dispatch, Stat, Stats, register, registration
from tests.controller.tiny import TASKS, Cluster, actor_spec, local_cluster, roles, rollouts
from tests.kit.waiting import DEADLINE_S


class Role:
    """Methods of each mark; what they are given is what a CallGroup saw."""

    @register(Dispatch.FIRST)
    def first(self, value: int) -> int:
        raise NotImplementedError

    @register(Dispatch.DATA)
    def shards(self, part: int, shared: int) -> int:
        raise NotImplementedError

    @register(Dispatch.DATA, collect=Collect.STATS)
    def stats(self, part: int) -> Stats:
        raise NotImplementedError

    def unmarked(self) -> None:
        raise NotImplementedError


class CallGroup(RoleGroup):
    """A group whose ranks answer by ``answer``."""

    def __init__(self, mesh: MeshShape, answer: Callable[..., Any]) -> None:
        super().__init__(mesh)
        self.calls: list[tuple[str, str, list[tuple[Any, ...]]]] = []
        self._answer = answer

    def begin_ranks(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> Look:
        target, name = by_rank[0][:2]
        own = [args[2:] for args in by_rank]
        self.calls.append((target, name, own))
        times = [(f"{target}.{name}", 1.0, 2.0)]
        answers = [(self._answer(rank, *args), times) for rank, args in enumerate(own)]
        return lambda _: answers


THREE_RANKS = MeshShape(dp=3)


def called(
    method: Callable[..., Any],
    *args: Any,
    mesh: MeshShape = THREE_RANKS,
    answer: Callable[..., Any] = lambda rank, *args: rank,
) -> Any:
    group = CallGroup(mesh, answer)
    result = RoleHandle(group, "role").call(method, *args)
    return result, group.calls


def test_of_first_all_are_called_and_rank_0_answers() -> None:
    assert called(Role.first, 7) == (0, [("role", "first", [(7,)] * 3)])


@pytest.mark.parametrize(
    ("pool", "name"), [("main", "rank"), ("", "rank"), ("judges", "judges")]
)
def test_what_ranks_did_bears_their_names_and_is_told_once(pool: str, name: str) -> None:
    group = CallGroup(MeshShape(dp=2), lambda rank: rank)
    group.name = pool
    RoleHandle(group, "role").call(Role.first)
    assert group.take_times() == [
        ("role.first", 1.0, 2.0, f"{name}-0"),
        ("role.first", 1.0, 2.0, f"{name}-1"),
    ]
    assert group.take_times() == []


def test_of_data_each_gets_its_part() -> None:
    assert called(Role.shards, [10, 11, 12], 7) == (
        [0, 1, 2],
        [("role", "shards", [(10, 7), (11, 7), (12, 7)])],
    )


def test_statistics_of_all_parts_are_merged() -> None:
    merged, _ = called(
        Role.stats, [1, 2, 3], answer=lambda rank, part: Stats({"x": Stat.of([part])})
    )
    assert (merged["x"].sum, merged["x"].count, merged["x"].max) == (6.0, 3, 3.0)


@pytest.mark.parametrize(
    ("mesh", "parts", "answering"),
    [
        (MeshShape(2, 1, 1), [10, 11], [0, 1]),
        (MeshShape(2, 2, 1), [10, 10, 11, 11], [0, 2]),
        (MeshShape(2, 1, 3), [10, 10, 10, 11, 11, 11], [0, 3]),
        (MeshShape(2, 2, 2), [10] * 4 + [11] * 4, [0, 4]),
        (MeshShape(1, 2, 2), [10] * 4, [0]),
        (MeshShape(2, 1, 1, 2), [10, 10, 11, 11], [1, 3]),
        (MeshShape(1, 2, 1, 2), [10] * 4, [2]),
    ],
)
def test_all_ranks_of_a_coordinate_get_its_shard_and_the_first_of_them_answers(
    mesh: MeshShape, parts: list[int], answering: list[int]
) -> None:
    given = [10, 11][: mesh.dp]
    answers, calls = called(Role.shards, given, 7, mesh=mesh)
    assert answers == answering
    assert calls == [("role", "shards", [(part, 7) for part in parts])]
    assert called(Role.first, 7, mesh=mesh)[1] == [("role", "first", [(7,)] * mesh.size)]


def test_a_statistic_counts_once_for_all_ranks_of_a_coordinate() -> None:
    merged, _ = called(
        Role.stats,
        [1, 2],
        mesh=MeshShape(dp=2, tp=2),
        answer=lambda rank, part: Stats({"x": Stat.of([part])}),
    )
    assert (merged["x"].sum, merged["x"].count) == (3.0, 2)


def test_a_call_without_a_shard_for_each_coordinate_is_refused() -> None:
    with pytest.raises(
        TrainingError, match="one shard for each of its 2 data coordinates, got 4"
    ):
        called(Role.shards, [1, 2, 3, 4], 7, mesh=MeshShape(dp=2, tp=2))


def test_a_method_without_a_mark_is_refused() -> None:
    with pytest.raises(TypeError, match="is not marked with @register"):
        called(Role.unmarked)


def test_a_method_needs_the_parameters_unless_it_says_otherwise() -> None:
    def method(self: object) -> None: ...

    assert registration(register(Dispatch.FIRST)(method)).needs == ("params",)
    assert registration(register(Dispatch.FIRST, needs=())(method)).needs == ()


@pytest.fixture
def local(model: Path) -> Iterator[Cluster]:
    cluster = local_cluster()
    cluster.setup(model)
    yield cluster
    cluster.close()


def test_a_group_in_this_process_says_where_it_is(local: Cluster) -> None:
    here = ProcessInfo(host=socket.gethostname(), pid=os.getpid(), rank=0)
    assert local.group.describe() == [here]
    assert local.group.mesh == MeshShape(1, 1, 1)


def test_it_publishes_and_plays(local: Cluster) -> None:
    (report,) = local.publish(5)
    assert (report.version, report.bytes > 0) == (5, True)
    (outcome,) = collect_groups(local.pool, [GroupRequest(0, TASKS[0], 2)], DEADLINE_S)
    assert {
        version for t in outcome.group.trajectories for version in t.policy_versions
    } == {5}


def test_a_publish_is_logged_with_version_bytes_and_seconds(
    local: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "agentrl.controller.cluster.weight_publisher"):
        local.sync.publish("main", local.actor, local.pool, 2)
    (record,) = caplog.records
    told = vars(record)
    assert (told["event"], told["version"], told["policy"]) == (
        "weights_published",
        2,
        "main",
    )
    assert told["bytes"] > 0
    assert told["seconds"] > 0


def broken(group: RoleGroup) -> TrainingError:
    with pytest.raises(TrainingError) as caught:
        group.call("actor", "no_such_method")
    return caught.value


@pytest.mark.invariant
def test_an_error_brings_its_rank_host_and_traceback(local: Cluster) -> None:
    error = broken(local.group)
    assert "rank 0: actor.no_such_method raised AttributeError" in str(error)
    assert (error.rank, error.host) == (0, socket.gethostname())
    assert "Traceback" in error.traceback_text


def test_and_the_group_is_poisoned_ever_after(local: Cluster) -> None:
    broken(local.group)
    for later in (lambda: local.group.call("actor", "facts"), lambda: local.publish(2)):
        with pytest.raises(
            TrainingError, match="the group is poisoned by an earlier error: rank 0: actor"
        ):
            later()


def test_a_role_that_is_not_built_is_named(local: Cluster) -> None:
    with pytest.raises(
        ConfigError, match="role 'critic' is not built in this stage, which has actor"
    ):
        local.group.call("critic", "facts")


def test_a_role_that_no_engine_could_serve_is_not_published(model: Path) -> None:
    cluster = local_cluster()
    try:
        cluster.group.setup({"reference": ReferenceSpec(str(model))})
        with pytest.raises(
            ConfigError, match="role 'reference' has no weights that engines could"
        ):
            cluster.sync.publish(
                "main", RoleHandle(cluster.group, "reference"), cluster.pool, 1, "retract"
            )
    finally:
        cluster.close()


def test_a_publish_that_fails_poisons_too(
    local: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupt(*_: object, **__: object) -> None:
        raise EngineError("corrupt", retryable=False)

    monkeypatch.setattr("agentrl.controller.cluster.worker.publish_in_process", corrupt)
    with pytest.raises(EngineError, match="corrupt"):
        local.publish(1)
    with pytest.raises(TrainingError, match="poisoned by an earlier error: corrupt"):
        local.group.call("actor", "facts")


def test_a_stage_without_rollouts_plays_nothing(model: Path) -> None:
    cluster = local_cluster()
    try:
        cluster.group.setup(roles(model))
        cluster.pool.setup(None)
        assert cluster.publish(1) == []
        assert cluster.pool.layout() is None
        with pytest.raises(ConfigError, match="this stage has no rollouts"):
            cluster.pool.submit([GroupRequest(0, TASKS[0], 1)])
    finally:
        cluster.close()


def test_a_pool_plays_without_a_role_group(model: Path) -> None:
    pool = EpisodeHost()
    try:
        pool.setup(rollouts(model))
        (outcome,) = collect_groups(pool, [GroupRequest(0, TASKS[0], 2)], DEADLINE_S)
        assert all(trajectory.status.finished for trajectory in outcome.group.trajectories)
        assert pool.describe() == [ProcessInfo(host=socket.gethostname(), pid=os.getpid())]
        layout = pool.layout()
        assert layout is not None
        assert layout.dtype == "float32"
    finally:
        pool.close()


def test_a_new_stage_ends_what_the_earlier_one_left(local: Cluster, model: Path) -> None:
    local.publish(1)
    local.pool.submit([GroupRequest(0, TASKS[0], 1)])
    local.group.setup(roles(model))
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("episodes")]


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(
        pickle.dumps(TrainingError("x", rank=3, host="h", traceback_text="tb"))
    )
    assert (str(error), error.rank, error.host, error.traceback_text) == ("x", 3, "h", "tb")


@pytest.fixture
def over_ray(ray_started: None) -> Iterator[Callable[..., Any]]:
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup

    started: list[RoleGroup] = []

    def start(world_size: int, **settings: Any) -> Any:
        started.append(RayRoleGroup(PoolConfig(world_size=world_size), **settings))
        return started[-1]

    yield start
    for group in started:
        group.close()


@pytest.fixture
def pair(over_ray: Callable[..., Any], model: Path) -> Cluster:
    group = over_ray(2)
    cluster = Cluster(group, group.rollouts)
    cluster.setup(model)
    return cluster


def test_whoever_calls_after_a_loss_has_lost_the_rank_too() -> None:
    from agentrl.controller.cluster.ray_runtime import ActorCalls, ActorLostError

    calls = ActorCalls(
        str,
        lambda message, rank, text: TrainingError(message, rank=rank),
        lost=lambda message, rank: RankLostError(message, rank=rank),
    )
    lost = calls.fail(ActorLostError("rank 1 died"), 1)
    with pytest.raises(
        RankLostError
    ) as raised:  # by another thread than the one that saw it
        calls.begin([], "updating")
    assert raised.value is lost
    assert raised.value.rank == 1


@pytest.mark.slow
class TestOverRay:
    @pytest.mark.invariant
    def test_two_ranks_publish_and_play_each_its_draws(self, pair: Any) -> None:
        assert [place.rank for place in pair.group.describe()] == [0, 1]
        assert len({place.pid for place in pair.group.describe()} | {os.getpid()}) == 3
        assert [report.version for report in pair.publish(3)] == [3, 3]
        outcomes = collect_groups(
            pair.pool,
            [GroupRequest(group_index, TASKS[group_index], 2) for group_index in range(4)],
            120.0,
        )
        assert [o.request.group_index for o in outcomes] == [0, 1, 2, 3]
        assert {
            v for o in outcomes for t in o.group.trajectories for v in t.policy_versions
        } == {3}
        error = broken(pair.group)
        assert (error.rank in (0, 1), error.host) == (True, socket.gethostname())
        assert "AttributeError" in str(error)
        assert "Traceback" in error.traceback_text
        with pytest.raises(TrainingError, match="poisoned"):
            pair.group.call("actor", "facts")

    @pytest.mark.invariant
    def test_a_rank_that_is_killed_is_named(self, pair: Any) -> None:
        pids = [place.pid for place in pair.group.describe()]
        errors: list[BaseException] = []

        def gather_alone() -> None:
            try:
                # collective: rank 0 waits for the other
                pair.group.call("actor", "checksum")
            except TrainingError as error:
                errors.append(error)

        os.kill(pids[1], signal.SIGSTOP)  # it lives, and takes no part
        caller = threading.Thread(target=gather_alone, daemon=True)
        caller.start()
        caller.join(1.0)
        os.kill(pids[0], signal.SIGKILL)
        caller.join(DEADLINE_S)
        (error,) = errors
        assert isinstance(error, TrainingError)
        assert "the worker of rank 0 died" in str(error)
        assert (error.rank, error.host) == (0, socket.gethostname())
        with pytest.raises(RankLostError, match="the worker of rank 0 died"):
            pair.publish(2)

    def test_a_rank_that_raises_ends_the_call_of_one_in_a_collective(
        self, pair: Any
    ) -> None:
        pids = [place.pid for place in pair.group.describe()]
        # rank 0 gathers, and waits for rank 1
        own = [("actor", "checksum"), ("actor", "nothing")]
        start = time.monotonic()
        told = r"rank 1: actor\.nothing raised AttributeError"
        with pytest.raises(TrainingError, match=told) as raised:
            pair.group.call_ranks("crossing", "call", own)
        assert (raised.value.rank, raised.value.host) == (1, socket.gethostname())
        pair.group.close()
        until = start + 60
        while any(Path("/proc", str(pid)).exists() for pid in pids):
            assert time.monotonic() < until < start + pair.group._calls.timeout_s
            time.sleep(0.1)

    def test_a_rank_that_hangs_is_named_at_the_deadline_of_a_call(
        self, over_ray: Callable[..., Any]
    ) -> None:
        group = over_ray(1, call_timeout_s=200.0)
        assert group._calls.timeout_s == 200.0
        (rank,) = group.describe()
        group._calls.timeout_s = 5.0  # the start needs more where much else runs
        os.kill(rank.pid, signal.SIGSTOP)
        told = (
            r"the worker of rank 0 did not answer within 5 s \(placement.call_timeout_s\)"
        )
        with pytest.raises(TrainingError, match=told):
            group.describe()

    def test_a_model_that_cannot_be_read_is_named_as_what_it_is(
        self, over_ray: Callable[..., Any], tmp_path: Path
    ) -> None:
        with pytest.raises(DataError):
            over_ray(1).setup({"actor": actor_spec(tmp_path / "nowhere")})
