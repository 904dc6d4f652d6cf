"""A model that sees, on a real server: its ids, its logprobs with images, and token consistency."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.cli.main import run
from agentrl.config.load import load_config
from agentrl.engines import EnginePlace
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.envs import EnvSpec, Rubric, ToolEnv
from agentrl.errors import EngineError
from agentrl.render import RendererSpec
from agentrl.rollouts import (
    EpisodeContext,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    run_episode,
)
from agentrl.rollouts.token_consistency import assert_token_consistency
from agentrl.run.collection import collect
from agentrl.store import RunDirectory
from agentrl.tools import parser_for
from agentrl.types import (
    GenerateRequest,
    Image,
    Task,
)
from tests.engines.seen import asked, assert_own_logprobs, check_logprobs
from tests.engines.sglang.models import logprobs, made
from tests.rollouts.bytewise import Built, length_reward
from tests.tiny_vision import picture, write_qwen_vl

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

CONTEXT = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("qwen-vl"), context=CONTEXT)


@pytest.fixture(scope="module")
def engine(
    python: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SGLangEngine]:
    """One server of its own, since it has another model than the others."""
    logs = tmp_path_factory.mktemp("server")
    place = EnginePlace(str(folder), str(logs), context_tokens=CONTEXT, kv_tokens=8192)
    engine = SGLangEngine(place, SGLangEngineSpec(python=python, call_timeout_s=300))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """The same model in transformers, and its image processor."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32
    ).eval()


async def test_logprobs_are_the_models_own(
    engine: SGLangEngine, reference: Any, folder: Path
) -> None:
    requests = [
        asked(folder, "one", "What is ", picture(84, 56), "?"),
        asked(
            folder,
            "two",
            picture(84, 56, seed=1),
            "and",
            picture(60, 130, seed=2, form="JPEG"),
        ),
        asked(folder, "none", "No image at all."),
    ]
    answers = await asyncio.gather(*(engine.generate(request) for request in requests))
    for request, answer in zip(requests, answers, strict=True):
        assert_token_consistency(request, answer, engine.info().vocab_size)
        assert_own_logprobs(reference, folder, request, made(answer), logprobs(answer))


async def test_the_ids_around_an_image_are_not_encoded_anew(
    engine: SGLangEngine, reference: Any, folder: Path
) -> None:
    first = asked(folder, "whole", "aaaa bbbb", picture(84, 56))
    tokenizer = RendererSpec(str(folder), chat_template="chatml").build()
    # one token a character, which no tokenizer would make of this text
    letters = np.concatenate(
        [tokenizer.tokenize(c) for c in "the user of the assistant"]
    ).astype(np.int32)
    assert letters.size > tokenizer.tokenize("the user of the assistant").size
    request = GenerateRequest(
        "split",
        "split",
        np.concatenate([first.token_ids, letters]),
        first.sampling,
        seed=0,
        media=first.media,
        images=first.images,
    )
    answer = await engine.generate(request)
    assert_token_consistency(request, answer, engine.info().vocab_size)
    assert_own_logprobs(reference, folder, request, made(answer), logprobs(answer))


async def test_another_image_gives_another_distribution(
    engine: SGLangEngine, folder: Path
) -> None:
    answers = [
        await engine.generate(
            asked(folder, f"seed{seed}", "?", picture(84, 56, seed=seed), temperature=0.0)
        )
        for seed in (1, 2)
    ]
    assert logprobs(answers[0])[0] != logprobs(answers[1])[0]


async def test_an_episode_with_images_from_the_task_and_from_a_tool(
    engine: SGLangEngine, reference: Any, folder: Path
) -> None:
    renderer = RendererSpec(str(folder), chat_template="chatml").build()
    spec = RolloutSpec(
        env=EnvSpec(Gallery),
        renderer=Built(renderer),
        parser="hermes",
        rubric=Built(Rubric([length_reward])),
        episode=EpisodeSettings(
            max_turns=3,
            max_turn_tokens=12,
            max_response_tokens=600,
            context_tokens=CONTEXT,
            episode_timeout_s=300.0,
            turn_timeout_s=300.0,
        ),
        max_prompt_tokens=400,
        root_seed=0,
    )
    parts = EpisodeContext(
        spec, engine, renderer, parser_for(renderer, "hermes"), spec.rubric.build()
    )
    content = [
        {"type": "text", "text": "Look"},
        {"type": "image", "image": picture(84, 56)},
    ]
    task = Task("t", ({"role": "user", "content": content},))
    # a random policy may end an episode early: one in thirteen did
    played = [await run_episode(parts, task, EpisodeKey(group, 0)) for group in range(4)]
    assert all(trajectory.status.finished for trajectory in played)
    assert max(len(trajectory.turns) for trajectory in played) == 3
    for trajectory in played:
        check_logprobs(trajectory, trajectory.images(), reference, folder)


class Gallery(ToolEnv):
    """Shows another picture after each turn."""

    async def step(self, action: Any) -> Any:
        from agentrl.types import Observation, StepResult

        self._shown = getattr(self, "_shown", 0) + 1
        content = [
            {"type": "image", "image": picture(56, 56, seed=self._shown)},
            {"type": "text", "text": "And now?"},
        ]
        return StepResult(Observation(({"role": "user", "content": content},)))


async def test_images_that_are_missing_are_refused(
    engine: SGLangEngine, folder: Path
) -> None:
    request = asked(folder, "lost", "?", picture())
    torn = GenerateRequest(
        "torn", "torn", request.token_ids, request.sampling, seed=0, media=request.media
    )
    with pytest.raises(
        EngineError, match="images must be those of media, one each, got 0 for 1"
    ):
        await engine.generate(torn)


CONFIG = """\
placement: {mode: inline}
model: {chat_template: chatml}
data: {train: rows.jsonl, max_prompt_tokens: 300}
env: {tools: ["shown.py:zoom"], describe_tools_in_prompt: false}
reward: {functions: ["shown.py:length"]}
rollout:
  engine: sglang
  group_size: 2
  max_turn_tokens: 12
  max_response_tokens: 200
  context_tokens: 800
  turn_timeout_s: 300
"""
SHOWN = """\
from agentrl.tools import ToolOutput, tool

@tool
def zoom() -> ToolOutput:
    \"\"\"Zooms.\"\"\"
    return ToolOutput("zoomed", images=["0.png"])

def length(view):
    return float(len(view.final_text))
"""


def test_a_data_set_with_images_is_collected_and_shown(
    python: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "shown.py").write_text(SHOWN)
    rows = []
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(picture(84, 56, seed=number))
        content = [
            {"type": "text", "text": "What?"},
            {"type": "image", "image": f"{number}.png"},
        ]
        rows.append(json.dumps({"messages": [{"role": "user", "content": content}]}))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    own = [f"model.path={folder}", f"rollout.sglang.python={python}"]
    collected = collect(load_config(tmp_path / "config.yaml", own), tmp_path / "out")
    assert len(collected) == 4
    # by chance
    assert {summary.status for summary in collected} <= {"truncated", "terminated"}
    images = [Image.read(picture(84, 56, seed=number)) for number in range(2)]
    directory = RunDirectory.open(tmp_path / "out")
    assert list(directory.engine_folder.rglob("server-0.log"))
    assert {path.name for path in directory.blobs_folder.iterdir()} == {
        *(image.sha256 for image in images),
        *(
            blob
            for files in directory.read_record()["tokenizers"].values()
            for blob in files.values()
        ),
    }
    assert run(["show", str(tmp_path / "out"), "1-0-0"]) == 0
    assert f"[{images[1]}, 6 tokens]" in capsys.readouterr().out
