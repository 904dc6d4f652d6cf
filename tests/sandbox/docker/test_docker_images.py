from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentrl.errors import MachineError
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.conformance import CHECKS, check_sandbox
from agentrl.sandbox.docker import DockerSettings, bundle
from agentrl.sandbox.docker.images import Prepared, prepare
from agentrl.sandbox.docker.settings import LOCAL_PYTHON
from agentrl.sandbox.forkserver.hosts import close_servers

pytestmark = pytest.mark.docker

NO_PYTHON = "agentrl-test:no-python"
OLD_PYTHON = "agentrl-test:old-python"


def root_without_python() -> bytes:
    """A root file system with a shell and what it is linked to, from this machine."""
    programs = ["/bin/sh", "/bin/cat", "/bin/ls"]
    paths = [*programs, *bundle._libraries(programs)]
    links = {
        top: Path(f"/{top}").readlink().as_posix()
        for top in ("bin", "lib", "lib64")
        if Path(f"/{top}").is_symlink()
    }
    files = {
        "opt/tool/greeting": (b"from the image\n", 0o644),
        "etc/shadow": (b"root:*:1::::::\n", 0o600),
    }
    return bundle._tar(
        {bundle._canonical(path): path for path in paths},
        links,
        files,
        ("tmp", "proc", "sys", "dev"),
    )


def import_image(
    client: docker.DockerClient, data: bytes, name: str, *changes: str
) -> None:
    said = client.api.import_image_from_data(data, repository=name, changes=list(changes))
    assert "error" not in said


@pytest.fixture
def no_python(client: docker.DockerClient) -> Iterator[str]:
    import_image(client, root_without_python(), NO_PYTHON, "ENV TOOL_HOME=/opt/tool")
    yield NO_PYTHON
    forget(client, NO_PYTHON)


def forget(client: docker.DockerClient, name: str) -> None:
    """Remove an image, and what was prepared of it."""
    close_servers()
    own_id = client.api.inspect_image(name)["Id"]
    for image in client.api.images(filters={"label": f"agentrl.sandbox.graft-of={own_id}"}):
        remove_image(client, image["Id"])
    remove_image(client, name)


