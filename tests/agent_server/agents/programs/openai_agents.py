"""The OpenAI Agents SDK as it comes: python openai_agents.py
[plain|streamed|by_id|chat|output|handoff]
"""

import asyncio
import sys

from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_api
from episode import PRICES, QUESTION, report
from pydantic import BaseModel


class Answer(BaseModel):
    """What the agent answers."""

    cents: int


@function_tool
def price(fruit: str) -> str:
    """What a fruit costs, in cents.

    Args:
        fruit: its name.
    """
    return str(PRICES[fruit])


async def main(how: str) -> None:
    agent = Agent(name="grocer", instructions="You know prices.", tools=[price])
    if how == "chat":
        set_default_openai_api("chat_completions")
    if how == "forced":
        agent.model_settings = ModelSettings(
            tool_choice="required", parallel_tool_calls=False
        )
    if how == "output":
        agent.output_type = Answer
    if how == "handoff":
        agent = Agent(
            name="clerk", instructions="Hand over to the grocer.", handoffs=[agent]
        )
    if how == "streamed":
        streamed = Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        report(streamed.final_output)
        return
    result = await Runner.run(agent, QUESTION, auto_previous_response_id=how == "by_id")
    report(result.final_output.model_dump() if how == "output" else result.final_output)


asyncio.run(main(sys.argv[1]))
