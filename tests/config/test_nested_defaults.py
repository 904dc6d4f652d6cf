"""Nested sections: keys that are given stand beside the owner's defaults for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.algorithms import VAPOSettings, make_algorithm
from agentrl.config import load_config
from agentrl.types.section import Section, plain_section


def nested() -> Iterator[tuple[type[Section], str, type[Section]]]:
    """Every section that a section has by default: owner, field, class. Loading a configuration
    has imported them all."""
    kinds = [Section]
    while kinds:
        owner = kinds.pop()
        kinds += owner.__subclasses__()
        for name, field in owner.model_fields.items():
            inner = plain_section(field.annotation)
            if inner is not None and not field.is_required():
                yield owner, name, inner


def test_the_defaults_of_a_nested_section_are_those_of_its_class() -> None:
    # else a mapping with one key would drop what the owner says of the others
    found = list(nested())
    assert len(found) > 40
    for owner, name, inner in found:
        default = owner.model_fields[name].get_default(call_default_factory=True)
        assert default == inner(), f"{owner.__name__}.{name}"


def given(how: str) -> Any:
    if how == "constructed":
        return VAPOSettings(gae={"discount": 0.99}).gae
    if how == "replaced":
        return VAPOSettings().replace(gae={"discount": 0.99}).gae
    tree = {
        "algorithm": {"name": "vapo"},
        "critic": {"stage": "model"},
        "train": {"steps": 60},
    }
    tree |= {"model": {"path": "m"}, "data": {"train": "t.py:f"}}
    if how == "dotted":
        config = load_config(tree, ["algorithm.gae.discount=0.99"])
    else:
        tree["algorithm"]["gae"] = {"discount": 0.99}
        config = load_config(tree)
    settings = config.resolved_stages()[0].algorithm.checked
    assert isinstance(settings, VAPOSettings)
    return settings.gae


@pytest.mark.parametrize("how", ["constructed", "replaced", "written", "dotted"])
def test_one_key_of_vapos_gae_leaves_the_others(how: str) -> None:
    assert given(how).model_dump() == {
        "discount": 0.99,
        "lam": 0.95,
        "lam_value": 1.0,
        "length_alpha": 0.05,
        "bootstrap": "infrastructure",
    }


def test_vapo_with_one_key_is_vapo() -> None:
    keywords = make_algorithm("vapo", {"gae": {"bootstrap": "none"}}).advantages.keywords
    assert (keywords["lam_value"], keywords["length_alpha"]) == (1.0, 0.05)
    assert keywords["bootstrap"] == "none"
