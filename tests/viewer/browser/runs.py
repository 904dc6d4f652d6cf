"""Runs to look at, written by the store as a trainer writes them; one of them is hostile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.store import Annotation, EventLog, JsonlWriter, RunDirectory, TrajectoryWriter
from agentrl.types import (
    Blob,
    CallRecord,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

STEPS = 6
GROUPS_A_STEP = 2
ROLLOUTS = 4
QUESTION = "What is 6 * 7? Use the tool, then answer."
HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    "[x](javascript:window.hacked=1) \u202eesrever\u202c \x1b[31mred\x1b[0m \u200f&lt;b&gt;"
)
HOSTILE_NAMES = ("__proto__", "constructor", "prototype", "toString", "hasOwnProperty")


def byte_tokenizer() -> Tokenizer:
    """A byte a token, and one marker."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        BPE({character: place for place, character in enumerate(alphabet)}, [])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made


class Recorder:
    """Writes a run's trajectories, annotations and metrics.

    Args:
        root: the run's folder.
        words: what stands in each name and text of it; the ordinary ones where empty.
    """

    def __init__(self, root: Path, words: str = "") -> None:
        self.words = words
        self.tokenizer = byte_tokenizer()
        self.directory = RunDirectory.create(
            root,
            {
                "seed": 3,
                "created": "2026-11-22T10:00:00Z",
                "command": ["agentrl", "train", words],
            },
            f"run: {{hostile: {json.dumps(words)}}}\n"
            f"stages:\n  - {{name: rl, train: {{steps: {STEPS}}}, algorithm: {{name: grpo}}}}\n",
        )
        (self.directory.models_folder / "start").mkdir(parents=True)
        self.tokenizer.save(str(self.directory.models_folder / "start" / "tokenizer.json"))
        keep_tokenizer(self.directory, "rl", self.directory.models_folder / "start")

    def trajectory(self, step: int, group: int, rollout: int) -> Trajectory:
        """A question, a call that fails for some, an answer that is right for some."""
        right = rollout % 2 == 0
        code = "6*7" if right else "6*8"
        answer = self.words or ("It is 42." if right else "I am not sure, it may be 48.")
        called = f"Let me compute {code}."
        call = ToolCall("c0", self.words or "python", {"code": self.words or code})
        failed = rollout == 3
        result = ToolResult(
            "c0",
            call.name,
            self.words or ("No such file" if failed else str(42 if right else 48)),
            error="exception" if failed else None,
            latency_s=0.25,
        )
        asked = {"role": "user", "content": self.words or QUESTION}
        version = step - 1
        first = Turn(
            0,
            None,
            (Segment(SegmentKind.PROMPT, self._ids(str(asked["content"]))),),
            (self._sampled(called, version),),
            called,
            {"role": "assistant", "content": called, "tool_calls": [call.openai()]},
            observed=(asked,),
            calls=(CallRecord(call, None, result),),
        )
        second = Turn(
            1,
            0,
            (Segment(SegmentKind.OBSERVATION, self._ids(result.content[:200])),),
            (self._sampled(answer, version),),
            answer,
            {"role": "assistant", "content": answer},
            observed=(result.message(),),
        )
        rewards = {"correct": float(right)} | dict.fromkeys(
            HOSTILE_NAMES if self.words else (), 0.5
        )
        return Trajectory(
            Task(self.words or f"sum-{group % 3}", (asked,), 42, self.words or "sums"),
            group,
            rollout,
            0,
            "train",
            (first, second),
            Status("terminated"),
            rewards,
            sum(rewards.values()),
        )

    def write(self, writer: TrajectoryWriter, step: int) -> None:
        """A step's trajectories, and what the step learned of them."""
        for group in range(step * GROUPS_A_STEP, (step + 1) * GROUPS_A_STEP):
            for rollout in range(ROLLOUTS):
                played = self.trajectory(step, group, rollout)
                writer.write(played, step)
                size = played.num_policy_tokens
                advantage = played.reward - 0.5 if played.reward is not None else 0.0
                arrays = {
                    "old_logprobs": np.full(size, -0.55, np.float32),
                    "advantages": np.full(size, advantage, np.float32),
                    "loss_weight": np.full(size, 1e-3, np.float32),
                    "token_loss": np.full(size, -advantage, np.float32),
                }
                writer.annotate(
                    Annotation(
                        f"{group}-{rollout}-0",
                        step=step,
                        values={"trained_step": step},
                        arrays=arrays,
                    )
                )

    def metrics(self, step: int) -> None:
        """A step's row of metrics."""
        lines = JsonlWriter(self.directory.metrics_path)
        lines.append(
            {
                "step": step,
                "stage": self.words or "rl",
                "time": 1_795_000_000.0 + 60 * step,
                "reward/mean": 0.3 + step / 20,
                "accuracy/mean": step / STEPS,
                "policy/entropy": 1.0 / (step + 1),
                "policy/loss": 0.01 * step,
                "turns/mean": 2.0,
                "mismatch/logp_abs/max": 0.05 + 0.4 * (step == 3),
                "mismatch/logp_abs/mean": 0.05,
                **{name: 1.0 for name in (*HOSTILE_NAMES, HOSTILE) if self.words},
            }
        )
        lines.close()

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _sampled(self, text: str, version: int) -> Segment:
        ids = self._ids(text[:2000] + "<end>")
        return Segment(
            SegmentKind.POLICY, ids, np.full(ids.size, -0.5, np.float32), version
        )


