"""smolagents as it comes: python smolagents_program.py [tools|code]"""

import os
import sys

from episode import PRICES, QUESTION, report
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def price(fruit: str) -> str:
    """What a fruit costs, in cents.

    Args:
        fruit: its name.
    """
    return str(PRICES[fruit])


model = OpenAIServerModel(
    model_id=os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
kind = ToolCallingAgent if sys.argv[1] == "tools" else CodeAgent
agent = kind(tools=[price], model=model, max_steps=4, verbosity_level=0)
report(agent.run(QUESTION))
