"""Who may see /debug/state, by the real API server: the bearer's own rights decide, never those of our certificate."""

import asyncio
from pathlib import Path

import msgspec

from fractile.kube.credentials import Credentials, load
from fractile.kube.review import May, Reviewer
from fractile.wire.output.debug_state import PATH
from tests.contract.kubectl import Kubectl
from tests.contract.real_apiserver import TOKEN

NOBODY = "weak"  # the token of a user without any right


def as_administrator(kubectl: Kubectl, folder: Path) -> Credentials:
    """By certificate, as the programs of a local cluster are known."""
    keys = kubectl.server.ca.parent
    config = {
        "current-context": "c",
        "clusters": [
            {"name": "c", "cluster": {"server": kubectl.server.url, "certificate-authority": str(kubectl.server.ca)}}
        ],
        "users": [
            {
                "name": "u",
                "user": {"client-certificate": str(keys / "admin.pem"), "client-key": str(keys / "admin.key")},
            }
        ],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    file = folder / "kubeconfig"
    file.write_bytes(msgspec.json.encode(config))
    return load(file)


async def test_the_role_opens_it_and_nothing_but_the_bearers_rights_count(kubectl: Kubectl, tmp_path: Path) -> None:
    access = as_administrator(kubectl, tmp_path)
    reviewer = Reviewer(access)
    assert await reviewer.may(TOKEN, path=PATH) is May.YES  # of a cluster-admin
    assert await reviewer.may("forged", path=PATH) is May.STRANGER
    assert await reviewer.may(NOBODY, path=PATH) is May.NO

    bound = ("create", "clusterrolebinding", "debug-test", "--clusterrole=fractile:debug", "--user=nobody")
    await asyncio.to_thread(kubectl, *bound)
    try:
        async with asyncio.timeout(20):
            while await Reviewer(access).may(NOBODY, path=PATH) is not May.YES:  # noqa: ASYNC110 - RBAC's cache
                await asyncio.sleep(0.1)
        assert await Reviewer(access).may(NOBODY, path="/debug/other") is May.NO
        assert await Reviewer(access).may(NOBODY, path=PATH, verb="post") is May.NO
    finally:
        await asyncio.to_thread(kubectl, "delete", "clusterrolebinding", "debug-test")
