"""Agent: an unchanged program that asks an OpenAI-compatible server, and can be trained."""

import json
import sys
from typing import Any

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "What one piece of a fruit costs, in cents.",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"type": "string"}},
                "required": ["fruit"],
            },
        },
    }
]
PRICES = {
    "apple": 31,
    "banana": 18,
    "cherry": 7,
    "damson": 24,
    "fig": 43,
    "grape": 5,
    "lemon": 36,
    "mango": 92,
}


def run(name: str, arguments: str) -> str:
    """A tool's answer, in words that the model can act on."""
    fruit = str(json.loads(arguments).get("fruit"))
    if name != "price":
        return f"there is no tool {name}; call price"
    return str(PRICES.get(fruit, f"no price for {fruit}"))


def main() -> None:
    """Answers the task on standard input; the endpoint and its key come from OPENAI_BASE_URL and
    OPENAI_API_KEY.
    """
    client = OpenAI()
    # the tiny model was taught them, and is slow
    offered: dict[str, Any] = {"tools": TOOLS} if "--announce-tools" in sys.argv else {}
    messages = json.load(sys.stdin)["messages"]
    while True:
        asked = client.chat.completions.create(model="policy", messages=messages, **offered)
        said = asked.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            answer = run(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    print(said.content)


if __name__ == "__main__":
    main()
