from __future__ import annotations

import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, MachineError
from agentrl.sandbox import BackendReport, Limits, SandboxSpec, backends
from agentrl.sandbox import sandbox_spec as spec_module
from agentrl.sandbox.guarantees import LEVELS, parse_require


def test_a_spec_travels_by_pickle() -> None:
    spec = SandboxSpec(limits=Limits(wall_s=3), preload_modules=("json",))
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("backend", ["Docker", "bwrap", "Landlock", ""])
def test_a_backend_that_does_not_exist_is_a_config_error_that_says_which_do(
    backend: str,
) -> None:
    with pytest.raises(
        ConfigError, match=r"use one of auto, .*landlock, .*unsafe, or module:function"
    ):
        SandboxSpec(backend)


def test_unsafe_contradicts_a_requirement() -> None:
    with pytest.raises(ConfigError, match=r"SandboxSpec\.require='isolated' contradicts"):
        SandboxSpec("unsafe", require="isolated")


@pytest.mark.parametrize(
    ("word", "hint"), [("isolate", "did you mean 'isolated'"), ("gpu", "use one of none")]
)
def test_an_unknown_requirement_says_what_is_known(word: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        SandboxSpec(require=word)


def test_requirements_add_up() -> None:
    assert parse_require(("files", "network", "none")) == {"files", "network"}


OWN_BACKEND = """
from agentrl.sandbox.forkserver.local import unsafe

def boxes(spec):
    return unsafe(spec)

broken = 3
"""


async def test_a_backend_of_ones_own_is_named_by_module_and_function(
    tmp_path: Path, landlock: BackendReport
) -> None:
    (tmp_path / "own.py").write_text(OWN_BACKEND)
    spec = SandboxSpec(f"{tmp_path}/own.py:boxes", require="none")
    assert spec.check().backend == spec.backend
    assert "network" not in spec.check().held  # measured, not believed
    async with spec.build() as sandbox:
        assert (await sandbox.run("print(1)")).stdout == b"1\n"


def test_a_backend_of_ones_own_is_held_to_what_is_required(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_BACKEND)
    with pytest.raises(MachineError, match=r"own\.py:boxes does not give .*network"):
        SandboxSpec(f"{tmp_path}/own.py:boxes").check()


def test_a_backend_of_ones_own_must_be_a_function(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_BACKEND)
    with pytest.raises(
        ConfigError, match=r"must be a function or class that takes \(SandboxSpec\)"
    ):
        SandboxSpec(f"{tmp_path}/own.py:broken", require="none").check()


def test_auto_takes_the_backend_that_holds_most(
    monkeypatch: pytest.MonkeyPatch, landlock: BackendReport
) -> None:
    weaker_first = {
        "weak": backends.Backend("agentrl.sandbox.forkserver.local:unsafe"),
        "landlock": backends.BACKENDS["landlock"],
    }
    monkeypatch.setattr(backends, "BACKENDS", weaker_first)
    monkeypatch.setattr(spec_module, "BACKENDS", weaker_first)
    monkeypatch.setattr(spec_module, "_chosen", {})
    assert SandboxSpec(require="none").check().backend == "landlock"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_starting", 0),
        ("recycle_after", -1),
        ("start_timeout_s", 0.0),
        ("start_timeout_s", float("inf")),
        ("max_lifetime_s", float("nan")),
    ],
)
def test_a_number_out_of_its_range_names_itself(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"SandboxSpec\.{setting} must be"):
        SandboxSpec(**{setting: value})


def test_auto_takes_one_that_isolates_and_says_what_it_guarantees(
    landlock: BackendReport,
) -> None:
    report = SandboxSpec().check()
    assert LEVELS["isolated"] | landlock.held <= report.held
    assert str(report).startswith(
        f"{report.backend}: guarantees files, secrets, network, processes, kernel, memory"
    )


def test_what_a_backend_does_not_give_is_refused_in_one_line_with_the_mend(
    landlock: BackendReport,
) -> None:
    with pytest.raises(MachineError) as refusal:
        SandboxSpec("landlock", require=("isolated", "disk")).check()
    message = str(refusal.value)
    assert "landlock does not give disk here" in message
    assert message.endswith(
        "; set SandboxSpec.backend=auto, which tries all others, or require less by "
        "SandboxSpec.require"
    )
    assert "\n" not in message
    assert refusal.value.exit_code == 4


