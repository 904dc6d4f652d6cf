"""Template child: renders one chat template, in a process that may do nothing else.

Run as a script by ``process`` with an empty environment; needs the standard library and
jinja2 alone. The limits hold before the template is read. One JSON object comes in on standard
input, one goes out.
"""

from __future__ import annotations

import datetime
import json
import resource
import sys
from typing import Any

from jinja2 import TemplateError, ext, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(ext.Extension):
    """The tags ``{% generation %}``, by which templates mark an assistant's text; they write
    nothing.
    """

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

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


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Bounds this process for good: memory, CPU, and no file to open or write."""
    # macOS knows no limit of the address space
    memory = resource.RLIMIT_AS if sys.platform == "linux" else resource.RLIMIT_DATA
    resource.setrlimit(memory, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def answer() -> dict[str, str]:
    """The text, or what went wrong."""
    warm_up()
    limit(int(sys.argv[1]), int(sys.argv[2]))
    try:
        return {"text": rendered(json.load(sys.stdin))}
    except SecurityError as error:
        return {"error": f"it reaches for what no template may: {error}"}
    except MemoryError:
        return {"error": "it needs more memory than a template may have"}
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


if __name__ == "__main__":
    json.dump(answer(), sys.stdout)
