"""A uid for each sandbox: from a block that no other host on this machine holds, given back with
its host.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from agentrl.sandbox import BackendReport, Limits
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from agentrl.sandbox.host.confine import uids

WHO = "import os\nprint(os.getuid(), os.getgid(), os.getgroups())"


@pytest.fixture
def own_uid(landlock: BackendReport) -> None:
    if "user" not in landlock.held:
        pytest.skip("a uid for each sandbox is missing here: not root")


async def who(sandbox: ForkedSandbox) -> tuple[int, int, bytes]:
    uid, gid, groups = (await sandbox.run(WHO)).stdout.split(maxsplit=2)
    return int(uid), int(gid), groups.strip()


async def test_sandboxes_of_one_host_have_neighbouring_uids_and_no_groups(
    own_uid: None,
) -> None:
    server = ForkServer(HostSettings(confine=True))
    sandboxes = [ForkedSandbox(lambda: server, Limits()) for _ in range(3)]
    seen = [await who(sandbox) for sandbox in sandboxes]
    first = seen[0][0]
    assert seen == [(first + n, first + n, b"[]") for n in range(3)]
    for sandbox in sandboxes:
        await sandbox.close()
    await asyncio.to_thread(server.close)


async def test_a_uid_rests_before_another_sandbox_gets_it(own_uid: None) -> None:
    server = ForkServer(HostSettings(confine=True))
    seen = []
    for _ in range(3):
        async with ForkedSandbox(lambda: server, Limits()) as sandbox:
            seen.append((await who(sandbox))[0])
    assert len(set(seen)) == 3
    await asyncio.to_thread(server.close)


def test_a_block_is_held_until_its_socket_is_closed(
    own_uid: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the same block is drawn each time
    monkeypatch.setattr(os, "urandom", lambda count: b"\x05" * count)
    taken = uids.reserve()
    assert taken is not None
    first, reservation = taken
    assert first >= uids.BLOCK
    assert uids.reserve() is None
    reservation.close()
    again = uids.reserve()
    assert again is not None
    assert again[0] == first
    again[1].close()
