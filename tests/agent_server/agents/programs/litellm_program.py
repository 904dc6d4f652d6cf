"""LiteLLM as it comes: python litellm_program.py [chat|responses]"""

import json
import os
import sys
from typing import Any

import litellm
from episode import PRICES, QUESTION, report

function = {
    "name": "price",
    "description": "What a fruit costs.",
    "parameters": {
        "type": "object",
        "properties": {"fruit": {"type": "string"}},
        "required": ["fruit"],
    },
}
model = f"openai/{os.environ['OPENAI_MODEL']}"
if sys.argv[1] == "responses":
    tools: Any = [{"type": "function", **function}]
    first = litellm.responses(model=model, input=QUESTION, tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    answer = str(PRICES[json.loads(call.arguments)["fruit"]])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": answer}
    last = litellm.responses(
        model=model, input=[result], tools=tools, previous_response_id=first.id
    )
    report(last.output[-1].content[0].text)
else:
    messages: Any = [{"role": "user", "content": QUESTION}]
    while True:
        tools = [{"type": "function", "function": function}]
        said = (
            litellm.completion(model=model, messages=messages, tools=tools)
            .choices[0]
            .message
        )
        messages.append(said.model_dump())
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            answer = str(PRICES[json.loads(call.function.arguments)["fruit"]])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    report(said.content)
