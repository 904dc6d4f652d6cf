"""A model that sees is trained by a whole run: its images are blobs before a rank reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from agentrl.render import Pixels, prepare_pixels
from agentrl.store import RunDirectory
from agentrl.training.vision import pixel_store
from agentrl.types import Image
from tests.run.tiny_run import metrics, train
from tests.tiny_vision import picture, write_qwen_vl

CONFIG = """\
placement: {{mode: inline}}
model: {{path: "{model}", chat_template: chatml}}
data: {{train: "{data}", max_prompt_tokens: 64, shuffle: false}}
algorithm: sft
train: {{steps: 3, batch_prompts: 2, vision: {vision}}}
optim: {{lr: 1.0e-3}}
rollout: {{max_response_tokens: 64}}
"""

PLAYED = """\
placement: {{mode: inline}}
model: {{path: "{model}", chat_template: chatml}}
data: {{train: "{data}", max_prompt_tokens: 64}}
reward: {{functions: ["reward.py:varied"]}}
rollout: {{engine: torch, group_size: 4, max_turn_tokens: 16, context_tokens: 128}}
train: {{steps: 3, batch_prompts: 2, backend: {backend}, vision: trained}}
"""
REWARD = """\
def varied(episode):
    return float(sum(map(ord, episode.turns[-1].text)) % 7)
"""

PICTURES = [picture(84, 56, seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("vl"), family="qwen3_vl")


def write_rows(folder: Path) -> Path:
    """Conversations about pictures, the last about none."""
    rows = []
    for number, data in enumerate(PICTURES):
        (folder / f"{number}.png").write_bytes(data)
        asked = {"role": "user", "content": "<image> What is it?"}
        said = {"role": "assistant", "content": f"It is {number}."}
        rows.append({"messages": [asked, said], "images": [f"{number}.png"]})
    rows.append({"messages": [{"role": "user", "content": "Well?"}, said]})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("vision", ["frozen", "trained"])
def test_pictures_are_imitated(vision: str, model: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path)
    run = train(tmp_path, text=CONFIG.format(model=model, data=data, vision=vision))
    assert [row["step"] for row in metrics(run)] == [1, 2, 3]
    names = {Image.read(one).sha256 for one in PICTURES}
    directory = RunDirectory.open(run)
    assert {path.name for path in directory.blobs_folder.iterdir()} >= names
    # six rows were trained, of which the first three pictures twice
    assert {path.stem for path in directory.pixels_folder.rglob("*.npz")} == names
    started = load_file(model / "model.safetensors")
    (trained,) = directory.models_folder.rglob("model.safetensors")
    ended = load_file(trained)
    assert started.keys() == ended.keys()
    moved = {name for name, one in ended.items() if not one.equal(started[name])}
    assert {name for name in moved if "visual." in name} == (
        {name for name in ended if "visual." in name} if vision == "trained" else set()
    )
    assert any("language_model." in name for name in moved)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["plain", "fsdp2"])
def test_pictures_that_were_played_are_trained_and_replayed(
    backend: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []

    def counted(processor: Any, image: Image) -> Pixels:
        prepared.append(image.sha256)
        return prepare_pixels(processor, image)

    monkeypatch.setattr(pixel_store, "prepare_pixels", counted)
    rows = [json.loads(line) for line in write_rows(tmp_path).read_text().splitlines()]
    data = tmp_path / "tasks.jsonl"
    asked = [
        {"prompt": row["messages"][:1], "images": row["images"], "id": str(number)}
        for number, row in enumerate(rows[:3])
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in asked))
    (tmp_path / "reward.py").write_text(REWARD)
    text = PLAYED.format(model=model, data=data, backend=backend)
    run = train(tmp_path, text=text)
    names = {Image.read(one).sha256 for one in PICTURES}
    # three steps of two of three pictures, four rollouts each
    assert sorted(prepared) == sorted(names)
    replayed = train(tmp_path, f"run.replay={run}", text=text, name="replayed")
    for folder in (run, replayed):
        directory = RunDirectory(folder)
        assert {path.stem for path in directory.pixels_folder.rglob("*.npz")} == names
        assert {path.name for path in directory.blobs_folder.iterdir()} >= names
    own, same = (
        [row["optim/grad_norm"] for row in metrics(one)] for one in (run, replayed)
    )
    assert own == same
    assert min(own) > 0
    # the tower moves, and the engine sees by what was published
    for row in metrics(run):
        assert row["mismatch/logp_abs/max"] < 1e-4
