"""A loop by hand over the Anthropic SDK's Messages: python anthropic_sdk.py [stream]"""

import sys
from typing import Any

from anthropic import Anthropic
from episode import PRICES, QUESTION, report

TOOLS: Any = [
    {
        "name": "price",
        "description": "What a fruit costs.",
        "input_schema": {
            "type": "object",
            "properties": {"fruit": {"type": "string"}},
            "required": ["fruit"],
        },
        "cache_control": {"type": "ephemeral"},
    }
]


def ask(client: Anthropic, said: list[Any]) -> Any:
    settings: Any = {
        "model": "policy",
        "max_tokens": 1000,
        "messages": said,
        "tools": TOOLS,
    }
    settings["system"] = "Be brief."
    if "stream" not in sys.argv:
        return client.messages.create(**settings)
    with client.messages.stream(**settings) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


client = Anthropic()
said: list[Any] = [{"role": "user", "content": QUESTION}]
counted = client.messages.count_tokens(
    model="policy", messages=said, tools=TOOLS, system="Be brief."
)
while True:
    made = ask(client, said)
    usage = made.usage
    if len(said) == 1:
        assert counted.input_tokens == usage.input_tokens + (
            usage.cache_read_input_tokens or 0
        )
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": str(PRICES[block.input["fruit"]]),
        }
        for block in made.content
        if block.type == "tool_use"
    ]
    if not results:
        break
    said += [
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": results},
    ]
report(made.content[-1].text)