def test_off_linux_the_mend_is_a_container_or_unsafe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(backends, "_reports", {})
    monkeypatch.setattr(spec_module, "_chosen", {})
    with pytest.raises(
        MachineError,
        match=r"needs Linux, this is darwin; .*docker run.*SandboxSpec\.backend=unsafe",
    ):
        SandboxSpec().check()


def test_on_linux_the_mend_is_what_each_backend_lacks_and_never_unsafe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_landlock = {
        name: row
        for name, row in backends.BACKENDS.items()
        if name in ("bubblewrap", "docker")
    }
    for module in (backends, spec_module):
        monkeypatch.setattr(module, "BACKENDS", without_landlock)
    monkeypatch.setattr(backends, "_reports", {})
    monkeypatch.setattr(spec_module, "_chosen", {})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(MachineError) as refusal:
        SandboxSpec().check()
    message = str(refusal.value)
    commands = "`apt install bubblewrap`, `dnf install bubblewrap`"
    assert f"install the system's package bubblewrap ({commands})" in message
    assert "docker cannot be used: no container engine answers" in message
    assert message.endswith("; one of them is enough")
    assert "unsafe" not in message
    assert "docker run" not in message  # a container has the kernel of its host


def test_a_backend_that_is_named_and_not_there_may_be_left_to_auto(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backends, "_reports", {})
    monkeypatch.setattr(spec_module, "_chosen", {})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MachineError, match=r"apt install bubblewrap.*; or set SandboxSpec\.backend=auto"
    ) as refusal:
        SandboxSpec("bubblewrap").check()
    assert "unsafe" not in str(refusal.value)


def test_unsafe_is_never_taken_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(backends, "_reports", {})
    monkeypatch.setattr(spec_module, "_chosen", {})
    with pytest.raises(MachineError):
        SandboxSpec(require="files").check()


def test_unsafe_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    spec_module._warn_of_unsafe.cache_clear()
    with caplog.at_level(logging.WARNING, "agentrl.sandbox"):
        for _ in range(3):
            SandboxSpec("unsafe").check()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_unsafe_guarantees_nothing() -> None:
    assert SandboxSpec("unsafe").check().held == frozenset()


async def test_a_preloaded_module_is_there_before_the_code_imports_it(
    landlock: BackendReport,
) -> None:
    spec = SandboxSpec(preload_modules=("statistics",))
    async with spec.build() as sandbox:
        result = await sandbox.run("import sys\nprint('statistics' in sys.modules)")
    assert result.stdout == b"True\n"


async def test_the_code_does_not_find_the_modules_of_the_host(spec: SandboxSpec) -> None:
    async with spec.build() as sandbox:
        result = await sandbox.run(
            "import sys\nprint([name for name in sys.modules if name.split('.')[0] == 'host'])"
        )
    assert result.stdout == b"[]\n"


def test_a_module_that_cannot_be_preloaded_is_a_config_error(
    landlock: BackendReport,
) -> None:
    with pytest.raises(ConfigError, match=r"SandboxSpec\.preload_modules: no_such_module"):
        SandboxSpec(preload_modules=("no_such_module",)).check()


@pytest.mark.parametrize(("allowed", "status"), [(True, "ok"), (False, "error")])
async def test_installed_packages_are_importable_where_allowed(
    allowed: bool, status: str, landlock: BackendReport
) -> None:
    async with SandboxSpec(site_packages=allowed).build() as sandbox:
        result = await sandbox.run(
            "import numpy\nprint(numpy.arange(3).sum())", timeout_s=60
        )
    assert result.status == status, result


async def test_numpy_draws_other_numbers_in_every_run(landlock: BackendReport) -> None:
    spec = SandboxSpec(site_packages=True, preload_modules=("numpy", "numpy.random"))
    async with spec.build() as sandbox:
        drawn = [
            await sandbox.run("import numpy\nprint(numpy.random.rand())", timeout_s=60)
            for _ in range(2)
        ]
    assert drawn[0].status == drawn[1].status == "ok", drawn
    assert drawn[0].stdout != drawn[1].stdout


def test_a_resolved_spec_names_the_backend_that_was_chosen(landlock: BackendReport) -> None:
    spec = SandboxSpec()
    resolved = spec.resolved()
    assert resolved.backend == spec.check().backend != "auto"
    assert resolved.resolved() == resolved


def test_a_probed_backend_leaves_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "agentrl.sandbox"):
        backends.report_on("unsafe", object(), proxied=False)
    (record,) = caplog.records
    assert (vars(record)["event"], vars(record)["backend"]) == ("sandbox_probed", "unsafe")
