"""Key names: an error below ``run`` names a field, and a command line the key."""

from __future__ import annotations

import pickle

import pytest

from agentrl.config.key_names import _DERIVED, naming_keys, with_keys
from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError
from agentrl.sandbox import DockerSettings, Limits, SandboxSpec


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("OptimSpec.lr", "optim.lr"),
        ("Limits.wall_s", "sandbox.limits.wall_s"),
        ("DockerSettings.cpus", "sandbox.docker.cpus"),
        ("NetworkSpec.allow", "sandbox.network.allow"),
        ("GRPOSettings.clip_low", "algorithm.clip_low"),
        ("RolloutCorrection.cap", "algorithm.rollout_correction.cap"),
        ("RendererSpec.family", "model.renderer"),
        ("ReferenceSpec.model_path", "reference.path"),
    ],
)
def test_a_field_has_its_key(field: str, key: str) -> None:
    assert (
        with_keys(f"{field}=3 is wrong (see Path.name)")
        == f"{key}=3 is wrong (see Path.name)"
    )


def test_every_derived_key_exists() -> None:
    for key in _DERIVED.values():
        section = RunConfig
        *outer, last = key.split(".")
        for part in outer:
            section = section.model_fields[part].annotation  # type: ignore[assignment]
        assert last in section.model_fields, key


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Limits(open_files=3), "sandbox.limits.open_files=3 is below the 16"),
        (
            lambda: DockerSettings(host="ssh://x"),
            "sandbox.docker.host must begin with unix://",
        ),
        (lambda: SandboxSpec("dokcer"), "sandbox.backend='dokcer' does not exist"),
        (
            lambda: SandboxSpec(network=("10.0.0.5",)),
            "sandbox.network.allow: '10.0.0.5' is an ",
        ),
    ],
)
def test_an_error_of_another_process_is_shown_with_the_key(make: object, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()  # type: ignore[operator]
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.fields
    assert with_keys(str(error)).startswith(key)


def test_a_run_gives_its_errors_the_keys() -> None:
    shown = r"^sandbox\.limits\.open_files=3 is below"
    with pytest.raises(ConfigError, match=shown) as caught, naming_keys():
        Limits(open_files=3)
    assert caught.value.fields == ("Limits.open_files",)
