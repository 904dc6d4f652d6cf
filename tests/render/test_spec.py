"""A RendererSpec builds the renderer that its model's files ask for, or says what they lack."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.render import ChatMLRenderer, ChatMLStyle, RendererSpec
from agentrl.types import ToolSpec
from tests.render.qwen_kind import ORDINARY, SPECIAL, real_template, trained_tokenizer

Folder = Callable[[str], Path]


def saved(tokenizer: Any, folder: Path, template: str | None = None) -> str:
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer without a chat template."""
    return saved(trained_tokenizer(ORDINARY["qwen3"]), tmp_path_factory.mktemp("base"))


def test_it_travels_by_pickle(model_folder: Folder) -> None:
    spec = pickle.loads(pickle.dumps(RendererSpec(str(model_folder("qwen3")))))
    assert spec.build().prompt(({"role": "user", "content": "Hi"},))[0].token_ids.size > 0


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        RendererSpec(str(tmp_path / "nowhere")).build()


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        DataError,
        match=r"has no tokenizer: tokenizer.json and tokenizer_config.json missing; copy",
    ):
        RendererSpec(str(tmp_path)).build()


def test_a_tokenizer_that_cannot_be_read(model_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(model_folder("qwen3"), tmp_path / "torn")
    (tmp_path / "torn" / "tokenizer.json").write_text('{"version": "1.0", "mod')
    with pytest.raises(DataError, match="cannot be read"):
        RendererSpec(str(tmp_path / "torn")).build()


def test_a_base_model_without_a_template(base_model: str) -> None:
    with pytest.raises(
        ConfigError, match=r"has no chat template.*RendererSpec\.chat_template: chatml"
    ):
        RendererSpec(base_model).build()


def test_chatml_for_a_base_model(base_model: str) -> None:
    renderer = RendererSpec(base_model, chat_template="chatml").build()
    assert isinstance(renderer, ChatMLRenderer)
    assert renderer.style == ChatMLStyle()


def test_chatml_for_a_tokenizer_without_its_markers(tmp_path: Path) -> None:
    folder = saved(
        trained_tokenizer((), special=("<|endoftext|>", "<|im_start|>")), tmp_path
    )
    with pytest.raises(
        DataError, match=r"needs <\|im_end\|> among the tokenizer's added tokens"
    ):
        RendererSpec(folder, chat_template="chatml").build()


def test_a_template_from_a_file(base_model: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(real_template("qwen3"))
    renderer = RendererSpec(base_model, chat_template=str(tmp_path / "mine.jinja")).build()
    assert isinstance(renderer, ChatMLRenderer)
    assert renderer.style.thinking


def test_a_template_as_text(base_model: str) -> None:
    renderer = RendererSpec(base_model, chat_template=real_template("qwen2_5")).build()
    assert isinstance(renderer, ChatMLRenderer)
    assert renderer.style.default_system is not None


def test_a_template_file_that_does_not_exist(base_model: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no file 'chat\.jinja'"):
        RendererSpec(base_model, chat_template="chat.jinja").build()


NO_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_of_another_family_than_asked_for(base_model: str) -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    with pytest.raises(
        ConfigError, match=r"not of the ChatML family.*renders as '\[user\] Hello"
    ):
        RendererSpec(base_model, family="chatml", chat_template=template).build()


def test_a_template_that_departs_from_the_family_asked_for(base_model: str) -> None:
    with pytest.raises(
        ConfigError, match=r"it writes .* where the nearest known style writes"
    ):
        RendererSpec(base_model, family="chatml", chat_template=NO_TOOLS).build()


def test_auto_takes_a_template_of_no_known_family_as_it_is(base_model: str) -> None:
    assert RendererSpec(base_model, chat_template=NO_TOOLS).build().family == "generic"


def test_a_template_without_tools_is_not_given_any(base_model: str) -> None:
    renderer = RendererSpec(base_model, chat_template=NO_TOOLS).build()
    with pytest.raises(
        DataError,
        match=r"does not tell the model of its tools.*ToolEnv\.describe_tools_in_prompt: false",
    ):
        renderer.prompt(({"role": "user", "content": "Hi"},), (ToolSpec("f", "Does.", {}),))


def test_a_template_whose_turns_have_no_end_is_refused(base_model: str) -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    with pytest.raises(
        ConfigError, match="does not end an assistant's turn with an added token"
    ):
        RendererSpec(base_model, chat_template=template).build()


def test_a_template_that_changes_what_is_said_is_refused(base_model: str) -> None:
    template = NO_TOOLS.replace(
        "{{ m.content }}",
        "{{ m.content | replace(' in ', ' IN ') }}{{ m.content | length }}",
    )
    with pytest.raises(ConfigError, match="changes what is said in a message"):
        RendererSpec(base_model, chat_template=template).build()


@pytest.mark.parametrize(
    ("form", "refused"),
    [("%d %b %Y", False), ("%H:%M:%S.%f", True), ("%d %b %Y %H:%M", True)],
)
def test_a_template_that_writes_the_time_of_day_is_refused(
    base_model: str, form: str, refused: bool
) -> None:
    spec = RendererSpec(
        base_model, chat_template=f"{{{{ strftime_now('{form}') }}}}{NO_TOOLS}"
    )
    if refused:
        with pytest.raises(ConfigError, match=r"writes the time of day, strftime_now\('"):
            spec.build()
    else:
        assert spec.build().family == "generic"


def test_a_template_that_leaves_out_what_is_said_is_refused(base_model: str) -> None:
    template = NO_TOOLS.replace(
        "{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}"
    )
    with pytest.raises(ConfigError, match="leaves out what is said"):
        RendererSpec(base_model, chat_template=template).build()


def test_a_template_that_tears_a_message_apart_is_refused_when_it_does(
    base_model: str,
) -> None:
    template = NO_TOOLS.replace("{{ m.content }}", "{{ m.content[:40] }}")
    renderer = RendererSpec(base_model, chat_template=template).build()
    with pytest.raises(DataError, match="cuts or reorders the content of a message"):
        renderer.prompt(({"role": "user", "content": "x" * 60},))


@pytest.mark.parametrize(
    "fault", ["{{ raise_exception('no more') }}", "{{ 1 + 'a' }}", "{% endif %}"]
)
def test_a_template_that_fails(base_model: str, fault: str) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot render a conversation of user.* turns.*fix it"
    ):
        RendererSpec(
            base_model, chat_template=fault + real_template("qwen3_instruct")
        ).build()


@pytest.mark.parametrize(
    "fault", ["{{ raise_exception('no tools here') }}", "{{ 1 + 'a' }}"]
)
def test_a_template_that_fails_on_tools_is_not_of_the_family(
    base_model: str, fault: str
) -> None:
    template = "{%- if tools %}" + fault + "{%- endif %}" + real_template("qwen3_instruct")
    with pytest.raises(
        ConfigError, match=r"cannot render a conversation of user.* turns with tools"
    ):
        RendererSpec(base_model, family="chatml", chat_template=template).build()


def test_a_tokenizer_whose_markers_swallow_white_space(tmp_path: Path) -> None:
    from tokenizers import AddedToken

    tokenizer = trained_tokenizer(ORDINARY["qwen3"], special=SPECIAL[:2])
    tokenizer.add_tokens(
        [AddedToken("<|im_end|>", rstrip=True, normalized=False)], special_tokens=True
    )
    folder = saved(tokenizer, tmp_path, real_template("qwen3_instruct"))
    with pytest.raises(DataError, match="strip white space"):
        RendererSpec(folder).build()


def test_an_unknown_family(base_model: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"RendererSpec\.family must be auto, chatml, llama, .*, generic, got 'lama'",
    ):
        RendererSpec(base_model, family="lama").build()


def test_a_family_whose_signs_are_missing(model_folder: Folder) -> None:
    with pytest.raises(
        ConfigError,
        match=r"RendererSpec\.family: llama needs <\|start_header_id\|>, .* in the chat template",
    ):
        RendererSpec(str(model_folder("qwen3")), family="llama").build()


def test_plain_chatml_is_not_rendered_by_another_family(base_model: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"chat_template: chatml is rendered by RendererSpec\.family: chatml, got 'glm'",
    ):
        RendererSpec(base_model, family="glm", chat_template="chatml").build()
