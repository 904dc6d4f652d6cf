"""Calculator task: the code example's problems with a tool in the same process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.envs import ToolEnv
from agentrl.tools import tool
from agentrl.types import Action, Message, Observation, StepResult, load_object

__all__ = ["Calculator", "build_model", "calc", "correct", "demonstrations", "tasks"]

HERE = Path(__file__).parent
CODE = HERE.parents[1] / "examples" / "code"

evaluate = load_object("arithmetic.py:evaluate", HERE)
tasks, correct, problems = (
    load_object(f"task.py:{name}", CODE) for name in ("tasks", "correct", "problems")
)
guess = load_object("warmup.py:guess", CODE)
say, call = (load_object(f"../turns.py:{name}", CODE) for name in ("say", "call"))


@tool
def calc(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: whole numbers with +, -, * and brackets.
    """
    value: str = evaluate(expression)
    return value


class Calculator(ToolEnv):
    """Ends at the first turn without a call that can be read, as TRL's trainer does; ``ToolEnv``
    alone would answer a malformed one and let the policy try again."""

    async def step(self, action: Action) -> StepResult:
        if action.tool_calls:
            return await super().step(action)
        return StepResult(Observation(), terminated=True)


def demonstrations(seed: int, noise: float = 0.6) -> Iterator[dict[str, Any]]:
    """Endless conversations that solve training problems, ``noise`` of them by a guess or a wrong
    expression.
    """
    rng = random.Random(seed)
    for problem in problems(rng, "train"):
        messages: list[Message] = [{"role": "user", "content": problem.question}]
        faulty = rng.random() < noise
        if faulty and rng.random() < 0.5:
            yield {"messages": [*messages, say(guess(rng, problem.answer))]}
            continue
        expression = wrong(rng, problem.expression) if faulty else problem.expression
        output = evaluate(expression)
        yield {
            "messages": [
                *messages,
                *call("calc", output, expression=expression),
                say(output),
            ]
        }


def wrong(rng: random.Random, expression: str) -> str:
    """The expression with another operator."""
    place = rng.choice(
        [index for index, letter in enumerate(expression) if letter in "+-*"]
    )
    other = rng.choice([o for o in "+-*" if o != expression[place]])
    return expression[:place] + other + expression[place + 1 :]


def build_model(folder: str, seed: int = 0) -> None:
    """``model.build``: the code example's tiny Qwen3, with a tokenizer of these demonstrations."""
    from agentrl.training.models.tiny import build_tiny_model

    build_tiny_model(folder, demonstrations(seed), seed=seed, vocab_size=480)
