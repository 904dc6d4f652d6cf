"""The pages about settings agree with the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from agentrl.algorithms import ALGORITHMS
from agentrl.config.document import parse_document
from agentrl.config.foreign_keys import TRL, VERL
from agentrl.config.load import load_config
from agentrl.config.schema import RunConfig
from agentrl.config.stage_merge import merge
from agentrl.config.train_sections import CriticConfig
from agentrl.errors import ConfigError
from tests.config.settings_reference import settings_reference

DOCS = Path(__file__).resolve().parents[2] / "docs"


def mapped(page: str) -> Iterator[tuple[str, str]]:
    """The rows of a page's table whose second column is a setting of ours: theirs, ours."""
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and (ours := re.fullmatch(r"`(\S+?=.+)`", cells[1])):
            yield cells[0].strip("`"), ours[1]


def names_on(page: str) -> dict[str, str]:
    """The settings of a page's first table: theirs, and the first of ours for each."""
    found: dict[str, str] = {}
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        said = (
            cells[2]
            if len(cells) == 3 and cells[1] == "—"
            else cells[min(1, len(cells) - 1)]
        )
        if len(cells) == 3 and (ours := re.match(r"`([\w.]+)=", said)):
            own = re.sub(r"^(eval\.sets|reward\.functions)\..*", r"\1", ours[1])
            for theirs in re.findall(r"([a-z][\w.]*)=", cells[0]):
                found.setdefault(theirs, own)
    return {theirs: own for theirs, own in found.items() if theirs != own}


def test_a_message_knows_the_names_of_the_pages() -> None:
    assert names_on("coming-from-verl.md") == VERL
    assert names_on("coming-from-trl.md") == TRL


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "actor_rollout_ref.rollout.n=5",
            "unknown key actor_rollout_ref; verl's actor_rollout_ref.rollout.n is "
            "rollout.group_size here (docs/coming-from-verl.md)",
        ),
        (
            "data.train_batch_size=256",
            "verl's data.train_batch_size is train.batch_prompts here",
        ),
        (
            "algorithm.adv_estimator=grpo",
            "verl's algorithm.adv_estimator is algorithm.name here",
        ),
        ("rollout.num_generations=4", "TRL's num_generations is rollout.group_size here"),
        ("num_generations=4", "TRL's num_generations is rollout.group_size here"),
        ("train.learning_rate=1e-5", "TRL's learning_rate is optim.lr here"),
    ],
)
def test_a_key_of_verl_or_trl_is_answered_with_ours(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config({}, [override]).resolved_stages()


MAPPED = [
    (page, *row)
    for page in ("coming-from-verl.md", "coming-from-trl.md")
    for row in mapped(page)
]


@pytest.mark.parametrize("page", ["coming-from-verl.md", "coming-from-trl.md"])
def test_all_settings_of_a_page_load_together(page: str) -> None:
    (stage,) = load_config({}, [ours for _, ours in mapped(page)]).resolved_stages()
    assert stage.eval.sets


@pytest.mark.parametrize(
    ("page", "theirs", "ours"),
    [pytest.param(*row, id=f"{row[0]}:{row[1]}") for row in MAPPED],
)
def test_every_mapped_setting_arrives_where_the_page_says(
    page: str, theirs: str, ours: str
) -> None:
    key, _, value = ours.partition("=")
    others = [
        row[2] for row in MAPPED if row[0] == page and row[2].partition("=")[0] != key
    ]
    (stage,) = load_config({}, [*others, ours]).resolved_stages()
    found = stage.model_dump()
    for part in key.split("."):
        found = found[int(part)] if part.isdecimal() else found[part]
    wanted = YAML(typ="safe", pure=True).load(value)
    assert _shortened(found) == wanted


def _shortened(found: object) -> object:
    """What a short form was long for."""
    if isinstance(found, dict) and ("data" in found or "function" in found):
        return found.get("data", found.get("function"))
    return [_shortened(entry) for entry in found] if isinstance(found, tuple) else found


@pytest.mark.parametrize("page", ["coming-from-verl.md", "coming-from-trl.md"])
def test_our_keys_in_the_tables_of_names_exist(page: str) -> None:
    keys = set()
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").split("|")
        if len(cells) == 2:
            keys |= set(
                re.findall(r"`((?:algorithm|critic)\.[a-z_.]*[a-z_])[:`]", cells[1])
            )
    assert len(keys) > 5
    sections: list[type[BaseModel]] = [entry.settings for entry in ALGORITHMS.values()]
    unknown = []
    for key in sorted(keys):
        root, *parts = key.split(".")
        own = [CriticConfig] if root == "critic" else sections
        if parts != ["name"] and not any(has_key(section, parts) for section in own):
            unknown.append(key)
    assert not unknown


def has_key(section: type[BaseModel], parts: list[str]) -> bool:
    field = section.model_fields.get(parts[0])
    if field is None or len(parts) == 1:
        return field is not None
    return isinstance(field.annotation, type) and has_key(field.annotation, parts[1:])


@pytest.mark.parametrize("page", ["coming-from-verl.md", "coming-from-trl.md"])
def test_a_page_maps_the_quick_start(page: str) -> None:
    assert len(list(mapped(page))) > 35


def test_the_reference_is_that_of_the_schema() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    _, _, written = page.partition("says how to renew it -->\n\n")
    # to renew: replace what follows the comment by
    # print(tests.config.settings_reference.settings_reference())
    assert written == settings_reference()


def test_the_smallest_file_of_the_page_loads(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```yaml\n(.*?)```",
        (DOCS / "configuration.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    assert len(blocks) == 2
    for block in blocks:
        path = tmp_path / "config.yaml"
        path.write_text(block)
        assert load_config(path).resolved_stages()


# What the text around the blocks of a page says.
AROUND: dict[str, dict[str, Any]] = {
    "cluster.md": {
        "algorithm": {"name": "ppo", "kl_coef": 0.01},
        "critic": {"stage": "model"},
        "rollout": {"engine": "sglang", "sglang": {"tp_size": 2}},
    },
    "sglang.md": {"rollout": {"engine": "sglang"}},
    "training.md": {"run": {"base_dir": str(DOCS.parent / "examples" / "safety")}},
}
BLOCKS = [
    pytest.param(
        page.name,
        tree,
        # Its role of a user's own imports torch.
        marks=[pytest.mark.slow] if page.name == "training.md" else [],
        id=f"{page.name}:{number}",
    )
    for page in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(
        re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    )
    if (tree := parse_document(block, page.name).tree).keys()
    <= RunConfig.model_fields.keys()
]


@pytest.mark.parametrize(("page", "tree"), BLOCKS)
def test_a_block_of_sections_on_a_page_loads(page: str, tree: dict[str, Any]) -> None:
    base = {"model": {"build": "model.py:build"}, "data": {"train": "task.py:tasks"}}
    assert load_config(merge(AROUND.get(page, {}), {**base, **tree})).resolved_stages()
