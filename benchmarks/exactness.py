"""Exactness: how far the sampler's logprobs are from the trainer's, and what it costs to make them
equal (``python -m benchmarks.exactness``).

- Small random models of each family: an engine samples twelve episodes of three turns, and actors
  of several layouts compute the logprobs of the same tokens.
- The code example, ``--steps`` steps with ``run.deterministic`` and as many without, in blocks that
  take turns: the largest difference of all, and processor time.
- The code example's model generates the same turns with and without, in turn.

It writes ``docs/exactness.md``. ``--only families`` or ``--only code`` measures one half, and
leaves the page.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from agentrl.errors import AgentRLError
from agentrl.types import GenerateRequest, SamplingParams
from benchmarks.figures import ROOT, Figures, add_arguments, machine
from benchmarks.step import CODE, Row, checkpoint, default_cache, scratch, train
from benchmarks.trainer.exactness_rank import FAR, Job
from benchmarks.trainer.ranks import run_ranks
from tests.tiny_models import write_family
from tests.training.sampled_batch import sampled_batch

PAGE = ROOT / "docs" / "exactness.md"
FAMILIES = ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe")
MIXTURES = ("mixtral", "qwen3_moe")
DTYPES = ("float32", "bfloat16")
LAYOUTS = {
    "plain": ("plain", 1, 1),
    "fsdp2": ("fsdp2", 1, 1),
    "fsdp2, tp 2": ("fsdp2", 2, 1),
    "fsdp2, sp 2": ("fsdp2", 1, 2),
}
"""Backends, and ranks that hold a layer and a row together."""
GENERATION = 3.0
STEP = 2.5
BLOCKS = 2
COLD_STEPS = 1

HEAD = """# Exactness

How far the sampler's logprobs are from the trainer's, token by token. `python -m benchmarks.exactness` made this page.
[engines.md](engines.md), Deterministic mode, tells what `run.deterministic` promises, and
[algorithms.md](algorithms.md), Corrections, what is done about a difference.

"""  # noqa: E501


@dataclass(frozen=True)
class Line:
    """One row of the page.

    Args:
        found: numbers of ``exactness_rank``; None where the engine refuses the combination.
        refused: why.
    """

    family: str
    dtype: str
    deterministic: bool
    layout: str
    found: Mapping[str, float] | None = None
    refused: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the page's table; TorchEngine tells no experts."""
        mode = "yes" if self.deterministic else "no"
        head = (self.family, "TorchEngine", self.dtype, self.layout, mode)
        if self.found is None:
            return (*head, "refused", *("–",) * 4)
        numbers = (f"{self.found[name]:.2g}" for name in ("max", "mean", "k3"))
        return (*head, *numbers, f"{self.found['far']:.1%}", "–")


def families(folder: Path) -> list[Line]:
    """Every family, dtype, mode and layout."""
    lines: list[Line] = []
    jobs: dict[Line, Job] = {}
    for family in FAMILIES:
        model = write_family(folder / family, family, vocab_size=96)
        for dtype, deterministic in product(DTYPES, (False, True)):
            case = (family, dtype, deterministic)
            try:
                batch = sampled_batch(model, dtype=dtype, deterministic=deterministic)
            except AgentRLError as error:
                lines.append(Line(*case, "any", refused=str(error)))
                continue
            settings: dict[str, Any] = {"dtype": dtype, "deterministic": deterministic}
            if dtype == "bfloat16":
                settings["head_dtype"] = "float32"
            for layout, (backend, tp, _) in LAYOUTS.items():
                if tp == 1 or family not in MIXTURES:
                    lines.append(Line(*case, layout))
                    job = Job(str(model), batch, settings | {"backend": backend})
                    jobs[lines[-1]] = job
    for layout, (_, tp, sp) in LAYOUTS.items():
        own = [line for line in jobs if line.layout == layout]
        file = folder / "jobs"
        file.write_bytes(pickle.dumps([jobs[line] for line in own]))
        module = "benchmarks.trainer.exactness_rank"
        answers, *_ = run_ranks(module, str(tp), str(sp), str(file), size=tp * sp)
        for line, answer in zip(own, answers, strict=True):
            lines[lines.index(line)] = replace(line, found=answer)
    return lines


def code(figures: Figures, model: Path, steps: int, seed: int) -> None:
    """The code example's own runs, in blocks that take turns."""
    rows: dict[bool, list[Row]] = {False: [], True: []}
    with scratch() as folder:
        for block, exact in product(range(BLOCKS), (False, True)):
            run = folder / f"{block}-{exact}"
            rows[exact] += train(
                CODE / "config.yaml",
                run,
                *(f"model.path={model}", "stages.rl.eval.sets={}", f"run.seed={seed + block}"),
                *("placement.mode=inline", f"train.steps={steps // BLOCKS + COLD_STEPS}"),
                f"run.deterministic={str(exact).lower()}",
            )[COLD_STEPS:]
    figures.report("code: steps of each mode", len(rows[True]), "")
    figures.report(
        "code: trained tokens", sum(one["count/trained_tokens"] for one in rows[True]), ""
    )
    largest = max(float(one["mismatch/logp_abs/max"]) for one in rows[True])
    figures.at_most("code: largest difference, deterministic", largest, "nats", 0.0)
    ordinary = max(float(one["mismatch/logp_abs/max"]) for one in rows[False])
    figures.report("code: largest difference, ordinary", ordinary, "nats")
    spent = {
        exact: sum(float(one["driver_cpu_s"]) for one in found)
        / sum(float(one["count/trained_tokens"]) for one in found)
        for exact, found in rows.items()
    }
    figures.at_most("code: processor time of a step's token", spent[True] / spent[False], "x", STEP)


