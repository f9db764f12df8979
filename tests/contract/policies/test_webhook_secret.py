"""The Secret of the webhook's certificates is deleted: on the real API server, with the control plane's own rights."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from fractile.lab.cluster import objects
from tests.contract import real_apiserver
from tests.contract.kubectl import Kubectl
from tests.main.process import Running, control_plane, free_port

pytestmark = pytest.mark.long

Json = dict[str, Any]

SYSTEM = "fractile-system"
NAME = "fractile-webhook"
TEAM = "webhook-team"
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
TOKENS = "kubernetes.io/service-account-token"


def secret(name: str = NAME, *, namespace: str = SYSTEM, **fields: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, **fields}


def manifests(webhook: str, *names: str) -> list[Json]:
    return [d for d in yaml.safe_load_all(objects.manifests_for(webhook)) if d["metadata"]["name"] in names]


@pytest.fixture
def emptied(kubectl: Kubectl) -> Generator[Kubectl]:
    """The Secret, the Lease and the rights are as the manifests make them, before and after."""

    def reset() -> None:
        kubectl("-n", SYSTEM, "delete", "secret", NAME, "--ignore-not-found")
        kubectl("-n", SYSTEM, "delete", "lease", "fractile-control-plane", "--ignore-not-found")
        for one in manifests("https://127.0.0.1:1", "fractile", NAME, "fractile:webhook", "fractile-control-plane"):
            kubectl.apply(one)

    reset()
    yield kubectl
    reset()


# ── what the right to make it can be used for ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def thief(emptied: Kubectl) -> Kubectl:
    """Somebody with the control plane's token, after the Secret was deleted."""
    emptied("-n", SYSTEM, "delete", "secret", NAME)
    return emptied.with_token(real_apiserver.CONTROL_PLANE)


def applied(who: Kubectl, thing: Json) -> str:
    """ "" when it was taken, else why not."""
    return who.tell("apply", "--server-side", "--field-manager=fractile", "-f", "-", stdin=thing).stderr


def test_the_control_plane_makes_this_one_secret_by_server_side_apply(thief: Kubectl) -> None:
    assert "cannot create resource" in thief.tell("create", "-f", "-", stdin=secret()).stderr
    assert applied(thief, secret(type="Opaque", data={"tls.crt": "eA=="})) == ""
    assert json.loads(thief("-n", SYSTEM, "get", "secret", NAME, "-o", "json"))["data"] == {"tls.crt": "eA=="}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(secret("fractile-extender-tls"), id="another one"),
        pytest.param(secret(namespace="default"), id="in another namespace"),
    ],
)
def test_the_control_plane_makes_no_other_secret(thief: Kubectl, other: Json) -> None:
    assert "cannot patch resource" in applied(thief, other)


def test_the_control_plane_deletes_and_lists_no_secret(thief: Kubectl) -> None:
    assert applied(thief, secret()) == ""
    assert "cannot delete" in thief.tell("-n", SYSTEM, "delete", "secret", NAME).stderr
    assert "cannot list" in thief.tell("-n", SYSTEM, "get", "secrets").stderr


def test_nobody_makes_the_secret_immutable(thief: Kubectl) -> None:
    """Else no certificate in it could be renewed until somebody deletes it."""
    assert "must not be immutable" in applied(thief, secret() | {"immutable": True})
    assert applied(thief, secret()) == ""
    assert "must not be immutable" in applied(thief, secret() | {"immutable": True})


