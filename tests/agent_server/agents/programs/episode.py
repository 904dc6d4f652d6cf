"""What a program is told, and how it says what its SDK made of the episode."""

import json
import os
import sys
import urllib.request
from typing import Any

TASK: dict[str, Any] = json.load(sys.stdin)
QUESTION: str = TASK["messages"][-1]["content"]
PRICES = {"fig": 43, "grape": 5}


def report(output: object) -> None:
    """Rewards the episode: 1 where the SDK understood ``output`` as the task says."""
    expected = TASK["info"]["expected"]
    if output != expected:
        sys.stderr.write(f"understood {output!r}, expected {expected!r}\n")
    body = json.dumps({"reward": float(output == expected)}).encode()
    url = os.environ["AGENTRL_EPISODE_URL"] + "/reward"
    urllib.request.urlopen(
        urllib.request.Request(url, body, {"Content-Type": "application/json"})
    ).close()
