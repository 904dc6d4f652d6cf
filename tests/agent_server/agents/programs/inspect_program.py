"""inspect_ai as it comes: a task of one sample, its basic loop of tools, python inspect_program.py
[chat|responses]
"""

import os
import sys
import tempfile

import inspect_ai
from episode import PRICES, QUESTION, report
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool


@tool
def price() -> Tool:
    async def execute(fruit: str) -> str:
        """What a fruit costs, in cents.

        Args:
            fruit: Its name.
        """
        return str(PRICES[fruit])

    return execute


model = get_model(
    f"openai/{os.environ['OPENAI_MODEL']}", responses_api=sys.argv[1] == "responses"
)
task = inspect_ai.Task(
    dataset=[Sample(input=QUESTION)], solver=[use_tools(price()), generate()]
)
(log,) = inspect_ai.eval(
    task, model=model, display="none", log_dir=tempfile.mkdtemp(), max_retries=0
)
assert log.samples, log.error
report(log.samples[0].output.completion)