def remove_image(client: docker.DockerClient, name: str) -> None:
    """Remove an image whose last container may be on its way out."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client.api.remove_image(name, force=True)
            return
        except docker.errors.APIError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_missing_image_is_named_with_the_command_that_brings_it(
    settings: DockerSettings,
) -> None:
    spec = SandboxSpec("docker", image="agentrl-test:absent", docker=settings)
    with pytest.raises(
        MachineError,
        match="agentrl-test:absent is not there; type: `agentrl doctor --prepare agentrl-test:",
    ):
        spec.check()


def test_a_run_never_pulls(settings: DockerSettings, client: docker.DockerClient) -> None:
    with pytest.raises(MachineError):
        SandboxSpec("docker", image="busybox", docker=settings).check()
    with pytest.raises(docker.errors.ImageNotFound):
        client.api.inspect_image("busybox")


def test_an_image_that_cannot_be_pulled_is_named(settings: DockerSettings) -> None:
    with pytest.raises(MachineError, match=r"127\.0\.0\.1:9/none:1 could not be brought"):
        prepare(["127.0.0.1:9/none:1"], settings)


def test_what_is_there_stays(settings: DockerSettings) -> None:
    assert prepare([LOCAL_PYTHON], settings) == [
        Prepared(LOCAL_PYTHON, "present", grafted=False)
    ]


async def test_an_image_is_built_of_a_folder_and_found_by_it(
    settings: DockerSettings, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(
        f"FROM {LOCAL_PYTHON}\nCOPY greeting /opt/greeting\nENV TOOL=/opt\n"
    )
    (tmp_path / "greeting").write_text("hello\n")
    # an engine may hold what an earlier session built
    (tmp_path / "new").write_bytes(os.urandom(8))
    spec = SandboxSpec("docker", image=str(tmp_path), docker=settings)
    with pytest.raises(MachineError, match=f"type: `agentrl doctor --prepare {tmp_path}"):
        spec.check()
    assert prepare([str(tmp_path)], settings) == [
        Prepared(str(tmp_path), "built", grafted=False)
    ]
    async with spec.build() as sandbox:
        result = await sandbox.run(argv=["sh", "-c", "cat $TOOL/greeting"])
    assert (result.stdout, result.stderr) == (b"hello\n", b"")


def test_a_folder_that_changed_must_be_prepared_again(
    settings: DockerSettings, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {LOCAL_PYTHON}\n")
    prepare([str(tmp_path)], settings)
    (tmp_path / "more").write_bytes(os.urandom(8))
    with pytest.raises(MachineError, match="is not there"):
        SandboxSpec("docker", image=str(tmp_path), docker=settings).check()


def test_a_folder_without_a_dockerfile_is_named(
    settings: DockerSettings, tmp_path: Path
) -> None:
    with pytest.raises(MachineError, match="has no Dockerfile"):
        prepare([str(tmp_path)], settings)


def test_a_build_that_fails_says_what_it_printed(
    settings: DockerSettings, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {LOCAL_PYTHON}\nCOPY absent /absent\n")
    with pytest.raises(MachineError, match=r"could not be (built|brought): .*absent"):
        prepare([str(tmp_path)], settings)


def test_an_image_without_python_is_named_with_the_command_that_helps(
    settings: DockerSettings, no_python: str
) -> None:
    with pytest.raises(
        MachineError, match=f"has no python3.* type: `agentrl doctor --prepare {no_python}"
    ):
        SandboxSpec("docker", image=no_python, docker=settings).check()


async def test_any_program_of_an_image_without_python_runs_once_it_is_prepared(
    settings: DockerSettings, no_python: str
) -> None:
    assert prepare([no_python], settings) == [Prepared(no_python, "present", grafted=True)]
    spec = SandboxSpec("docker", image=no_python, docker=settings)
    async with spec.build() as sandbox:
        result = await sandbox.run(
            argv=["sh", "-c", "cat $TOOL_HOME/greeting; cat > made"],
            stdin=b"data",
            fetch=["made"],
        )
        assert (result.stdout, result.stderr, dict(result.files)) == (
            b"from the image\n",
            b"",
            {"made": b"data"},
        )
        assert (
            await sandbox.run("import ssl, ctypes, json; print(6 * 7)")
        ).stdout == b"42\n"
        assert (
            await sandbox.run(argv=["sh", "-c", "while :; do :; done"], timeout_s=0.3)
        ).status == "timeout"
    assert prepare([no_python], settings) == [Prepared(no_python, "present", grafted=True)]


@pytest.mark.wide
async def test_an_image_with_a_python_beside_it_passes_the_suite(
    settings: DockerSettings, no_python: str
) -> None:
    prepare([no_python], settings)
    spec = SandboxSpec("docker", image=no_python, docker=settings)
    # its own variables are seen
    checks = {check.name for check in CHECKS} - {"environment of the run"}
    results = await check_sandbox(spec.build, guarantees=spec.check().held, only=checks)
    assert [result for result in results if not result.passed] == []


async def test_a_program_of_an_image_without_any_library_runs_once_it_is_prepared(
    settings: DockerSettings, client: docker.DockerClient
) -> None:
    image = "agentrl-test:static"
    # linked to nothing
    import_image(client, bundle._tar({"sbin/alone": "/sbin/ldconfig"}, {}, {}, ()), image)
    try:
        assert prepare([image], settings) == [Prepared(image, "present", grafted=True)]
        async with SandboxSpec("docker", image=image, docker=settings).build() as sandbox:
            result = await sandbox.run(argv=["/sbin/alone", "--version"])
            assert result.stdout.startswith(b"ldconfig"), result
            assert (
                await sandbox.run("import ssl; print(ssl.OPENSSL_VERSION[:7])")
            ).stdout == b"OpenSSL\n"
    finally:
        forget(client, image)


def test_a_python_that_is_too_old_is_named(
    settings: DockerSettings, client: docker.DockerClient, tmp_path: Path
) -> None:
    trick = b"import sys\nsys.version_info = (3, 8, 1, 'final', 0)\n"
    where = [
        path
        for path in json.loads(
            python(client, "import json, sys; print(json.dumps(sys.path))")
        )
        if "." in path
    ]
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo(f"{where[0].lstrip('/')}/sitecustomize.py")
        entry.size = len(trick)
        tar.addfile(entry, io.BytesIO(trick))
    container = client.api.create_container(LOCAL_PYTHON, ["-"])
    try:
        client.api.put_archive(container, "/", layer.getvalue())
        client.api.commit(container, *OLD_PYTHON.split(":"))
        with pytest.raises(
            MachineError, match=r"has Python 3\.8, and .* needs Python 3\.10 or later"
        ):
            SandboxSpec("docker", image=OLD_PYTHON, docker=settings).check()
    finally:
        close_servers()
        client.api.remove_container(container, force=True)
        remove_image(client, OLD_PYTHON)


def python(client: docker.DockerClient, code: str) -> bytes:
    output: bytes = client.containers.run(
        LOCAL_PYTHON, ["python3", "-I", "-c", code], network_mode="none", remove=True
    )
    return output


def test_auto_considers_only_backends_with_images_for_an_image(spec: SandboxSpec) -> None:
    assert spec.replace(backend="auto").candidates() == ("docker",)
