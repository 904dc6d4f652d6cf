"""A real server of two tensor-parallel ranks: weights reach both of them, in each of four ways."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentrl.engines.servers.client import NamedTensors, NewVersion
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.sglang import SGLangEngine
from agentrl.engines.tensor_parallel import tensor_parallel_shards
from agentrl.engines.weights import tensor_shapes
from agentrl.store import read_jsonl
from agentrl.weight_sync import (
    BroadcastSender,
    DiskSender,
    HttpSender,
    SharedMemorySender,
    batches,
)
from tests.engines.sglang.conftest import running_server
from tests.engines.sglang.models import (
    HuggingFace,
    logprobs,
    made,
    publish,
    request,
    versions,
)
from tests.engines.sglang.runs import assert_each_was_trained_once, train
from tests.run.tiny_run import metrics

pytestmark = [pytest.mark.sglang, pytest.mark.wide("servers of two ranks")]

PROMPT = [5, 17, 200, 33, 8]


@pytest.fixture(scope="module")
def split_server(
    python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with running_server(
        python, model, tmp_path_factory.mktemp("split-server"), tp_size=2
    ) as url:
        yield url


@pytest.mark.parametrize(
    ("sender", "batch_bytes"),
    [
        (SharedMemorySender, batches.BATCH_BYTES),
        (SharedMemorySender, 20_000),
        (DiskSender, batches.BATCH_BYTES),
        (HttpSender, batches.BATCH_BYTES),
        (BroadcastSender, batches.BATCH_BYTES),
    ],
)
async def test_both_ranks_hold_what_was_sent(
    build: Callable[..., SGLangEngine],
    split_server: str,
    reference: HuggingFace,
    sender: type,
    batch_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", batch_bytes)
    engine = build(split_server, sender=sender)
    for version in (1, 2):
        reference.scale(1.03)
        # compares each rank's digests
        await asyncio.to_thread(publish, engine, reference, version)
        answer = await engine.generate(request(f"v{version}", PROMPT))
        assert versions(answer) == [version]
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=1e-4
        )


def test_through_shared_memory_each_rank_is_sent_its_own_part_alone(
    build: Callable[..., SGLangEngine],
    split_server: str,
    reference: HuggingFace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Sequence[NamedTensors]] = []
    real = SharedMemorySender.send

    def send(
        sender: SharedMemorySender,
        update: ServerUpdate,
        by_rank: Sequence[NamedTensors],
        new: NewVersion | None,
    ) -> None:
        sent.append(by_rank)
        real(sender, update, by_rank, new)

    monkeypatch.setattr(SharedMemorySender, "send", send)
    publish(build(split_server, sender=SharedMemorySender), reference, 1)
    [by_rank] = sent
    shapes = [{name: tuple(tensor.shape) for name, tensor in own} for own in by_rank]
    layer = "model.layers.0"
    for own in shapes:
        assert own[f"{layer}.self_attn.qkv_proj.weight"] == (32 + 16 + 16, 64)
        assert own[f"{layer}.mlp.gate_up_proj.weight"] == (64 + 64, 64)
        assert own[f"{layer}.mlp.down_proj.weight"] == (64, 64)
        assert own["model.embed_tokens.weight"] == (320 // 2, 64)
        assert own["model.norm.weight"] == (64,)


def test_two_ranks_have_one_server_together_and_each_writes_its_part(
    tmp_path: Path, model: Path, python: str
) -> None:
    both = ("placement.mode=ray", "placement.world_size=2", "rollout.sglang.tp_size=2")
    run_dir = train(
        tmp_path, model, *both, f"rollout.sglang.python={python}", "train.steps=2"
    )
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert len(list(run_dir.glob("engine/*/*/server-*.log"))) == 1
    own = tensor_parallel_shards(tensor_shapes(model), 2, kv_heads=2)
    numbers = sum(math.prod(tensor.shape) for rank in own for tensor in rank)
    told = [row for path in (run_dir / "logs").glob("*.jsonl") for row in read_jsonl(path)]
    sent = [row["bytes"] for row in told if row.get("event") == "weights_published"]
    assert sent == [4 * numbers] * len(sent)
    assert len(sent) >= 2
    assert_each_was_trained_once(run_dir)
