"""A model that sees plays in this process: tasks, environments and tools that show it pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText

from agentrl.config.load import load_config
from agentrl.run.collection import collect
from agentrl.store import RunDirectory, TrajectoryReader
from tests.engines.seen import check_logprobs
from tests.tiny_vision import picture, write_qwen_vl

CONFIG = """\
placement: {mode: inline}
model: {chat_template: chatml}
data: {train: rows.jsonl, max_prompt_tokens: 300}
env: {entry_point: "gallery.py:Gallery"}
reward: {functions: ["gallery.py:length"]}
rollout: {group_size: 2, max_turns: 3, max_turn_tokens: 12, context_tokens: 512}
"""
GALLERY = """\
from agentrl.envs import ToolEnv
from agentrl.types import Observation, StepResult

class Gallery(ToolEnv):
    shown = 0

    async def step(self, action):
        self.shown += 1
        content = [{"type": "image", "image": f"FOLDER/{self.shown}.png"}, {"type": "text", "text": "And now?"}]
        return StepResult(Observation(({"role": "user", "content": content},)))

def length(view):
    return float(len(view.final_text))
"""  # noqa: E501


def test_episodes_with_images_of_tasks_and_observations_are_played(tmp_path: Path) -> None:
    model = write_qwen_vl(tmp_path / "model", family="qwen3_vl")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "gallery.py").write_text(GALLERY.replace("FOLDER", str(tmp_path)))
    rows = []
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(picture(84, 56, seed=number))
        content = [
            {"type": "text", "text": "What?"},
            {"type": "image", "image": f"{number}.png"},
        ]
        rows.append(json.dumps({"messages": [{"role": "user", "content": content}]}))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    collected = collect(
        load_config(tmp_path / "config.yaml", [f"model.path={model}"]), tmp_path / "out"
    )
    directory = RunDirectory.open(tmp_path / "out")
    reader = TrajectoryReader(directory)
    played = [reader.get(summary.id).trajectory for summary in collected]
    assert len(played) == 8
    assert all(trajectory.status.finished for trajectory in played)
    assert max(len(trajectory.turns) for trajectory in played) == 3
    reference = AutoModelForImageTextToText.from_pretrained(
        model, dtype=torch.float32
    ).eval()
    for trajectory in played:
        images = {
            name: replace(image, data=directory.read_blob(name))
            for name, image in trajectory.images().items()
        }
        assert len(images) >= 1
        check_logprobs(trajectory, images, reference, model)
