"""A LangGraph graph by hand: a node that asks the model, one that runs its tools."""

import os

from episode import PRICES, QUESTION, report
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def price(fruit: str) -> str:
    """What a fruit costs, in cents."""
    return str(PRICES[fruit])


model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools([price])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([price]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
done = graph.compile().invoke({"messages": [{"role": "user", "content": QUESTION}]})
report(done["messages"][-1].content)
