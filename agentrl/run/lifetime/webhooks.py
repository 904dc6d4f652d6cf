"""Webhooks: post what went wrong in a run, and how it ended, to ``health.webhook``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.config import StageConfig
from agentrl.errors import ConfigError, MachineError
from agentrl.guards.secret_mask import SecretMask
from agentrl.metrics.outlets.courier import CLOSE_S, Courier, end_all
from agentrl.store.json_text import to_json

COMPLETED = "run_completed"


class Webhooks:
    """Posts each warning and error among the events of a run, and its end. No post is waited for,
    and none that fails ends a run: the log tells it.

    Args:
        run: its name.
        stages: where these name several webhooks, each gets everything.

    Raises:
        ConfigError: an environment variable that a webhook names holds no URL.
    """

    deadline_s = 10.0
    """Seconds that a server may be silent."""
    close_s = CLOSE_S
    """Seconds that all have together at the end."""

    def __init__(self, run: str, stages: Iterable[StageConfig]) -> None:
        self._run = run
        self._mask = SecretMask()
        # a URL may be the secret itself: messages have its host alone
        self._couriers = [
            Courier(f"health.webhook ({urlsplit(url).hostname})", partial(str, url))
            for url in webhook_urls(stages)
        ]

    def tell(self, event: Mapping[str, Any]) -> None:
        """Posts an event, as ``EventLog`` has it, where it is one that a person should know now; a
        trajectory that failed is told with others of its step."""
        name, text = event["event"], f"{self._run}: {event['message']}"
        if name == "trajectory_failed" or (event["level"] == "info" and name != COMPLETED):
            return
        body = self._mask(to_json({"alert": name, **event, "run": self._run, "text": text}))
        for courier in self._couriers:
            courier.give(partial(_post, body=body, deadline_s=self.deadline_s))

    def close(self) -> None:
        """Waits for what was told."""
        end_all(self._couriers, close_s=self.close_s)


def webhook_urls(stages: Iterable[StageConfig]) -> set[str]:
    """Where alerts are posted.

    Raises:
        ConfigError: the environment variable that ``health.webhook`` names holds no URL.
    """
    found = set()
    for named in {stage.health.webhook or "" for stage in stages} - {""}:
        url = os.environ.get(named[1:], "") if named.startswith("$") else named
        if not url.startswith("http"):
            raise ConfigError(
                f"health.webhook={named!r} must name an environment variable that holds a URL, and "
                f"it {'holds another text' if url else 'is not set'}; export {named[1:]}=https://..."
            )
        found.add(url)
    return found


def _post(url: str, body: str, deadline_s: float) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(url, content=body, headers=headers, timeout=deadline_s)
    if not answer.is_success:
        raise MachineError(f"it answered {answer.status_code} {answer.reason_phrase}")
