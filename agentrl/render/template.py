"""ChatML template: the plain ChatML style in Jinja, for models that are built here."""

from __future__ import annotations

from agentrl.render.families.chatml import TOOLS_HEAD, TOOLS_TAIL


def _quoted(text: str) -> str:
    """A Jinja string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


# The format of `ChatMLStyle()`; RendererSpec.build checks that the two agree on each model.
CHATML_TEMPLATE = "\n".join(
    (
        "{%- set has_system = messages[0].role == 'system' %}",
        "{%- if has_system or tools %}",
        "    {{- '<|im_start|>system\\n' + (messages[0].content if has_system else '') }}",
        "    {%- if tools %}",
        "        {{- ('\\n\\n' if has_system else '') + " + _quoted(TOOLS_HEAD) + " }}",
        "        {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}",
        "        {{- " + _quoted(TOOLS_TAIL) + " }}",
        "    {%- endif %}",
        "    {{- '<|im_end|>\\n' }}",
        "{%- endif %}",
        "{%- for message in (messages[1:] if has_system else messages) %}",
        "    {%- if message.role == 'tool' %}",
        "        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' "
        "}}{%- endif %}",
        "        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}",
        "        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' "
        "}}{%- endif %}",
        "    {%- else %}",
        "        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}",
        "        {%- for call in message.tool_calls or [] %}",
        "            {%- set function = call.function or call %}",
        "            {{- '\\n' if message.content or not loop.first else '' }}",
        '            {{- \'<tool_call>\\n{"name": "\' + function.name + \'", "arguments": \' }}',
        "            {{- (function.arguments | tojson) + '}\\n</tool_call>' }}",
        "        {%- endfor %}",
        "        {{- '<|im_end|>\\n' }}",
        "    {%- endif %}",
        "{%- endfor %}",
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
    )
)
