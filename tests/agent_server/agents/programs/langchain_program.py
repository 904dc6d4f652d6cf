"""LangChain as it comes: langchain_program.py
[agent|structured|called|responses|response_format]
"""

import os
import sys

from episode import PRICES, QUESTION, report
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Answer(BaseModel):
    """What the agent answers."""

    cents: int


@tool
def price(fruit: str) -> str:
    """What a fruit costs, in cents."""
    return str(PRICES[fruit])


how = sys.argv[1]
model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], use_responses_api=how == "responses")
asked = {"messages": [{"role": "user", "content": QUESTION}]}
if how == "structured":
    report(model.with_structured_output(Answer).invoke(QUESTION).model_dump())
elif how == "called":
    report(
        model.with_structured_output(Answer, method="function_calling")
        .invoke(QUESTION)
        .model_dump()
    )
elif how == "response_format":
    done = create_agent(model, [price], response_format=Answer).invoke(asked)
    report(done["structured_response"].model_dump())
else:
    done = create_agent(model, [price]).invoke(asked)
    report(done["messages"][-1].text)
