"""An allocation that fails: the phase, the shapes, what is held, and the settings to lower."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms import make_algorithm
from agentrl.config.key_names import with_keys
from agentrl.controller.cluster.worker import Worker
from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from agentrl.errors import AgentRLError
from agentrl.training import ActorSpec, DistSpec
from agentrl.training.out_of_memory import explaining_memory
from agentrl.training.parallel.process_group import Sharding
from agentrl.types import BatchShard
from tests.kit.forks import FORKS
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import PLAIN, make_batch, write_model

LENGTHS = (3000, 2000, 2500, 1500)
ROOM = 2**24
"""Bytes that a process may still have: less than a pass over thousands of tokens needs."""


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("long")
    return str(
        write_model(
            folder, max_position_embeddings=8192, hidden_size=256, intermediate_size=1024
        )
    )


def shard(
    *micro_batches: tuple[int, ...], weighs: bool, lengths: tuple[int, ...] = LENGTHS
) -> BatchShard:
    batch = make_batch(lengths)
    rows = np.arange(len(lengths))
    weight = np.ones(len(lengths)) if weighs else None
    if weighs:
        batch = batch.join({"old_logprobs": batch.rollout_logprobs})
        batch = batch.join({"advantages": np.ones(batch.num_tokens, np.float32)})
    return BatchShard(batch, rows, micro_batches, sample_weight=weight)


def passes(
    model: str, method: str, *micro_batches: tuple[int, ...], **settings: Any
) -> None:
    worker = Worker("episodes")
    worker.join(DistSpec(), 1)
    worker.setup({"actor": ActorSpec(model, make_algorithm("grpo"), PLAIN)})
    own = shard(*micro_batches, weighs=method == "update", **settings)
    limit_memory(ROOM // 4)
    worker.call("actor", method, own)


def builds_an_engine(model: str) -> None:
    limit_memory()
    TorchEngine(EnginePlace(model, context_tokens=8192, max_running=64))


def wakes_an_engine(model: str) -> None:
    engine = TorchEngine(EnginePlace(model, context_tokens=8192, max_running=64))
    engine.pause("drain")
    engine.sleep(["kv_cache"])
    limit_memory()
    engine.wake(["kv_cache"])


def limit_memory(room: int = ROOM) -> None:
    """From here on this process gets hardly any memory more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def tell(out: Connection, does: Callable[[], None]) -> None:
    try:
        does()
    except AgentRLError as error:
        out.send((type(error).__name__, str(error)))
    else:
        out.send(("nothing", "was raised"))


def failed(does: Callable[..., None], *args: Any, **settings: Any) -> tuple[str, str]:
    """What is raised in a process of its own; its class and text."""
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=tell, args=(there, partial(does, *args, **settings)))
    process.start()
    there.close()
    try:
        assert here.poll(DEADLINE_S)
        kind, text = here.recv()
    finally:
        process.kill()
        process.join()
    return kind, with_keys(text)


def test_an_update_names_phase_shapes_and_settings(long_model: str) -> None:
    kind, text = failed(passes, long_model, "update", (0, 1), (2, 3))
    assert kind == "TrainingError"
    assert text.startswith("rank 0: actor.update of a micro-batch of ")
    assert "(2 samples, the longest " in text
    assert "0) ran out of memory: " in text
    assert "allocate memory" in text
    assert "; this process holds " in text
    assert text.endswith(
        "; lower train.micro_batch_tokens, or set train.gradient_checkpointing=true, or set "
        "model.dtype=bfloat16, or add ranks (placement.world_size)"
    )


def test_a_pass_without_gradients_names_its_own_setting(long_model: str) -> None:
    kind, text = failed(passes, long_model, "logprobs", (0, 1, 2, 3))
    assert kind == "TrainingError"
    assert text.startswith(
        "rank 0: actor.logprobs of a micro-batch of 9000 tokens (4 samples, "
    )
    assert (
        "; lower train.logprob_micro_batch_tokens, or set model.dtype=bfloat16, or" in text
    )
    assert "checkpointing" not in text


def test_a_micro_batch_of_one_sample_is_made_smaller_by_shorter_episodes(
    long_model: str,
) -> None:
    _, text = failed(passes, long_model, "logprobs", (0,), lengths=(8000,))
    assert "; lower rollout.context_tokens, or set model.dtype=bfloat16" in text


@pytest.mark.parametrize("does", [builds_an_engine, wakes_an_engine])
def test_an_engine_names_its_cache_and_settings(
    long_model: str, does: Callable[..., None]
) -> None:
    kind, text = failed(does, long_model)
    assert kind == "EngineError"
    assert text.startswith(
        "TorchEngine's KV cache of 64 rows of 8192 tokens ran out of memory: "
    )
    assert text.endswith(
        "; lower rollout.max_running, rollout.context_tokens or rollout.kv_tokens"
    )


def remedies(device: str = "cpu", **settings: Any) -> list[str]:
    """Where building a role fails."""
    spec = ActorSpec("model", make_algorithm("grpo"), **settings)
    with pytest.raises(AgentRLError) as caught, explaining_memory("it", spec, device):
        raise MemoryError("no room")
    told = with_keys(str(caught.value))
    assert told.startswith("it ran out of memory: no room; this process holds ")
    return told.rpartition("; ")[2].split(", or ")


def test_what_is_lowest_already_is_not_named() -> None:
    least = ["add ranks (placement.world_size)"]
    assert remedies() == ["set model.dtype=bfloat16", *least]
    assert remedies(dtype="bfloat16") == least
    assert remedies("cuda:0", dtype="bfloat16") == ["raise train.offload", *least]
    assert remedies("cuda:0", dtype="bfloat16", offload="all") == least
    assert remedies(dtype="bfloat16", backend="plain") == [""]
    shared = Sharding("grad_op")
    assert remedies(dtype="bfloat16", sharding=shared) == ["set train.shard=full", *least]


def test_other_errors_stay_as_they_are() -> None:
    spec = ActorSpec("model", make_algorithm("grpo"))
    with (
        pytest.raises(RuntimeError, match="shapes differ"),
        explaining_memory("it", spec, "cpu"),
    ):
        raise RuntimeError("shapes differ")
    with pytest.raises(MemoryError), explaining_memory("it", object(), "cpu"):
        raise MemoryError


@pytest.mark.gpu
def test_on_a_gpu_what_it_holds_is_told(long_model: str) -> None:
    worker = Worker("episodes")
    worker.join(DistSpec(device="cuda:0"), 1)
    worker.setup({"actor": ActorSpec(long_model, make_algorithm("grpo"), PLAIN)})
    most = torch.cuda.memory_reserved() + ROOM
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(AgentRLError) as caught:
            worker.call("actor", "update", shard((0, 1, 2, 3), weighs=True))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    text = with_keys(str(caught.value))
    assert text.startswith(
        "rank 0: actor.update of a micro-batch of 9000 tokens (4 samples, "
    )
    assert " is allocated by PyTorch" in text
    assert "or raise train.offload" in text
