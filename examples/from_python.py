"""From Python: trains with a live tool and a live reward in place of those in the file."""

from __future__ import annotations

import sys
from pathlib import Path

from agentrl import EpisodeView, Task, Trainer, load_config
from agentrl.tools import PythonTool

CONFIG = Path(__file__).parent / "code" / "config.yaml"


def close(episode: EpisodeView) -> float:
    """Half a point for the right number of digits, the whole for the right number."""
    text, answer = episode.final_text.strip(), str(episode.task.answer)
    return 1.0 if text == answer else 0.5 * (len(text) == len(answer))


def main(overrides: list[str]) -> None:
    config = load_config(CONFIG, overrides)
    with Trainer(config, tools=[PythonTool()], reward=close) as trainer:
        print(trainer.train().eval)
        task = Task("mine", ({"role": "user", "content": "12 times 34?"},), answer="408")
        for trajectory in trainer.rollout([task]):
            print(trajectory.turns[-1].text, trajectory.reward)


if __name__ == "__main__":
    main(sys.argv[1:])
