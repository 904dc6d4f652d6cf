"""pydantic-ai as it comes: python pydantic_ai_program.py [text|output|native|responses]"""

import os
import sys

from episode import PRICES, QUESTION, report
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class Answer(BaseModel):
    """What the agent answers."""

    cents: int


how = sys.argv[1]
name = os.environ["OPENAI_MODEL"]
model = OpenAIResponsesModel(name) if how == "responses" else OpenAIChatModel(name)
wanted = {"output": Answer, "native": NativeOutput(Answer)}.get(how, str)
agent = Agent(model, output_type=wanted, instructions="You know prices.")


@agent.tool_plain
def price(fruit: str) -> str:
    """What a fruit costs, in cents."""
    return str(PRICES[fruit])


output = agent.run_sync(QUESTION).output
report(output.model_dump() if isinstance(output, Answer) else output)
