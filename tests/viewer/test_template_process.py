"""Template process: what a chat template may do, and what it may not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentrl.errors import DataError
from agentrl.render import CHATML_TEMPLATE
from agentrl.viewer.template import ChatTemplateText, TemplateLimits

HELLO = ({"role": "user", "content": "Hello <b>"},)
QUICK = TemplateLimits(memory_mb=256, cpu_s=1, time_s=5.0, characters=10_000)


def render(text: str, **settings: object) -> str:
    return ChatTemplateText(text, settings).render(HELLO, generation=True, limits=QUICK)


def test_a_template_renders_as_its_tokenizer_does() -> None:
    tools = [{"type": "function", "function": {"name": "é", "parameters": {}}}]

    text = ChatTemplateText(CHATML_TEMPLATE).render(HELLO, tools, generation=True)

    assert '\n{"type": "function", "function": {"name": "é", "parameters": {}}}\n' in text
    assert text.endswith("<|im_start|>user\nHello <b><|im_end|>\n<|im_start|>assistant\n")


def test_special_tokens_and_switches_are_variables() -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
        "x": 1,
    }

    template = ChatTemplateText.of_tokenizer(
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}", config
    )

    assert template.render(HELLO, generation=False) == "<s></s>"


def test_the_extensions_of_chat_templates() -> None:
    text = (
        "{% generation %}{% for m in messages %}{% if loop.index > 9 %}{% break %}{% endif %}"
        "{{ strftime_now('%Y') }}{% endfor %}{% endgeneration %}"
    )

    assert render(text) == "1970"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("hostile", "told"),
    [
        pytest.param("{{ 'x' * 10**10 }}", "more memory", id="memory"),
        pytest.param("{{ 9**(9**9) }}", "CPU|ended after", id="number"),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "CPU|ended after",
            id="loop",
        ),
        pytest.param(
            "{% for i in range(10**9) %}{% endfor %}", "Range too big", id="range"
        ),
        pytest.param(
            "{% for i in range(9999) %}{{ 'word' }}{% endfor %}",
            "more than 10000",
            id="output",
        ),
        pytest.param(
            "{{ ''.__class__.__mro__[1].__subclasses__() }}", "no template", id="class"
        ),
        pytest.param("{{ messages.append(1) }}", "no template", id="change"),
        pytest.param(
            "{{ raise_exception.__globals__ }}x{{ y.z }}", "cannot render", id="globals"
        ),
        pytest.param(
            "{{ cycler.__init__.__globals__.os.popen('id') }}", "no template", id="os"
        ),
        pytest.param(
            "{{ '{0.__class__}'.format(1).x.y }}", "no template|cannot", id="format"
        ),
        pytest.param("{% include '/etc/passwd' %}", "no loader", id="file"),
        pytest.param("{% if %}", "cannot render", id="syntax"),
        pytest.param("{{ raise_exception('no') }}", "TemplateError: no", id="refusal"),
        pytest.param(
            "{{" + "(" * 4000 + ")" * 4000 + "}}", "cannot render|ended", id="nesting"
        ),
    ],
)
def test_a_hostile_template_is_an_error(hostile: str, told: str) -> None:
    started = time.monotonic()

    with pytest.raises(DataError, match=told):
        render(hostile)

    assert time.monotonic() - started < QUICK.time_s + 60


def test_a_template_sees_no_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret-value")
    monkeypatch.chdir(tmp_path)
    # would be imported in place of jinja2 by a process that looks at its folder
    (tmp_path / "jinja2.py").write_text("raise SystemExit(7)")

    assert render("{{ namespace(a=1).a }}{{ SECRET_TOKEN }}") == "1"
