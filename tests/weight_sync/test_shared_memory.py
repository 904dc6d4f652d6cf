"""Servers of this machine read weights where they were put, each tensor-parallel rank its own part
alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.engines import EnginePlace, SharedGpus, Transport
from agentrl.errors import MachineError
from agentrl.weight_sync import SharedMemorySender, batches, make_sender
from agentrl.weight_sync.shared_memory import pickled
from tests.engines.servers.broken_server import says
from tests.engines.servers.test_server_events import CONFIG, DONE, Build, build
from tests.kit.waiting import until_async

__all__ = ["build"]

LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (65, 4),
    f"{LAYER}.input_layernorm.weight": (4,),
    f"{LAYER}.mlp.down_proj.weight": (4, 64),
    f"{LAYER}.mlp.gate_proj.weight": (64, 4),
    f"{LAYER}.mlp.up_proj.weight": (64, 4),
    f"{LAYER}.self_attn.k_proj.bias": (4,),
    f"{LAYER}.self_attn.k_proj.weight": (4, 4),
    f"{LAYER}.self_attn.o_proj.weight": (4, 8),
    f"{LAYER}.self_attn.q_proj.bias": (8,),
    f"{LAYER}.self_attn.q_proj.weight": (8, 4),
    f"{LAYER}.self_attn.v_proj.bias": (4,),
    f"{LAYER}.self_attn.v_proj.weight": (4, 4),
    "model.norm.weight": (4,),
}


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.fixture
def place(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> EnginePlace:
    (tmp_path / "model").mkdir()
    own = {"model_type": "qwen2", "intermediate_size": 64, "num_key_value_heads": 2}
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG | own))
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    return EnginePlace(
        str(tmp_path / "model"), str(tmp_path / "servers"), context_tokens=64
    )


class Reader:
    """The routes of an SGLang 0.5.23 of so many ranks, which reads what it is sent."""

    def __init__(self, ranks: int) -> None:
        info = {"version": "0.5.23", "dtype": "float32", "device": "cpu", "tp_size": ranks}
        self.held: list[dict[str, torch.Tensor]] = [{} for _ in range(ranks)]
        self.forms: set[str | None] = set()
        self.labels: list[str | None] = []
        self.routes: dict[str, Any] = {
            "server_info": says(json.dumps(info).encode()),
            "begin_weight_update": DONE,
            "end_weight_update": DONE,
            "update_weights_from_tensor": self._read,
        }

    def tensors(self, told: bytes) -> list[tuple[str, torch.Tensor]]:
        """What a rank unpickles."""
        found: list[tuple[str, torch.Tensor]] = pickle.loads(told)
        return found

    def _read(self, handler: Any) -> None:
        body = json.loads(handler.body)
        for held, text in zip(self.held, body["serialized_named_tensors"], strict=True):
            for name, tensor in self.tensors(base64.b64decode(text)):
                held[name] = tensor.clone()
        self.forms.add(body["load_format"])
        self.labels.append(body.get("weight_version"))
        DONE(handler)


def publish(
    engine: Any, version: int, tensors: dict[str, torch.Tensor], names: Any
) -> None:
    engine.pause("retract")
    session = engine.begin_update(version)
    for name in names:
        session.put(name, tensors[name])
    session.commit()
    engine.resume()


@pytest.mark.wide
@pytest.mark.parametrize("batch_bytes", [batches.BATCH_BYTES, 2048, 64])
@pytest.mark.parametrize("order", [1, -1])
def test_each_rank_holds_its_part_under_the_servers_names(
    build: Build,
    tensors: dict[str, torch.Tensor],
    batch_bytes: int,
    order: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_one = batch_bytes == batches.BATCH_BYTES
    monkeypatch.setattr(batches, "BATCH_BYTES", batch_bytes)
    server = Reader(2)
    engine, _ = build(sender=SharedMemorySender, **server.routes)
    for version in (1, 2):
        tensors = {name: tensor + 1 for name, tensor in tensors.items()}
        publish(engine, version, tensors, list(tensors)[::order])
        assert server.forms == {"direct"}
        # the last call alone gives the weights their name
        assert server.labels.pop() == engine.state.labels.label(version)
        assert bool(server.labels) != in_one
        assert not any(server.labels)
        server.labels.clear()
        whole = {name.removeprefix(f"{LAYER}."): own for name, own in tensors.items()}
        padded = torch.cat([whole["model.embed_tokens.weight"], torch.zeros(63, 4)])
        for rank, held in enumerate(server.held):
            wanted = {
                "model.embed_tokens.weight": padded.chunk(2)[rank],
                "model.norm.weight": whole["model.norm.weight"],
                "input_layernorm.weight": whole["input_layernorm.weight"],
                "self_attn.o_proj.weight": whole["self_attn.o_proj.weight"].chunk(2, 1)[
                    rank
                ],
                "mlp.down_proj.weight": whole["mlp.down_proj.weight"].chunk(2, 1)[rank],
                **{
                    f"{fused}.{kind}": torch.cat(
                        [whole[f"{part}_proj.{kind}"].chunk(2)[rank] for part in parts]
                    )
                    for fused, parts, kind in (
                        (
                            "self_attn.qkv_proj",
                            [f"self_attn.{one}" for one in "qkv"],
                            "weight",
                        ),
                        (
                            "self_attn.qkv_proj",
                            [f"self_attn.{one}" for one in "qkv"],
                            "bias",
                        ),
                        ("mlp.gate_up_proj", ["mlp.gate", "mlp.up"], "weight"),
                    )
                },
            }
            found = {name.removeprefix(f"{LAYER}."): own for name, own in held.items()}
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name], own) for name, own in wanted.items())
            held.clear()


def test_a_server_of_one_rank_gets_whole_tensors(
    build: Build, tensors: dict[str, torch.Tensor]
) -> None:
    server = Reader(1)
    engine, _ = build(sender=SharedMemorySender, **server.routes)
    publish(engine, 1, tensors, tensors)
    assert server.forms == {None}
    [held] = server.held
    assert held.keys() == tensors.keys()
    assert all(torch.equal(held[name], own) for name, own in tensors.items())


def test_too_little_shared_memory_is_named_before_a_server_hears_of_the_update(
    build: Build, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Reader(1)
    engine, _ = build(sender=SharedMemorySender, **server.routes)
    engine.pause("retract")
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=64))
        with pytest.raises(
            MachineError, match=r"/dev/shm has 0 MiB free.*set weight_sync=http"
        ):
            engine.begin_update(1)
    assert engine.health().state == "paused"
    publish(engine, 1, tensors, tensors)
    assert server.labels


def test_a_tensor_that_has_not_changed_is_sent_with_what_lies_beside_it_alone(
    build: Build, tensors: dict[str, torch.Tensor]
) -> None:
    server = Reader(2)
    engine, _ = build(sender=SharedMemorySender, **server.routes)
    publish(engine, 1, tensors, tensors)
    assert len(server.held[0]) == 8
    for changed, sent in {
        "self_attn.q_proj.weight": {f"{LAYER}.self_attn.qkv_proj.weight"},
        "self_attn.o_proj.weight": {f"{LAYER}.self_attn.o_proj.weight"},
        "": set(),
    }.items():
        for held in server.held:
            held.clear()
        version = engine.info().policy_version + 1
        tensors = {
            name: own + 1 if name == f"{LAYER}.{changed}" else own
            for name, own in tensors.items()
        }
        publish(engine, version, tensors, tensors)
        assert [set(held) for held in server.held] == [sent, sent]
        assert server.labels[-1] == engine.state.labels.label(version)


def test_released_weights_are_sent_whole(
    build: Build, tensors: dict[str, torch.Tensor]
) -> None:
    server = Reader(1)
    memory = {"release_memory_occupation": DONE, "resume_memory_occupation": DONE}
    engine, _ = build(sender=SharedMemorySender, **server.routes, **memory)
    publish(engine, 1, tensors, tensors)
    engine.pause("retract")
    engine.sleep(["weights"])
    engine.wake(["weights"])
    server.held[0].clear()
    publish(engine, 2, tensors, tensors)
    assert server.held[0].keys() == tensors.keys()


async def test_a_server_that_returns_is_sent_all_weights(
    build: Build, tensors: dict[str, torch.Tensor]
) -> None:
    server, other, sick = Reader(1), Reader(1), []
    health = {"health": lambda handler: says(b"{}", 500 if sick else 200)(handler)}
    engine, _ = build(other.routes | health, sender=SharedMemorySender, **server.routes)
    await asyncio.to_thread(publish, engine, 1, tensors, tensors)
    sick.append(True)
    await until_async(lambda: engine.pool.servers[1].state == "lost")
    sick.clear()
    other.held[0].clear()
    await asyncio.to_thread(publish, engine, 2, tensors, tensors)
    assert other.held[0].keys() == tensors.keys()


def placed(
    tensors: dict[str, torch.Tensor], memory: torch.Tensor
) -> list[tuple[str, torch.Tensor]]:
    """Tensors in this memory, with a gap between them."""
    found, start = [], 64
    for name, tensor in tensors.items():
        own = memory[start:][: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found.append((name, own.copy_(tensor)))
        start += 256
    return found


def small(dtype: str) -> dict[str, torch.Tensor]:
    shapes = {"a.weight": (3, 5), "b.bias": (7,), "c": (2, 2, 2)}
    return {
        name: torch.randn(shape).to(getattr(torch, dtype)) for name, shape in shapes.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pickled_tensors_lie_in_the_memory_and_may_be_read_by_each_once(dtype: str) -> None:
    tensors = small(dtype)
    memory = SharedMemorySender().memory(1024)
    for _ in range(2):
        told = pickled(placed(tensors, memory), 2)
        assert len(told) < 1024
        for _ in range(2):
            found = dict(pickle.loads(told))
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
            memory[64:68] = 0
            assert not found["a.weight"].flatten()[0]
            placed(tensors, memory)


@pytest.mark.parametrize("ranks", [(), (0, 1)])
def test_memory_lies_on_the_gpus_that_a_server_has_in_turn_with_ranks(
    ranks: tuple[int, ...],
) -> None:
    host = EpisodeHost()
    for shared, device in ((None, "cpu"), (SharedGpus(("0",)), "cuda")):
        host.shared = shared
        sender = make_sender(Transport("shared_memory"), ranks=ranks, device=host.device)
        assert isinstance(sender, SharedMemorySender)
        assert sender.device.type == device


RANK = """
import pickle, sys, torch
from torch.multiprocessing import reductions

