"""OpenAIEngine's specification: the section ``rollout.openai``, the fields of a
``ChatServerSpec``.
"""

from __future__ import annotations

import json
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentrl.engines.base import (
    EnginePlace,
    EngineSpec,
    EngineTraits,
    MessageEngine,
    WeightSender,
)
from agentrl.errors import ConfigError
from agentrl.llm import ChatServerSpec
from agentrl.types.user_code.load import load_object


class OpenAIEngineSpec(EngineSpec):
    """An OpenAI-compatible server (``rollout.engine: openai``), never trained: the fields of
    ``agentrl.llm.ChatServerSpec``, such as ``base_url`` and ``model``."""

    section: ClassVar[str] = "openai"
    model_config = ConfigDict(extra="allow")

    def traits(self) -> EngineTraits:
        """See ``EngineSpec.traits``."""
        return EngineTraits(returns_ids=False, images=True)

    def server(self, *, max_concurrent: int) -> ChatServerSpec:
        """The server that the section describes.

        Raises:
            ConfigError: a key is missing, unknown or out of its range.
        """
        given = {"max_concurrent": max_concurrent, **(self.__pydantic_extra__ or {})}
        known = ChatServerSpec.__match_args__
        if unknown := sorted(given.keys() - set(known)):
            raise ConfigError(
                f"unknown key {type(self).__name__}.{unknown[0]}; the section has "
                f"{', '.join(known)}"
            )
        try:
            return TypeAdapter(ChatServerSpec).validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            if isinstance(cause := first.get("ctx", {}).get("error"), ConfigError):
                raise cause from None
            key = ".".join([type(self).__name__, *map(str, first["loc"])])
            raise ConfigError(
                f"{key}: {first['msg']}; the section has "
                f"{', '.join(known)}, such as base_url: http://127.0.0.1:8000/v1 and model: NAME"
            ) from None

    def build(
        self, place: EnginePlace, sender: WeightSender | None = None
    ) -> MessageEngine:
        """An engine of messages, with ``place.max_running`` requests in flight at once.

        Raises:
            ConfigError: the section describes no server, or the key's variable is not set.
        """
        engine: MessageEngine = load_object("agentrl.engines.openai:OpenAIEngine")(
            self.server(max_concurrent=place.max_running)
        )
        return engine
