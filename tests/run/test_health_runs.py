"""Each alert has a run that fires it; a run that goes well fires none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agentrl import EpisodeView
from agentrl.metrics.monitors import MONITORS
from agentrl.store import read_jsonl
from benchmarks import noisy_engine
from tests.run import tiny_run

TASK = Path(__file__).with_name("health_task.py")

CONFIG = f"""\
placement: {{mode: inline}}
model: {{build: "{TASK}:build_model"}}
data: {{train: "{TASK}:tasks", max_prompt_tokens: 64}}
rollout: {{group_size: 8, max_turns: 1, max_turn_tokens: 32, max_response_tokens: 32, max_running: 32}}
train: {{steps: 14, batch_prompts: 4, mini_batch_prompts: 2}}
optim: {{lr: 1.0e-2}}
health: {{window: 3}}
stages:
  - name: warmup
    steps: 40
    algorithm: sft
    data: "{TASK}:demonstrations"
    train: {{batch_prompts: 16}}
    optim: {{name: muon, lr: 1.0e-2, muon_lr: 0.1}}
  - name: rl
"""  # noqa: E501

Reward = Callable[[EpisodeView], float]
EPISODES = 32
"""Of a step."""


def correct(episode: EpisodeView) -> float:
    return float(episode.turns[-1].text.strip() == episode.task.answer)


def wrong(episode: EpisodeView) -> float:
    text = episode.turns[-1].text.strip()
    return float(len(text) == 1 and text != episode.task.answer)


def long(episode: EpisodeView) -> float:
    return float(len(episode.turns[-1].text))


def few_calls(episode: EpisodeView) -> float:
    return -float(sum(len(turn.calls) for turn in episode.turns))


def equal(episode: EpisodeView) -> float:
    return 1.0


def by_turns() -> Reward:
    """Half of the episodes are right, whatever the policy does."""
    calls = itertools.count()
    return lambda episode: float(next(calls) % 2)


RUNS: Mapping[str, tuple[Reward, tuple[str, ...]]] = {
    "entropy_collapse": (
        correct,
        (
            "stages.rl.algorithm.filter_zero_variance=false",  # so that every step has an entropy
            "stages.rl.steps=30",
        ),
    ),
    "reward_stuck": (
        by_turns(),
        ("health.reward_stuck_steps=12", "stages.rl.optim.lr=1.0e-5"),
    ),
    "no_signal": (equal, ()),
    "length_explosion": (long, ()),
    "template_collapse": (wrong, ("stages.rl.algorithm.entropy_coef=0.1",)),
    "unknown_tokens": (
        equal,
        (
            f"model.build={TASK}:build_padded_model",
            "stages.warmup.steps=1",
            "stages.rl.steps=2",
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_its_kind_fires_it(name: str, tmp_path: Path) -> None:
    reward, settings = RUNS[name]
    assert name in fired(tmp_path, CONFIG, reward, *settings)


@pytest.mark.slow
def test_a_learning_rate_that_is_raised_too_far_is_told(tmp_path: Path) -> None:
    """Calm steps first, so that what follows is a jump."""
    spec = ("train.mini_batch_prompts=1", "stages.rl.steps=5")
    assert "ratio_jump" not in fired(
        tmp_path, CONFIG, by_turns(), *spec, "stages.rl.optim.lr=1.0e-5"
    )
    steep = (*spec, "stages.rl.steps=8", "stages.rl.optim.lr=1.0")
    assert "ratio_jump" in fired(tmp_path, CONFIG, by_turns(), *steep, resume=True)


@pytest.mark.slow
def test_a_policy_that_is_paid_for_few_calls_stops_to_call(tmp_path: Path) -> None:
    quick = ("run.deterministic=false", "checkpoint.every=null", "stages.rl.eval.sets={}")
    told = fired(
        tmp_path,
        tiny_run.CONFIG,
        few_calls,
        *quick,
        "stages.warmup.steps=25",
        "stages.rl.steps=12",
        "stages.rl.optim.lr=1.0e-2",
        "health.window=3",
    )
    assert "tool_collapse" in told


@pytest.mark.slow
def test_a_sampler_that_departs_from_the_policy_is_told(tmp_path: Path) -> None:
    engine = f"stages.rl.rollout.engine={noisy_engine.__file__}:NoisyEngineSpec"
    settings = ("stages.rl.optim.lr=1.0e-3", engine)
    assert not fired(tmp_path, CONFIG, correct, *settings, "stages.rl.steps=5")
    noisy = ("stages.rl.rollout.noisy.scale=1.0", "stages.rl.steps=8")
    told = fired(tmp_path, CONFIG, correct, *settings, *noisy, resume=True)
    assert "mismatch_jump" in told


@pytest.mark.slow
def test_a_run_that_goes_well_fires_none(tmp_path: Path) -> None:
    assert fired(tmp_path, CONFIG, correct, "stages.rl.optim.lr=1.0e-3") == set()


def test_every_alert_has_a_run() -> None:
    # what blocks a loop or runs on is of the episodes: tests/rollouts/test_user_code.py; what is
    # lost by age is of schedules that run ahead, and what fails of the machine:
    # tests/metrics/test_health.py
    others = {"ratio_jump", "tool_collapse", "mismatch_jump", "loop_blocked", "lost_by_age"}
    others |= {"abandoned_calls", "failed_episodes", "tool_errors"}
    assert RUNS.keys() | others == MONITORS.keys()


def fired(
    folder: Path, text: str, reward: Reward, *settings: str, resume: bool = False
) -> set[str]:
    """Names of the alerts in the log of a run that is trained to its end."""
    run_dir = tiny_run.train(folder, *settings, text=text, resume=resume, reward=reward)
    log = read_jsonl(run_dir / "logs/driver.jsonl")
    return {str(one["alert"]) for one in log if one.get("event") == "health_alert"}
