"""Engine and trainer have a GPU in turn: the order of the moves, and that only a publish leads back
to serving.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.phases import RankPhases, largest, ranks_of_servers
from agentrl.controller.cluster.role_group import Look, RoleGroup
from agentrl.controller.cluster.rollout_pool import ProcessInfo
from agentrl.engines import EngineTraits, PauseMode, Tag
from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import ConfigError, EngineError
from agentrl.training import DistSpec, WeightPart, join, leave
from agentrl.weight_sync import publish_in_process
from tests.training.own_backend import Loop

Moves = list[str]


class Told(ScriptedEngine):
    """A scripted engine that tells what its owner does with it."""

    moves: Moves

    def pause(self, mode: PauseMode) -> None:
        self.moves.append(f"pause {mode}")
        super().pause(mode)

    def sleep(self, tags: Sequence[Tag]) -> None:
        self.moves.append(f"sleep {' '.join(tags)}")
        super().sleep(tags)

    def wake(self, tags: Sequence[Tag]) -> None:
        self.moves.append(f"wake {' '.join(tags)}")
        super().wake(tags)


class Backend:
    """Tells what it is to keep away from the device."""

    def __init__(self, name: str, moves: Moves) -> None:
        self.name = name
        self.moves = moves

    def keep_away(self, parts: Collection[str]) -> None:
        self.moves.append(f"{self.name} without {' '.join(sorted(parts)) or 'nothing'}")


@pytest.fixture
def engine() -> Iterator[Told]:
    engine = Told([[1]])
    engine.moves = []
    yield engine
    engine.close()


@pytest.fixture
def phases(engine: Told) -> RankPhases:
    join(DistSpec())
    host = EpisodeHost()
    host.engine = engine
    roles = {
        name: SimpleNamespace(backend=Backend(name, engine.moves))
        for name in ("actor", "critic")
    }
    phases = RankPhases(roles, host)
    phases.begin(True)
    return phases


def publish(engine: ScriptedEngine, version: int) -> None:
    session = engine.begin_update(version)
    session.put("weight", torch.zeros(2))
    session.commit()


def test_memory_is_given_back_before_it_is_taken(engine: Told, phases: RankPhases) -> None:
    both = "optimizer params"
    assert engine.moves == [f"actor without {both}", f"critic without {both}"]
    engine.moves.clear()
    phases.enter("update")
    phases.enter("publish", "actor")
    publish(engine, 1)
    phases.enter("rollout")
    engine.resume()
    assert engine.moves == [
        "pause drain",
        "sleep graphs kv_cache weights",
        "actor without nothing",
        "critic without nothing",
        "actor without optimizer",
        f"critic without {both}",
        "wake weights",
        f"actor without {both}",
        f"critic without {both}",
        "wake kv_cache graphs",
    ]
    assert engine.health().state == "serving"


def test_weights_that_woke_serve_nothing_before_they_are_published(
    engine: Told, phases: RankPhases
) -> None:
    phases.enter("update")
    phases.enter("rollout")
    with pytest.raises(
        EngineError, match=r"released since version 0 was sent, .*publish weights"
    ):
        engine.resume()
    publish(engine, 1)
    engine.resume()
    assert engine.health().state == "serving"


def test_a_publish_without_a_batch_before_it_puts_nothing_to_sleep(
    engine: Told, phases: RankPhases
) -> None:
    engine.moves.clear()
    phases.enter("publish", "actor")
    assert [move for move in engine.moves if "without" not in move] == [
        "pause drain",
        "sleep graphs kv_cache",
    ]


def test_nothing_moves_where_the_engine_does_not_sleep(
    engine: Told, phases: RankPhases
) -> None:
    phases.begin(False)
    engine.moves.clear()
    for name in ("update", "publish", "rollout"):
        phases.enter(name)
    assert engine.moves == []
    assert phases.take_numbers() == {}


def test_the_moves_are_timed(phases: RankPhases) -> None:
    phases.enter("update")
    names = {"time/engine_sleep_s", "time/trainer_away_s", "time/engine_wake_s"}
    assert phases.take_numbers().keys() == names
    assert phases.take_numbers() == {}


def test_what_lasted_on_a_rank_is_told_once_by_the_clock_of_the_day(
    phases: RankPhases,
) -> None:
    before = time.time()
    with pytest.raises(ZeroDivisionError), phases.timed("actor.update"):
        raise ZeroDivisionError
    phases.enter("update")
    times = phases.take_times()
    names = ["actor.update", "engine_sleep", "trainer_away", "engine_wake"]
    assert [name for name, _, _ in times] == names
    moments = [at for _, *both in times for at in both]
    assert moments == sorted(moments)
    assert moments[0] == pytest.approx(before, abs=60)
    assert phases.take_times() == []


def test_of_several_ranks_the_largest_number_counts() -> None:
    assert largest([{"a": 1.0, "b": 3.0}, {"a": 2.0}]) == {"a": 2.0, "b": 3.0}


def test_a_backend_that_keeps_its_memory_cannot_take_turns() -> None:
    backend = SimpleNamespace(name="loop")
    Loop.keep_away(backend, ())
    with pytest.raises(ConfigError, match=r"TrainConfig\.backend='loop' has no keep_away"):
        Loop.keep_away(backend, ("params",))


# --- whose GPUs a server has


@pytest.mark.parametrize(
    ("nodes", "ranks_a_server", "tp", "servers"),
    [
        ("aaaa", 1, 1, [[0], [1], [2], [3]]),
        # The first two train the upper half of all rows, which is the part of a server's first.
        ("aaaa", 2, 1, [[0, 2], [1, 3]]),
        ("aaaa", 4, 1, [[0, 1, 2, 3]]),
        # Neighbours train the two halves of each tensor.
        ("aaaa", 2, 2, [[0, 1], [2, 3]]),
        ("aaaa", 4, 2, [[0, 2, 1, 3]]),
        # Ray may have placed them in turn
        ("abab", 2, 1, [[0, 2], [1, 3]]),
        ("aabbbb", 2, 1, [[0, 1], [2, 4], [3, 5]]),
    ],
)
def test_a_server_has_ranks_of_one_node_that_train_its_own_parts(
    nodes: str, ranks_a_server: int, tp: int, servers: list[list[int]]
) -> None:
    assert ranks_of_servers(nodes, ranks_a_server, tp=tp) == servers


def test_ranks_that_cannot_be_divided_are_named() -> None:
    said = r"tp_size=2 must divide the ranks of each node .*, got 3 on node a; change it"
    with pytest.raises(ConfigError, match=said):
        ranks_of_servers("aaab", 2)
    with pytest.raises(ConfigError, match="got 1 in this process"):
        ranks_of_servers([""], 2)


class Ranks(RoleGroup):
    """Ranks on two nodes, whose calls are kept."""

    def __init__(self, gpus: str) -> None:
        super().__init__(MeshShape(len(gpus)))
        self.places = [
            ProcessInfo("host", 1, rank=n, node="ab"[n // 2], gpu=gpu.strip())
            for n, gpu in enumerate(gpus)
        ]

    def describe(self) -> list[ProcessInfo]:
        return self.places

    def begin_ranks(
        self, what: str, method: str, by_rank: Sequence[tuple[Any, ...]]
    ) -> Look:
        self.called = method, list(by_rank)
        return lambda _: [None] * len(by_rank)

    def pool_of(self, ranks: Sequence[int]) -> Any:
        return list(ranks)


def worker_spec(ranks_a_server: int, gpus: int = 1) -> Any:
    traits = EngineTraits(ranks_a_server=ranks_a_server, gpus=gpus)
    spec = SimpleNamespace(section="own", traits=lambda: traits)
    return SimpleNamespace(engine=SimpleNamespace(spec=spec), sleeps=True)


def test_the_first_of_a_servers_ranks_owns_it_over_all_their_gpus() -> None:
    ranks = Ranks("4567")
    assert ranks.host(worker_spec(2)) == [0, 2]
    assert ranks.called == (
        "share_server",
        [
            ((0, 1), ("4", "5"), True),
            ((0, 1), ("4", "5"), True),
            ((2, 3), ("6", "7"), True),
            ((2, 3), ("6", "7"), True),
        ],
    )


@pytest.mark.parametrize(("gpus", "needed"), [("    ", 2), ("4567", 0)])
def test_ranks_have_a_server_together_that_takes_no_gpu(gpus: str, needed: int) -> None:
    ranks = Ranks(gpus)
    assert ranks.host(worker_spec(2, needed)) == [0, 2]
    assert ranks.called[1] == [((0, 1), (), True)] * 2 + [((2, 3), (), True)] * 2


@pytest.mark.parametrize(("gpus", "ranks_a_server"), [("4567", 0), ("   ", 2), (" ", 2)])
def test_ranks_that_share_nothing_have_an_engine_each(
    gpus: str, ranks_a_server: int
) -> None:
    ranks = Ranks(gpus)
    numbers = list(range(len(gpus)))
    assert ranks.host(worker_spec(ranks_a_server)) == numbers
    assert ranks.called == ("share_server", [((rank,), (), True) for rank in numbers])


class Sender:
    """An actor whose parts are sent in a dtype by every rank."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.dtypes: set[str] = set()

    def parts(self, dtype: str) -> Iterator[WeightPart]:
        self.dtypes.add(dtype)
        yield WeightPart("weight", (2,), (0,), torch.zeros(2))

    def checksum(self, dtype: str) -> Mapping[str, int]:
        raise InterruptedError


@contextmanager
def told() -> Iterator[None]:
    with pytest.raises(InterruptedError):
        yield


def test_a_rank_without_an_engine_sends_in_the_dtype_of_the_others() -> None:
    actor = Sender()
    join(DistSpec())
    with told():
        publish_in_process(actor, None, 1, dtype="bfloat16")
    leave()
    assert actor.dtypes == {"bfloat16"}
