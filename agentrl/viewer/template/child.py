"""Template child: renders one chat template, in a process that may do nothing else.

A script of ``guards.child_process``; needs the standard library and jinja2 alone. One JSON object
is the request, one the answer.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError, ext, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(ext.Extension):
    """The tags ``{% generation %}``, by which templates mark an assistant's text; they write
    nothing.
    """

    # Jinja2 declares it so.
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body as it stands."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    """``raise_exception`` of chat templates."""
    raise TemplateError(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson`` without jinja2's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def rendered(job: dict[str, Any]) -> str:
    """The text of a job.

    Raises:
        TemplateError: the template is wrong, refuses, or writes too much.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    now = datetime.datetime.fromtimestamp(job["now"], datetime.UTC)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: now.strftime(str(form))
    parts = []
    left = job["max_characters"]
    for part in environment.from_string(job["template"]).generate(**job["variables"]):
        left -= len(part)
        if left < 0:
            raise TemplateError(f"it writes more than {job['max_characters']} characters")
        parts.append(part)
    return "".join(parts)


def warm_up() -> None:
    """Renders once and fails once, so that what jinja2 imports late is there before no file can be
    opened.
    """
    job = {"now": 0.0, "max_characters": 9, "variables": {}}
    rendered({**job, "template": "{{ strftime_now('%Y') }}"})
    try:
        rendered({**job, "template": "{{ raise_exception('\\n') }}"})
    except TemplateError:
        return


def answerer() -> Callable[[bytes], bytes]:
    """What answers, once all that it imports is there."""
    warm_up()
    return answer


def answer(job: bytes) -> bytes:
    """The text, or what went wrong."""
    try:
        found = {"text": rendered(json.loads(job))}
    except SecurityError as error:
        found = {"error": f"it reaches for what no template may: {error}"}
    except MemoryError:
        found = {"error": "it needs more memory than a template may have"}
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        found = {"error": f"{type(error).__name__}: {error}"[:2000]}
    return json.dumps(found).encode()
