"""A loop by hand over the OpenAI SDK's Responses: python openai_sdk.py [stream] [id]"""

import json
import sys
from typing import Any

from episode import PRICES, QUESTION, report
from openai import OpenAI

TOOLS: Any = [
    {
        "type": "function",
        "name": "price",
        "description": "What a fruit costs.",
        "parameters": {
            "type": "object",
            "properties": {"fruit": {"type": "string"}},
            "required": ["fruit"],
        },
        "strict": False,
    }
]


def ask(client: OpenAI, said: list[Any], before: str | None) -> Any:
    settings: Any = {
        "model": "policy",
        "input": said,
        "tools": TOOLS,
        "instructions": "Be brief.",
    }
    if before is not None:
        settings["previous_response_id"] = before
    if "stream" not in sys.argv:
        return client.responses.create(**settings)
    with client.responses.stream(**settings) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


client, by_id = OpenAI(), "id" in sys.argv
said: list[Any] = [{"role": "user", "content": QUESTION}]
before = None
while True:
    made = ask(client, said, before)
    calls = [item for item in made.output if item.type == "function_call"]
    results = [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": str(PRICES[json.loads(call.arguments)["fruit"]]),
        }
        for call in calls
    ]
    if by_id:
        said, before = results, made.id
    else:
        said += [*made.output, *results]
    if not calls:
        break
report(made.output_text)