made = reductions.rebuild_cuda_tensor

def by_uuid(*given):
    found = [
        index
        for index in range(torch.cuda.device_count())
        if str(torch.cuda.get_device_properties(index).uuid) == given[6]
    ]
    return made(*given[:6], *found, *given[7:])

reductions.rebuild_cuda_tensor = by_uuid
while size := int.from_bytes(sys.stdin.buffer.read(8), "little"):
    tensors = pickle.loads(sys.stdin.buffer.read(size))
    torch.save([(name, tensor.cpu(), str(tensor.device)) for name, tensor in tensors], sys.argv[1])
    del tensors
    print("read", flush=True)
"""
"""Reads as SGLang's ranks do, in a process of its own: none opens its own memory by CUDA IPC."""


class RankApart(Reader):
    """A server of one rank, which unpickles in another process."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        super().__init__(1)
        self.devices: set[str] = set()
        self._process = process
        self._path = path

    def tensors(self, told: bytes) -> list[tuple[str, torch.Tensor]]:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(len(told).to_bytes(8, "little") + told)
        asked.flush()
        assert answers.readline() == b"read\n"
        found = torch.load(self._path)
        self.devices |= {device for _, _, device in found}
        return [(name, tensor) for name, tensor, _ in found]


@pytest.mark.gpu
def test_weights_on_a_gpu_are_read_where_they_lie(
    build: Build,
    tensors: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 2048)
    path = tmp_path / "read.pt"
    words = [sys.executable, "-c", RANK, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = RankApart(process, path)
        sender = SharedMemorySender(device="cuda")
        engine, _ = build(sender=lambda: sender, **server.routes)
        for version in (1, 2):
            tensors = {name: own + 1 for name, own in tensors.items()}
            publish(
                engine,
                version,
                {name: own.cuda() for name, own in tensors.items()},
                tensors,
            )
            assert server.devices == {"cuda:0"}
            assert all(
                torch.equal(server.held[0][name], own) for name, own in tensors.items()
            )
            # What an update took is given back.
            assert not sender.memory(0).numel()
        assert process.stdin is not None
        process.stdin.write(bytes(8))
        process.stdin.close()
