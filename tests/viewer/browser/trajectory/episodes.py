"""Episodes for the trajectory page: written as text, with tokens of a small tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.store import Annotation, RunDirectory, TrajectoryWriter
from agentrl.types import (
    CallRecord,
    Message,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    Trajectory,
    Turn,
    alternatives_side,
    content_text,
)

END = "<end>"

HOSTILE = (
    "<script>window.pwned = 1</script>",
    '<img src=x onerror="window.pwned = 1">',
    "[link](javascript:window.pwned=1) [data](data:text/html,<script>window.pwned=1</script>)",
    "![remote](http://192.0.2.1/tracker.png)",
    "</div></body><svg onload=window.pwned=1>",
    "\u202eright to left\u202c zero\u200bwidth \x00nul",
    "${window.pwned = 1} {{constructor.constructor('window.pwned=1')()}}",
    r"$\href{javascript:window.pwned=1}{x}$ $\text{</math><script>window.pwned=1</script>}$",
    r"\(<img src=x onerror=window.pwned=1>\)",
    "$$\n\\begin{array}{<svg onload=window.pwned=1>} a \\\\ b \\end{array}\n$$",
    "```html\n</code><script>window.pwned = 1</script>\n```",
)
"""Words that would do something where text is taken for markup."""

HOSTILE_MARKDOWN = "\n\n".join(HOSTILE)
HOSTILE_ANSI = (
    "\x1b[31mred\x1b[0m \x1b]8;;javascript:window.pwned=1\x1b\\link\x1b]8;;\x1b\\ \x1b[2J "
    "\x1b[38;2;<script>window.pwned=1</script>m \x1b[4;\x1b[38;5;999;48;2;-1;1e9m \x1b["
)
HOSTILE_TEXT = f"{HOSTILE_MARKDOWN}\n\n{HOSTILE_ANSI}"
"""What has a terminal's colours is not taken for Markdown."""

POLLUTION = {
    "__proto__": {"polluted": True},
    "constructor": {"prototype": {"polluted": True}},
}
"""Keys that would change every object where JSON is merged carelessly."""


