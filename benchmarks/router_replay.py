"""Router replay: what it is worth where engine and trainer of a mixture round otherwise
(``python -m benchmarks.router_replay``).

A tiny Qwen3-MoE samples in bfloat16, and is trained in float32. First the logprobs of both are
compared once (``--only mismatch``). Then the code example is learned by such a model with
``train.router_replay`` off and on, from one warm-up a seed (``--only learning``).

What replay is worth depends on how large a model's weights are: where they are small, experts do
little, and most of the difference is the rounding of all else. A router of width d sees hidden
states whose root mean square is 1, so its logits' standard deviation is ``initializer_range`` · √d.
Of Qwen3-30B-A3B's config.json it is .02 · √2048 = .91. The comparison is held to a half in a model
of that spread, and reported for others; a model after its warm-up is seen in the learning part,
where little is left to replay. Fewer than a thousand tokens are too few: a tenth of them change
experts, and the ratio is theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from agentrl.algorithms import make_algorithm
from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from agentrl.rollouts import make_batch
from agentrl.training import Actor, ActorSpec, DistSpec, Layout, join, leave, shards
from agentrl.training.data.partition import partition
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import (
    Batch,
    GenerateRequest,
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    load_object,
    share_experts,
)
from benchmarks.figures import Figures, add_arguments, measure_parts
from benchmarks.learning import CODE_ALONE, EXAMPLES, SEEDS, Run, summary_of, train
from benchmarks.trainer.exactness_rank import experts_differ

CODE = EXAMPLES / "code"
VARIANTS = ("off", "rollout")
WIDTH = 128
SPREAD = 0.02 * (2048 / WIDTH) ** 0.5
"""``initializer_range`` at this width with which router logits are as far apart as
Qwen3-30B-A3B's."""
MODELS: Mapping[str, Mapping[str, Any]] = {
    "router logits as Qwen3-30B-A3B's": {"init": SPREAD},
    "the same, 8 of 64 experts": {"init": SPREAD, "experts": 64, "top_k": 8},
    "initializer_range .05, as tiny models begin": {},
    "initializer_range .02 at this width": {"init": 0.02},
}
HELD = "router logits as Qwen3-30B-A3B's"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, run what is not there yet, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, benchmark="router_replay")
    parser.add_argument(
        "--runs",
        type=Path,
        help="folder of the run directories; finished ones are not run again",
    )
    parser.add_argument("--only", nargs="*", choices=tuple(PARTS))
    parser.add_argument("--set", nargs="*", default=[], help="further settings of each run")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    arguments = parser.parse_args(argv)
    return measure_parts(PARTS, arguments, seeds=dict.fromkeys(PARTS, arguments.seeds))


def build_model(folder: str, seed: int = 0, **own: Any) -> None:
    """``model.build``: the code example's model with sixteen experts in the place of each MLP, of
    which a token goes through four; or with other sizes."""
    demonstrations = load_object("warmup.py:demonstrations", CODE)(seed)
    sizes: dict[str, Any] = {"vocab_size": 480, "hidden": WIDTH, "experts": 16, "top_k": 4}
    build_tiny_model(folder, demonstrations, seed=seed, **sizes | own)


@dataclass(frozen=True)
class Comparison:
    """The trainer beside the sampler, on sampled tokens.

    Args:
        logp_abs: mean difference of their logprobs, nats.
        differ: share of the tokens before them that went through other experts.
    """

    logp_abs: float
    differ: float


def compared(
    folder: Path, *, samples: int = 32, prompt_tokens: int = 20, new_tokens: int = 40
) -> dict[str, Comparison]:
    """By ``train.router_replay``, of tokens that an engine sampled in bfloat16."""
    engine = TorchEngine(EnginePlace(str(folder), dtype="bfloat16", max_running=samples))
    vocabulary, routing = engine.info().vocab_size, engine.info().routing
    assert routing is not None, "the model is a mixture"

    async def episode(index: int) -> Trajectory:
        ids = (
            np.random.default_rng(index)
            .integers(0, vocabulary, prompt_tokens)
            .astype(np.int32)
        )
        name, params = f"{index}", SamplingParams(new_tokens)
        completion = await engine.generate(
            GenerateRequest(name, name, ids, params, seed=index)
        )
        assert completion.routed_experts is not None, "a mixture tells them"
        prompt = Segment(SegmentKind.PROMPT, ids)
        segments = share_experts((prompt, *completion.segments), completion.routed_experts)
        message: Any = {"role": "assistant", "content": ""}
        turn = Turn(0, None, segments[:1], segments[1:], "", message, sampling=params)
        return Trajectory(
            Task(name), 0, index, 0, "train", (turn,), Status("terminated"), reward=0.0
        )

    async def episodes() -> list[Trajectory]:
        return await asyncio.gather(*map(episode, range(samples)))

    played = tuple(asyncio.run(episodes()))
    engine.close()
    group = TrajectoryGroup(0, played[0].task, played)
    batch = make_batch([group], credit=np.zeros(samples, np.float32), routing=routing)
    join(DistSpec())
    try:
        return {
            name: trained(folder, batch, replays=name == "rollout") for name in VARIANTS
        }
    finally:
        leave()


