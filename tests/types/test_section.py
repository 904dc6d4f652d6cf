"""Section: strict, frozen, picklable; a user of Python gets a ConfigError, and a file all its faults."""  # noqa: E501

from __future__ import annotations

import pickle
from typing import Literal, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from agentrl.errors import ConfigError, EngineError, ServerError, TrainingError
from agentrl.types.section import Count, Listed, Section, section_faults


class Inner(Section):
    low: Count = 1
    high: Count = 2

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise self.broken("low", f"={self.low} exceeds high={self.high}; lower it")
        return self


class Outer(Section):
    kind: Literal["near", "far"] = "near"
    inner: Inner = Field(default_factory=Inner)
    entries: Listed[Inner] = ()


def faults(tree: dict[str, object]) -> dict[tuple[str | int, ...], str]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(tree)
    return {fault.keys[0]: fault.message for fault in section_faults(caught.value, Outer)}


def test_all_faults_are_collected_each_with_its_key() -> None:
    tree = {"kind": "fra", "inner": {"low": 5}, "entries": [{"low": 0}], "kin": 1}
    assert faults(tree) == {
        ("kind",): "{key} must be 'near' or 'far', got 'fra'; did you mean 'far'?",
        ("inner", "low"): "Inner.low=5 exceeds high=2; lower it",
        ("entries", 0, "low"): "{key} must be at least 1, got 0",
        ("kin",): "unknown key {key}; did you mean kind?",
    }


def test_a_user_of_python_gets_a_config_error_with_the_fields() -> None:
    with pytest.raises(
        ConfigError, match=r"^Inner\.low=5 exceeds high=2; lower it$"
    ) as caught:
        Inner(low=5)
    assert caught.value.fields == ("Inner.low",)
    with pytest.raises(ConfigError) as caught:
        Outer(kind="fra", entries=[{"low": 0}])  # type: ignore[arg-type, list-item]
    assert caught.value.fields == ("Outer.kind", "Inner.low")
    assert "Inner.low must be at least 1, got 0" in str(caught.value)


def test_replace_checks_what_it_makes() -> None:
    assert Inner(low=1).replace(high=7) == Inner(low=1, high=7)
    with pytest.raises(
        ConfigError, match=r"Inner\.low=1 exceeds high=0|Inner\.high must be"
    ):
        Inner().replace(high=0)
    with pytest.raises(ConfigError, match=r"unknown key Inner\.hihg; did you mean high\?"):
        Inner().replace(hihg=3)


def test_a_section_is_a_value() -> None:
    section = Outer(inner=Inner(high=4), entries=(Inner(),))
    assert pickle.loads(pickle.dumps(section)) == section
    assert hash(section.replace()) == hash(section)
    with pytest.raises(ValidationError, match="frozen"):
        section.kind = "far"


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("Inner.low is wrong", fields=["Inner.low"]),
        EngineError("lost", retryable=False),
        ServerError("no", status=503, code="busy", retryable=False),
        TrainingError("died", rank=3, host="h", traceback_text="t"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_what_it_carries_in_another_process(error: Exception) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)