def test_whoever_has_the_control_planes_token_is_given_no_token_of_another_account(thief: Kubectl) -> None:
    """The controller of tokens would fill such a Secret, and the control plane may read it."""
    wanted = secret(type=TOKENS)
    wanted["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "fractile-agent"}
    assert "is of type Opaque" in applied(thief, wanted)
    assert applied(thief, secret()) == "", "the type that a Secret without one has"
    assert "immutable" in applied_by_force(thief, wanted)


def applied_by_force(who: Kubectl, thing: Json) -> str:
    return who.tell("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=thing).stderr


# ── what becomes of the webhook ──────────────────────────────────────────────────────────────────────────────────────


class Webhook:
    """Replicas of the control plane, which the API server asks at one port: that of who leads."""

    def __init__(self, root: Kubectl, folder: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self._folder = folder
        self._stack = stack
        self._port = free_port()
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_bytes(real_apiserver.kubeconfig_of(root.server, real_apiserver.CONTROL_PLANE))
        for one in manifests(f"https://127.0.0.1:{self._port}", "fractile"):
            root.apply(one)
        root.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})

    async def replica(self) -> Running:
        webhook = (f"--webhook=127.0.0.1:{self._port}", "--webhook-names=127.0.0.1")
        lease = (f"--lease={SYSTEM}/fractile-control-plane", "--lease-seconds=3")
        made = control_plane(self._kubeconfig, self._folder, *lease, *webhook)
        return await self._stack.enter_async_context(made)

    async def asked(self) -> bool:
        """Whether the API server has the webhook fill in what a pod leaves out."""
        container = {"name": "c", "image": "i", "resources": {"limits": {MEMORY: "1000"}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
        args = ("-n", TEAM, "create", "--dry-run=server", "-o", "json", "-f", "-")
        made = json.loads(await asyncio.to_thread(self.root, *args, stdin=pod))
        return GPU in made["spec"]["containers"][0]["resources"]["limits"]

    def certificate(self) -> str:
        """The one in the Secret; "": there is no Secret."""
        args = ("-n", SYSTEM, "get", "secret", NAME, "--ignore-not-found", "-o", "jsonpath={.data.tls\\.crt}")
        return self.root(*args)

    def delete(self) -> None:
        self.root("-n", SYSTEM, "delete", "secret", NAME)


async def until(condition: Callable[[], Awaitable[object]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.fixture
async def webhook(emptied: Kubectl, tmp_path: Path) -> AsyncGenerator[Webhook]:
    async with AsyncExitStack() as stack:
        yield Webhook(emptied, tmp_path, stack)


async def test_a_leader_makes_the_secret_again_and_the_api_server_notices_nothing(webhook: Webhook) -> None:
    first = await webhook.replica()
    await first.ready()
    await until(webhook.asked, 30)
    before = webhook.certificate()
    webhook.delete()

    async def there() -> bool:
        assert await webhook.asked()
        return bool(await asyncio.to_thread(webhook.certificate))

    await until(there, 30)
    assert webhook.certificate() == before


async def test_who_leads_next_makes_the_secret_again_and_is_asked_within_seconds(webhook: Webhook) -> None:
    first = await webhook.replica()
    await first.ready()
    await until(webhook.asked, 30)
    before = webhook.certificate()
    second = await webhook.replica()
    first.process.kill()
    webhook.delete()
    assert not await webhook.asked(), "nobody is there: a pod waits for nobody"
    await second.ready()
    await until(webhook.asked, 10)
    assert webhook.certificate() not in ("", before)
    assert "certificates created again" in second.log.read_text()


async def test_with_roles_of_an_earlier_version_it_leads_and_says_what_is_missing_until_the_secret_is_there(
    webhook: Webhook,
) -> None:
    (role,) = [d for d in manifests("https://x", "fractile:webhook") if d["kind"] == "Role"]
    role["rules"][0]["verbs"] = ["get", "update"]
    webhook.root.apply(role)
    webhook.delete()
    alone = await webhook.replica()
    await alone.ready()

    async def told() -> bool:
        args = ("-n", SYSTEM, "get", "events", "-o", "json")
        events = json.loads(await asyncio.to_thread(webhook.root, *args))["items"]
        return any(e["reason"] == "WebhookWithoutCertificate" for e in events)

    await until(told, 20)
    (line,) = re.findall(r"^.* ERROR .*$", alone.log.read_text(), re.MULTILINE)
    assert "webhook without a certificate" in line
    assert "fractile_control_plane_webhook_certificate 0\n" in await metrics(alone)
    assert not await webhook.asked()
    webhook.root("-n", SYSTEM, "create", "secret", "generic", NAME)
    await until(webhook.asked, 10)

    async def certified() -> bool:
        return "fractile_control_plane_webhook_certificate 1\n" in await metrics(alone)

    await until(certified, 5)


async def metrics(running: Running) -> str:
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False) as http:
        return (await http.get("/metrics")).text
