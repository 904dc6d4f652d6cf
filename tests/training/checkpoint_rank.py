"""One rank that takes steps, writes checkpoints beside them, goes on from one, or fails to write.

Run as ``python -m tests.training.checkpoint_rank RANK WORLD_SIZE PORT WHAT MODEL FOLDER``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from agentrl.algorithms import make_algorithm
from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints import Checkpoints, Manifest
from agentrl.controller.state import TrainState
from agentrl.errors import StoreError
from agentrl.training import (
    ActorSpec,
    CriticSpec,
    DistSpec,
    LearningRole,
    OptimSpec,
    join,
    leave,
)
from agentrl.training.fsdp import checkpoint, checkpoint_files
from tests.kit.waiting import DEADLINE_S
from tests.training.test_no_waits import shard_of

OPTIM = OptimSpec(lr=1e-4)
NAMES = ("actor", "critic")


def roles(model: str, place: DistSpec) -> dict[str, LearningRole]:
    """An actor and a critic."""
    join(place)
    ppo = make_algorithm("ppo")
    return {
        "actor": ActorSpec(model, ppo, OPTIM).build(place),
        "critic": CriticSpec(model, ppo, OPTIM, head_seed=5).build(place),
    }


def take_step(role: LearningRole, place: DistSpec) -> None:
    """An update on the same batch at any world size."""
    role.update(shard_of("ppo", place))


def weights(role: LearningRole) -> dict[str, torch.Tensor]:
    """Whole, by name."""
    whole = {}
    for name, parameter in role.backend.state().items():
        own = parameter.detach()
        whole[name] = (own.full_tensor() if isinstance(own, DTensor) else own).clone()
    return whole


def write(model: str, folder: Path, place: DistSpec) -> None:
    """Three steps with a checkpoint of the second beside the third."""
    found = {}
    for name, role in roles(model, place).items():
        take_step(role, place)
        take_step(role, place)
        role.begin_save(folder / "two" / name)
        take_step(role, place)
        result = role.save_result(wait=True)
        assert result is not None
        assert result.error is None
        found[name] = weights(role)
    torch.save(found, folder / f"written-{place.rank}.pt")


def go_on(model: str, folder: Path, place: DistSpec) -> None:
    """The third step on more ranks; and what this rank read of the checkpoints."""
    read: list[str] = []
    hashes = checkpoint_files.file_hashes

    def told(where: Path, pattern: str) -> Any:
        read.append(f"{where.name}/{pattern}")
        return hashes(where, pattern)

    for name, role in roles(model, place).items():
        checkpoint_files.file_hashes = told
        role.load(folder / "two" / name)
        checkpoint_files.file_hashes = hashes
        assert role.steps == 2
        role.save(folder / "four" / name)
        take_step(role, place)
        torch.save(weights(role), folder / f"{name}-four-{place.rank}.pt")
    (folder / f"read-{place.rank}").write_text("\n".join(read))


def fail(model: str, folder: Path, place: DistSpec) -> None:
    """The disk of rank 1 is full at its second checkpoint."""
    role = roles(model, place)["actor"]
    role.save(folder / "first")
    with full_disk() if place.rank == 1 else contextmanager(_nothing)():
        role.begin_save(folder / "second")
        take_step(role, place)
        result = role.save_result(wait=True)
    assert result is not None
    told = f"{type(result.error).__name__}: {result.error}"
    take_step(role, place)
    role.begin_save(folder / "third")
    last = role.save_result(wait=True)
    assert last is not None
    assert last.error is None
    (folder / f"told-{place.rank}").write_text(told)
    # a torn file of the part of either is refused by both
    torn = next((folder / "third").glob("__1_*"))
    if place.rank == 0:
        torn.write_bytes(torn.read_bytes()[:-5])
    torch.distributed.barrier()
    try:
        role.load(folder / "third")
    except StoreError as error:
        (folder / f"refused-{place.rank}").write_text(str(error))


def die(model: str, folder: Path, place: DistSpec) -> None:
    """SIGKILL in the middle of the second checkpoint, that is written beside a step."""
    role = roles(model, place)["actor"]
    kept = Checkpoints(folder, keep_last=1)
    for step in (1, 2):
        take_step(role, place)
        at = kept.begin(step)
        if step == 2:
            _patch(lambda: os.kill(os.getpid(), signal.SIGKILL))
        role.begin_save(at / "actor")
        role.save_result(wait=True)
        torch.save(weights(role), folder / f"weights-{step}.pt")
        kept.commit(at, Manifest("rl", TrainState(step), RolloutState(0, (), 0, 0)))


@contextmanager
def full_disk() -> Iterator[None]:
    """A write beyond the first bytes fails."""

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    own = checkpoint._HashedFile._put
    _patch(refuse)
    try:
        yield
    finally:
        checkpoint._HashedFile._put = own  # type: ignore[method-assign]


def _patch(then: Callable[[], None]) -> None:
    own = checkpoint._HashedFile._put

    def write_some(file: Any, data: Any) -> int:
        if file.size:
            then()
        return own(file, data)

    checkpoint._HashedFile._put = write_some  # type: ignore[method-assign]
    checkpoint._BUFFER_BYTES = 2**12


def _nothing() -> Iterator[None]:
    yield


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, size, port = (int(argument) for argument in sys.argv[1:4])
    here = DistSpec(rank=number, world_size=size, port=port, timeout_s=DEADLINE_S)
    {"write": write, "go_on": go_on, "fail": fail, "die": die}[sys.argv[4]](
        sys.argv[5], Path(sys.argv[6]), here
    )
    leave()
