"""Every engine of ours keeps the contract of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from agentrl.engines import EnginePlace, EngineSpec
from agentrl.engines.conformance import check_engine
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.torch import TorchEngine, TorchEngineSpec
from agentrl.engines.vllm import VLLMEngineSpec
from agentrl.weight_sync import DiskSender
from tests.engines.own_engine import OwnEngine, OwnEngineSpec
from tests.engines.sglang import conftest as sglang
from tests.engines.sglang.models import DTYPE
from tests.engines.sglang.test_sglang_images import asked
from tests.engines.test_check_engine import PLACE, TENSORS, ScriptedSpec
from tests.engines.tiny import make_model
from tests.engines.vllm import conftest as vllm
from tests.kit.waiting import until
from tests.tiny_vision import picture, write_qwen_vl

CONTEXT = 256
OWN = {"context_tokens": CONTEXT, "stop_strings": False}
"""Of servers."""


def test_a_scripted_engine() -> None:
    check_engine(ScriptedSpec(kind="Sound"), PLACE, tensors=TENSORS)
    check_engine(ScriptedSpec(kind="GivesAlternatives"), PLACE)


def held(engine: TorchEngine) -> TorchEngine:
    """Has it wait in the middle of each long request until a call comes, on any machine."""
    core, inbox, step = engine._core, engine._thread._inbox, engine._core.step
    known: set[str] = set()

    def held_step() -> None:
        step()
        long = {
            job.request.request_id
            for job in core._running.values()
            if job.request.on_tokens and job.request.sampling.max_new_tokens > 4
        }
        if long - known:
            until(lambda: not inbox.empty())
        known.update(long)

    core.step = held_step  # type: ignore[method-assign]
    return engine


class HeldTorchSpec(TorchEngineSpec):
    def build(self, place: EnginePlace, sender: Any = None) -> TorchEngine:
        return held(TorchEngine(place, self))


class HeldOwnSpec(OwnEngineSpec):
    def build(self, place: EnginePlace, sender: Any = None) -> TorchEngine:
        return held(OwnEngine(place, self))


@pytest.mark.parametrize(
    ("spec", "family", "deterministic"),
    [
        (HeldTorchSpec(), "qwen3", False),
        (HeldTorchSpec(), "qwen3", True),
        (HeldTorchSpec(), "olmo2", False),
        (HeldOwnSpec(greeting="hello"), "qwen3", False),
    ],
)
def test_torch_engine_by_its_own_decoder_and_by_transformers(
    spec: EngineSpec, family: str, deterministic: bool, tmp_path: Path
) -> None:
    model = make_model(family)
    model.module.save_pretrained(tmp_path / "model")
    place = EnginePlace(
        str(tmp_path / "model"),
        str(tmp_path / "own"),
        context_tokens=64,
        max_running=2,
        deterministic=deterministic,
    )
    tensors = [item for item in model.tensors.items() if item[0] != "lm_head.weight"]
    check_engine(spec, place, tensors=tensors)


def check_servers(spec: EngineSpec, folder: Path, own: Path, **given: Any) -> None:
    """Servers of a folder's model, which are sent its weights by a folder of their own."""
    place = EnginePlace(str(folder), str(own), context_tokens=CONTEXT, dtype=DTYPE)
    tensors = load_file(folder / "model.safetensors").items()
    check_engine(spec, place, sender=lambda: DiskSender(None), tensors=tensors, **given)


@pytest.mark.sglang
@pytest.mark.wide
def test_sglang_engine_with_a_model_that_sees(tmp_path: Path) -> None:
    folder = write_qwen_vl(tmp_path, context=CONTEXT)
    pictures = [asked(folder, f"p{seed}", "?", picture(seed=seed)) for seed in (1, 2)]
    with sglang.running_server(
        sglang.interpreter(), folder, tmp_path / "server", **OWN
    ) as url:
        spec = SGLangEngineSpec(urls=(url,))
        check_servers(spec, folder, tmp_path / "engine", pictures=pictures)


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_engine(tmp_path: Path) -> None:
    folder = sglang.make_model(tmp_path / "model", seed=3, heads=2)
    with vllm.running_server(vllm.interpreter(), folder, tmp_path / "server", **OWN) as url:
        check_servers(VLLMEngineSpec(urls=(url,)), folder, tmp_path / "engine")
