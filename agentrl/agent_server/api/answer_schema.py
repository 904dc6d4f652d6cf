"""Answer schema: validates a client's JSON Schema, and an answer's text against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentrl.agent_server.api.api_error import bad_request
from agentrl.tools.patterns import BoundedValidator, SlowPatternError, pattern_budget
from agentrl.tools.threads import BoundedThreads, DeadlineError

_PATTERNS_S = 2.0
_DEADLINE_S = 10.0
# Threads for the checks of all episodes, called from their event loops; abandoned checks stay
# counted.
_CHECKS = BoundedThreads(2, "agentrl-answers")


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as JSON.

    Raises:
        ApiError: it is no JSON Schema (Draft 2020-12).
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise bad_request(
            f"the schema of the answer is no JSON Schema at {error.json_path}: {error.message}"
        ) from None
    except RecursionError:
        raise bad_request(
            "the schema of the answer is nested too deeply; make it flatter"
        ) from None
    return json.dumps(schema, ensure_ascii=False)


async def schema_fault(schema: str, text: str) -> str:
    """The first rule that a text violates, or nothing; runs in a thread, as both may be large."""
    try:
        return await _CHECKS.run(lambda: _fault(schema, text), deadline_s=_DEADLINE_S)
    except DeadlineError:
        return f"the text cannot be checked within {_DEADLINE_S:g} s"


def _fault(schema: str, text: str) -> str:
    registry: Registry[Any] = Registry()  # fetches nothing
    try:
        value = json.loads(text)
        with pattern_budget(_PATTERNS_S):
            error = next(
                iter(BoundedValidator(json.loads(schema), registry=registry).iter_errors(value)),
                None,
            )
    except SlowPatternError as slow:
        return str(slow)
    except (Unresolvable, regex.error) as broken:
        return f"the schema cannot be followed ({broken})"
    except RecursionError:
        return "text or schema is nested too deeply"
    except ValueError as broken:
        return f"the text is no JSON ({broken})"
    return "" if error is None else f"{error.json_path} breaks the rule {error.validator}"