def record(root: Path, words: str = "", steps: int = STEPS) -> Recorder:
    """A run of some steps, sealed as they end, with an alert."""
    recorder = Recorder(root, words)
    with TrajectoryWriter(recorder.directory) as writer:
        for step in range(1, steps + 1):
            recorder.write(writer, step)
            writer.seal(step)
            recorder.metrics(step)
    events = EventLog(recorder.directory)
    events.log(
        "gradient", words or "gradient norm 14.2", boundary="train", level="warning", step=2
    )
    events.close()
    return recorder


def record_two_stages(root: Path, lr: float, seed: int) -> RunDirectory:
    """Metrics alone: a warm-up of 60 steps with rewards near 1, then 50 steps of ``rl`` whose
    reward is the step times ``lr``, with two held-out sets: one evaluated before and after, one
    before alone.
    """
    stages = [{"name": "warmup"}, {"name": "rl", "optim": {"lr": lr}}]
    config = {"run": {"seed": seed}, "stages": stages}
    directory = RunDirectory.create(root, {"seed": seed}, json.dumps(config))
    lines = JsonlWriter(directory.metrics_path)
    for step in range(1, 61):
        lines.append(
            {"step": step, "stage": "warmup", "time": 100.0 + step, "reward/mean": 0.9}
        )
    for name in ("code", "search"):
        lines.append({"step": 0, "stage": "rl", "time": 200.0, f"eval/{name}/greedy": 0.25})
    for step in range(1, 51):
        row = {"step": step, "stage": "rl", "time": 200.0 + step, "reward/mean": step * lr}
        lines.append(row | ({"eval/code/greedy": 0.75} if step == 50 else {}))
    lines.close()
    return directory


def record_long(root: Path, turns: int) -> None:
    """One trajectory, ``0-3-0``, of many short turns; each third calls a tool, which fails, and
    leaves a file.
    """
    recorder = Recorder(root)
    first, second = (played := recorder.trajectory(1, 0, 3)).turns
    made = [replace(first, started_at=1.0)]
    for index in range(1, turns):
        said = f"answer {index}" + "." * (index % 40)
        made.append(
            replace(
                second,
                index=index,
                parent=index - 1,
                completion=(recorder._sampled(said[:6], 0),),
                text=said,
                message={"role": "assistant", "content": said},
                calls=first.calls if index % 3 == 0 else (),
                files={f"out/{index}.txt": Blob.of(b"x")} if index % 3 == 0 else {},
                started_at=1.0 + index,
                timings={"generate_s": 0.5, "step_s": 0.25},
            )
        )
    with TrajectoryWriter(recorder.directory) as writer:
        writer.write(replace(played, turns=tuple(made)), 1)
        writer.seal(1)
    recorder.metrics(1)