def trained(folder: Path, batch: Batch, *, replays: bool) -> Comparison:
    """What the trainer makes of a batch that a sampler made."""
    spec = ActorSpec(str(folder), make_algorithm("grpo"), replays_routing=replays)
    actor = Actor(spec, DistSpec())
    layout = Layout(1, batch.num_tokens, actor.facts().length_scale)
    (plan,) = partition(batch.lengths, batch.trajectory, seed=0, layout=layout)
    (shard,) = shards(batch, plan)
    (logprobs,) = actor.logprobs(shard).values()
    own = shard.batch
    wanted = own.loss_mask > 0
    return Comparison(
        float(np.abs(logprobs - own.rollout_logprobs)[wanted].mean()),
        experts_differ(actor, shard),
    )


def report_mismatch(figures: Figures, arguments: argparse.Namespace) -> None:
    """Means over models of several seeds."""
    for model, sizes in MODELS.items():
        found = []
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                build_model(folder, seed, **sizes)
                found.append(compared(Path(folder)))
        logp_abs = {}
        for name in VARIANTS:
            told = f"{model}, router_replay={name}"
            logp_abs[name] = mean(one[name].logp_abs for one in found)
            figures.report(f"{told}, mismatch/logp_abs", logp_abs[name], "nats")
            differ = mean(one[name].differ for one in found)
            figures.report(f"{told}, share of tokens whose experts differ", differ, "")
        figures.at_most(f"{model}, such tokens with replay", differ, "", 0.0)
        ratio = logp_abs["rollout"] / logp_abs["off"]
        what = f"{model}, mismatch/logp_abs with replay to without"
        if model == HELD:
            figures.at_most(what, ratio, "x", 0.5)
        else:
            figures.report(what, ratio, "x")
    figures.note(
        f"Qwen3-MoE of width {WIDTH} with random weights, 3 layers; 4 of 16 experts a token where "
        "no others are named. Engine in bfloat16, trainer in float32, on a CPU; 1,280 sampled "
        "tokens a model, means over the seeds' models."
    )


def report_learning(figures: Figures, arguments: argparse.Namespace) -> None:
    """The code example by both, from the warm-up of the first."""
    runs = arguments.runs or Path(tempfile.mkdtemp(prefix="agentrl-replay-"))
    for seed in arguments.seeds:
        start: Run | None = None
        first = {}
        for name in VARIANTS:
            built = (
                (f"model.build={Path(__file__).resolve()}:build_model",)
                if start is None
                else ()
            )
            own = (
                *built,
                f"stages.rl.train.router_replay={name}",
                "rollout.dtype=bfloat16",
            )
            run = Run(
                f"{name}-{seed}", "code", (*own, *CODE_ALONE, *arguments.set), seed, start
            )
            start = start or run
            train(run, runs / run.name)
            told = f"code, seed {seed}, router_replay={name}"
            ends = summary_of(runs / run.name)["eval"]["code"]
            for kind in ("sampled", "greedy"):
                figures.report(f"{told}, {kind} after", ends["after"][kind], "")
            gain = ends["after"]["sampled"] - ends["before"]["sampled"]
            figures.at_least(f"{told}, sampled gain", gain, "", 0.2)
            logp_abs = column(runs / run.name, "mismatch/logp_abs/mean")
            first[name] = logp_abs[0]
            figures.report(
                f"{told}, mismatch/logp_abs, mean of steps", mean(logp_abs), "nats"
            )
            if name == "rollout":
                unrecorded = max(column(runs / run.name, "moe/unrecorded_frac"))
                figures.at_most(f"{told}, tokens without a record", unrecorded, "", 0.0)
        ratio = first["rollout"] / first["off"]
        what = f"code, seed {seed}, mismatch/logp_abs with replay to without, of the first step"
        figures.report(what, ratio, "x")


def column(run: Path, metric: str) -> list[float]:
    """A metric of the RL stage by step."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (row for row in map(json.loads, lines) if row.get("stage") == "rl")
    return [row[metric] for row in rows if metric in row]


PARTS = {"mismatch": report_mismatch, "learning": report_learning}


if __name__ == "__main__":
    sys.exit(main())