def generation(figures: Figures, model: Path) -> None:
    """The same turns of 128 episodes by both modes, in turn."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    engines = {
        exact: TorchEngine(
            EnginePlace(
                model=str(model),
                context_tokens=448,
                max_running=64,
                deterministic=exact,
                num_threads=1,
            )
        )
        for exact in (False, True)
    }
    try:
        for number in range(4):
            for exact, engine in engines.items():
                started = time.process_time()
                asyncio.run(_episodes(engine, number))
                spent[exact].append(time.process_time() - started)
    finally:
        for engine in engines.values():
            engine.close()
    ratios = [one / other for one, other in zip(spent[True], spent[False], strict=True)]
    figures.at_most("generation: processor time", median(ratios), "x", GENERATION)


async def _episodes(engine: TorchEngine, number: int) -> None:
    """16 groups of 8, of three turns: lengths as in the code example, whatever is sampled."""

    async def episode(group: int, rollout: int) -> None:
        rng = np.random.default_rng([number, group])
        ids = rng.integers(10, 400, 40 + group).astype(np.int32)
        for turn in range(3):
            length = 16 + (7 * rollout + 5 * turn + group) % 24
            name = f"{number}-{group}-{rollout}"
            params = SamplingParams(max_new_tokens=length, temperature=1.0)
            seed = 1000 * group + 10 * rollout + turn
            answer = await engine.generate(
                GenerateRequest(f"{name}-{turn}", name, ids, params, seed)
            )
            new = [segment.token_ids for segment in answer.segments]
            ids = np.concatenate([ids, *new, rng.integers(10, 400, 12)]).astype(np.int32)
        await engine.release(name)

    await asyncio.gather(*(episode(group, rollout) for group in range(16) for rollout in range(8)))


def page(lines: Sequence[Line], figures: Figures) -> str:
    """``docs/exactness.md``."""
    facts = machine()
    versions = facts["versions"]
    assert isinstance(versions, dict)
    columns = (
        *("family", "engine", "dtype", "layout", "deterministic"),
        *("max abs difference", "mean", "k3", f"over {FAR:g}", "experts differ"),
    )
    table = [columns, *(line.cells for line in lines)]
    refusals = sorted({f"{line.family}: {line.refused}" for line in lines if line.refused})
    measured = [("figure", "value", "target", "met")]
    for figure in figures.rows:
        met = {None: "", True: "yes", False: "**no**"}[figure.met]
        value = f"{figure.value:.4g} {figure.unit}".strip()
        measured.append((figure.name, value, figure.target or "", met))

    def rows(cells: Sequence[Sequence[str]]) -> str:
        head, *body = (f"| {' | '.join(row)} |" for row in cells)
        return "\n".join([head, f"|{'---|' * len(cells[0])}", *body])

    where = f"{facts['cpu']}, torch {versions['torch']}, transformers {versions['transformers']}"
    parts = [
        HEAD + f"Measured on {where}, one thread a process.",
        "## What it costs\n\n" + rows(measured),
        "## Families, dtypes and layouts\n\nRandom models of two layers of width 32; differences "
        "in nats. In bfloat16 the output layer is float32 on both sides "
        "(`model.head_dtype: float32`).",
        rows(table),
        "A dash: TorchEngine does not tell it.",
        *(f"Refused, {one}" for one in refusals),
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    add_arguments(parser, benchmark="exactness")
    parser.add_argument("--only", choices=("families", "code"), help="one half alone")
    parser.add_argument("--steps", type=int, default=20, help="of the code example in each mode")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="warm-up checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = Figures()
    lines: list[Line] = []
    if arguments.only != "code":
        with scratch() as folder:
            lines = families(folder)
        for line in lines:
            if line.found is not None:
                mode = "deterministic" if line.deterministic else "ordinary"
                name = ", ".join((line.family, line.dtype, line.layout, mode))
                figures.report(f"{name}: largest difference", line.found["max"], "nats")
    if arguments.only != "families":
        model = checkpoint(arguments.cache, "code", CODE, seed=arguments.seed)
        cost = Figures()
        generation(cost, model)
        code(cost, model, arguments.steps, arguments.seed)
        figures.rows += cost.rows
        if lines:
            PAGE.write_text(page(lines, cost), encoding="utf-8")
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    raise SystemExit(main())