def make_tokenizer(text: str) -> Tokenizer:
    """A byte-level BPE of some hundred tokens, learned from ``text``."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return made


class EpisodeMaker:
    """Turns words into turns with tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.random = np.random.default_rng(7)

    def ids(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def policy(self, text: str, version: int = 3, *, apart: bool = False) -> Segment:
        """A completion with logprobs; one in fifty tokens is a surprise.

        Args:
            text: of the completion, without its end.
            version: that sampled it.
            apart: each character has tokens of its own, as no tokenizer would split it.
        """
        parts = [*text, END] if apart else [text + END]
        ids = np.concatenate([self.ids(part) for part in parts])
        logprobs = -np.abs(self.random.exponential(0.25, ids.size)).astype(np.float32)
        rare = self.random.random(ids.size) < 0.02
        logprobs[rare] -= self.random.uniform(2, 9, int(rare.sum())).astype(np.float32)
        return Segment(
            SegmentKind.POLICY, ids, logprobs, version, side=self.alternatives(ids)
        )

    def alternatives(self, ids: np.ndarray) -> Mapping[str, np.ndarray]:
        """Each token and the two of the next ids, in falling probability."""
        likely = (ids[:, None] + np.arange(3)) % self.tokenizer.get_vocab_size()
        fall = np.tile(np.array([-0.25, -2.0, -4.0], np.float32), (ids.size, 1))
        return alternatives_side(likely.astype(np.int32), fall)

    def turn(
        self,
        index: int,
        parent: int | None,
        observed: Sequence[Message],
        text: str,
        calls: Sequence[CallRecord] = (),
        agent: str = "main",
        version: int = 3,
        **fields: object,
    ) -> Turn:
        """A turn whose context is the text of its messages between template tokens."""
        context = []
        kind = SegmentKind.PROMPT if parent is None else SegmentKind.OBSERVATION
        for message in observed:
            head = self.ids(f"<|{message['role']}|>\n")
            context.append(Segment(SegmentKind.TEMPLATE, head))
            words = self.ids(content_text(message["content"]))
            if words.size:
                context.append(Segment(kind, words))
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [call.call.openai() for call in calls if call.call]
        return Turn(
            index=index,
            parent=parent,
            context=tuple(context),
            completion=(self.policy(text, version),),
            text=text,
            message=message,
            observed=tuple(observed),
            calls=tuple(calls),
            agent=agent,
            **fields,  # type: ignore[arg-type]
        )


def call(
    name: str,
    arguments: dict[str, object],
    content: str,
    error: ToolErrorKind | None = None,
    number: int = 0,
    latency_s: float = 0.2,
) -> CallRecord:
    """A call and its result."""
    given = ToolCall(f"call-{number}", name, arguments)
    result = ToolResult(given.id, name, content, error=error, latency_s=latency_s)
    return CallRecord(given, None, result)


def trajectory(
    turns: Sequence[Turn], group: int = 0, rollout: int = 0, **fields: object
) -> Trajectory:
    """An episode of the turns."""
    task = Task(f"task-{group}", tuple(turns[0].observed), 42, "sums")
    rest = {"rewards": {"correct": 1.0}, "reward": 1.0, **fields}
    return Trajectory(
        task,
        group,
        rollout,
        0,
        "train",
        tuple(turns),
        Status("terminated"),
        **rest,  # type: ignore[arg-type]
    )


def long_trajectory(maker: EpisodeMaker, tokens: int, group: int = 0) -> Trajectory:
    """Turns of about 2,000 tokens, ``tokens`` in all."""
    words = (
        "I will compute the sum of the first numbers and check the result.\n"
        "def solve(values):\n    total = 0\n    for value in values:\n"
        "        total += value * 2\n    return total\n"
        "The answer follows from the formula n * (n + 1) / 2, so it is 5050.\n"
    )
    per_text = maker.ids(words).size
    turns: list[Turn] = []
    made = 0
    while made < tokens:
        observed: list[Message] = [
            {"role": "user", "content": f"Go on with part {len(turns)}."}
        ]
        repeats = max(1, min(2000, tokens - made) // per_text)
        turn = maker.turn(
            len(turns), len(turns) - 1 if turns else None, observed, words * repeats
        )
        turns.append(turn)
        made += sum(len(segment) for segment in turn.segments)
    return trajectory(turns, group=group)


def learned(maker: EpisodeMaker, of: Trajectory, planted: int | None = None) -> Annotation:
    """What a step would have learned of a trajectory.

    Args:
        maker: its random numbers are used.
        of: the trajectory.
        planted: the sampled token that the trainer found much less likely.
    """
    segments = of.policy_segments()
    logprobs = np.concatenate(
        [segment.logprobs for segment in segments if segment.logprobs is not None]
    )
    old = logprobs + maker.random.normal(0, 0.01, logprobs.size).astype(np.float32)
    if planted is not None:
        old[planted] = logprobs[planted] - 4.0
    count = logprobs.size
    arrays = {
        "old_logprobs": np.minimum(old, 0).astype(np.float32),
        "advantages": np.full(count, 0.5, np.float32),
        "entropy": maker.random.exponential(0.5, count).astype(np.float32),
    }
    return Annotation(of.id, step=1, values={"trained_step": 1}, arrays=arrays)


def write_run(
    folder: Path,
    tokenizer: Tokenizer,
    episodes: Sequence[tuple[Trajectory, Annotation | None]],
) -> RunDirectory:
    """A sealed run of the episodes, all of step 1."""
    run = RunDirectory.create(folder, {"seed": 0, "command": ["agentrl", "train"]}, "{}\n")
    (run.models_folder / "start").mkdir(parents=True)
    tokenizer.save(str(run.models_folder / "start" / "tokenizer.json"))
    keep_tokenizer(run, "rl", run.models_folder / "start")
    with TrajectoryWriter(run) as writer:
        for episode, _ in episodes:
            writer.write(episode, 1)
        writer.seal(1)
        for _, annotation in episodes:
            if annotation is not None:
                writer.annotate(annotation)
        writer.flush()
    return run
