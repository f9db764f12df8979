"""Certificates in a Secret or in files, and the bundle in the configurations, against an API server at the wire."""

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from fractile.admission.certificates import Material, renewed
from fractile.admission.configuration import MUTATING, SETTLED, VALIDATING, Configuration
from fractile.admission.keeper import FileKeeper, SecretKeeper, ServedCertificate
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import ObjectRef
from tests.admission.world import opened
from tests.builders import Clock
from tests.fakes.apiserver import FakeApiServer, Fault

Json = dict[str, Any]

SECRET = paths.secret("fractile-system", "fractile-webhook")
NAMES = ("localhost", "127.0.0.1")
T0 = datetime.now(UTC)


class World:
    """An API server with the manifests applied, and replicas of the control plane."""

    def __init__(self, server: FakeApiServer, client: KubeClient) -> None:
        self.server = server
        self.client = client
        self.now = T0
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []
        server.create("/api/v1/namespaces/fractile-system/secrets", {"metadata": {"name": "fractile-webhook"}})
        for path, count in ((MUTATING, 3), (VALIDATING, 1)):
            hooks = [{"name": f"h{i}", "clientConfig": {"url": f"https://x/{i}"}, "kept": i} for i in range(count)]
            server.create(path.rpartition("/")[0], {"metadata": {"name": "fractile"}, "webhooks": hooks})

    def replica(self) -> tuple[SecretKeeper, ServedCertificate, Configuration]:
        served = ServedCertificate()
        configuration = Configuration(self.client, lambda: served.bundle, clock=self.clock)
        keeper = SecretKeeper(
            self.client,
            served,
            secret=ObjectRef("Secret", "fractile-system", "fractile-webhook", ""),
            names=NAMES,
            published=configuration.published,
            now=lambda: self.now,
            warn=lambda about, reason, text: self.told.append((f"{about.kind}/{about.name} {reason}", text)),
        )
        return keeper, served, configuration

    def secret(self, key: str) -> bytes:
        return b64decode(self.server.get(SECRET)["data"][key])

    def bundles(self) -> list[bytes]:
        hooks = [hook for path in (MUTATING, VALIDATING) for hook in self.server.get(path)["webhooks"]]
        return [b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks]


@pytest.fixture
async def world() -> AsyncGenerator[World, None]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        yield World(server, client)


async def test_the_first_look_makes_what_all_replicas_use(world: World) -> None:
    one, served, _ = world.replica()
    two, other, _ = world.replica()
    assert await one.look()
    assert await two.look()
    assert served.loaded.is_set()
    assert served.bundle == other.bundle == world.secret("ca.crt")
    assert world.server.writes() == [f"PUT {SECRET}"], "one made it, the other read it"
    assert world.server.get(SECRET)["metadata"]["name"] == "fractile-webhook"


async def test_two_replicas_at_once_agree_on_one_material(world: World) -> None:
    replicas = [world.replica() for _ in range(4)]
    await asyncio.gather(*(keeper.look() for keeper, _, _ in replicas))
    for keeper, _, _ in replicas:
        assert await keeper.look()
    assert {served.bundle for _, served, _ in replicas} == {world.secret("ca.crt")}


async def test_the_bundle_goes_into_every_webhook_and_nothing_else_changes(world: World) -> None:
    keeper, served, configuration = world.replica()
    assert not await configuration.look(), "there is none yet"
    await keeper.look()
    assert await configuration.look()
    assert world.bundles() == [served.bundle] * 4
    hooks = world.server.get(MUTATING)["webhooks"]
    assert [(h["name"], h["kept"], h["clientConfig"]["url"]) for h in hooks] == [
        (f"h{i}", i, f"https://x/{i}") for i in range(3)
    ]
    writes = len(world.server.writes())
    assert await configuration.look()
    assert len(world.server.writes()) == writes, "nothing to do, nothing written"
    world.server.merge(VALIDATING, {"webhooks": [{"name": "h0", "clientConfig": {"url": "u", "caBundle": "eA=="}}]})
    assert await configuration.look()
    assert world.bundles() == [served.bundle] * 4, "what somebody undoes comes back"


async def test_a_configuration_that_cert_manager_injects_into_is_left_to_it(world: World) -> None:
    annotations = {"cert-manager.io/inject-ca-from": "fractile-system/webhook"}
    world.server.merge(MUTATING, {"metadata": {"annotations": annotations}})
    keeper, served, configuration = world.replica()
    await keeper.look()
    await configuration.look()
    assert world.bundles() == [b"", b"", b"", served.bundle]


async def test_a_new_authority_signs_only_when_the_configurations_have_shown_it_for_a_while(world: World) -> None:
    keeper, served, configuration = world.replica()
    await keeper.look()
    await configuration.look()
    first = world.secret("tls.crt")
    world.now += timedelta(days=61)
    await keeper.look()
    assert world.secret("tls.crt") == first, "the bundle is not settled"
    world.clock.now += SETTLED
    await keeper.look()
    assert world.secret("tls.crt") != first
    for _ in range(4):
        world.now += timedelta(days=58)
        await keeper.look()
    before = world.secret("tls.crt")
    assert served.bundle.count(b"BEGIN") == 2, "a new authority"
    await keeper.look()
    assert world.secret("tls.crt") == before
    await configuration.look()
    world.clock.now += SETTLED
    await keeper.look()
    assert world.secret("tls.crt") != before
    assert world.bundles() == [served.bundle] * 4


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="GET", path="secrets", status=403), id="no right"),
        pytest.param(Fault(method="PUT", path="secrets", status=409), id="another was faster"),
        pytest.param(Fault(method="GET", path="secrets", status=200, body=b"[]"), id="no object"),
    ],
)
async def test_what_fails_is_tried_again(world: World, fault: Fault) -> None:
    keeper, served, _ = world.replica()
    world.server.inject(fault)
    assert not await keeper.look()
    assert not served.loaded.is_set()
    assert await keeper.look()
    assert served.loaded.is_set()


async def test_while_the_api_server_is_away_what_is_loaded_is_served(world: World) -> None:
    keeper, served, configuration = world.replica()
    await keeper.look()
    bundle = served.bundle
    world.server.inject(Fault(path="secrets", status=403, times=9), Fault(path="webhookconf", status=403, times=9))
    world.now += timedelta(days=4000)
    assert not await keeper.look()
    assert not await configuration.look()
    assert served.bundle == bundle


@pytest.mark.parametrize("data", [{"ca.crt": "no base64!"}, {"tls.crt": "eA=="}, None, {"other": "eA=="}])
async def test_a_secret_with_nonsense_is_filled_and_what_is_not_ours_stays(world: World, data: Json | None) -> None:
    world.server.merge(SECRET, {"data": data})
    keeper, served, _ = world.replica()
    assert await keeper.look()
    assert served.bundle == world.secret("ca.crt")
    if data and "other" in data:
        assert world.secret("other") == b"x"


async def test_a_deleted_secret_is_made_again_with_the_certificate_that_is_served(world: World) -> None:
    """So the API server, which trusts that one, notices nothing."""
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    annotations = {"meta.helm.sh/release-name": "fractile"}
    world.server.merge(SECRET, {"metadata": {"labels": labels, "annotations": annotations}})
    keeper, served, _ = world.replica()
    await keeper.look()
    bundle, cert = served.bundle, world.secret("tls.crt")
    world.server.delete(SECRET)
    assert await keeper.look()
    assert served.bundle == bundle == world.secret("ca.crt")
    assert world.secret("tls.crt") == cert
    meta = world.server.get(SECRET)["metadata"]
    assert (meta["labels"], meta["annotations"]) == (labels, annotations), "helm knows it as its own"
    assert world.told == []


async def test_a_replica_that_finds_no_secret_makes_it_and_the_next_one_uses_it(world: World) -> None:
    world.server.delete(SECRET)
    keeper, served, configuration = world.replica()
    assert await keeper.look()
    assert served.bundle == world.secret("ca.crt")
    assert await configuration.look()
    assert world.bundles() == [served.bundle] * 4
    following, other, _ = world.replica()
    assert await following.look()
    assert other.bundle == served.bundle
    assert world.server.get(SECRET)["type"] == "Opaque"


async def test_a_secret_that_comes_back_meanwhile_wins_over_the_one_that_is_made_again(world: World) -> None:
    """Somebody restores a backup between the look and the write."""
    backup = renewed(Material(), NAMES, now=T0, published=False)
    keeper, served, _ = world.replica()
    await world.client.apply(SECRET, backed_up(backup), field_manager="kubectl")
    world.server.inject(Fault(method="GET", path="secrets", status=404))
    assert not await keeper.look()
    assert not served.loaded.is_set()
    assert await keeper.look()
    assert served.bundle == backup.bundle == world.secret("ca.crt")


async def test_without_the_right_to_make_it_an_event_says_once_that_the_webhook_serves_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.server.delete(SECRET)
    keeper, served, _ = world.replica()
    world.server.inject(Fault(method="PATCH", path="secrets", status=403, times=4))
    for _ in range(4):
        assert not await keeper.look()
    assert not served.loaded.is_set()
    ((reason, text),) = world.told
    assert reason == "Secret/fractile-webhook WebhookWithoutCertificate"
    assert "pods are created without the webhook" in text
    (line,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "webhook without a certificate" in line.getMessage()
    world.server.create(SECRET.rpartition("/")[0], {"metadata": {"name": "fractile-webhook"}})
    assert await keeper.look()
    assert served.bundle == world.secret("ca.crt")


async def test_a_leader_that_holds_a_certificate_goes_on_with_it_and_says_that_it_cannot_be_kept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, served, _ = world.replica()
    await keeper.look()
    world.server.delete(SECRET)
    world.server.inject(Fault(method="PATCH", path="secrets", status=403, times=3))
    for _ in range(3):
        assert not await keeper.look()
    assert served.loaded.is_set()
    assert world.told == [], "its callers notice nothing"
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "certificates not renewed" in line


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, authority: trustme.CA) -> None:
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(folder / "tls.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))


async def test_files_are_read_anew_when_they_change_and_half_a_change_is_survived(tmp_path: Path) -> None:
    authority = trustme.CA()
    write(tmp_path, authority)
    served = ServedCertificate()
    keeper = FileKeeper(served, cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=tmp_path / "ca.crt")
    assert served.bundle == authority.cert_pem.bytes()
    (tmp_path / "tls.key").write_text("half")
    keeper.look()
    assert served.bundle == authority.cert_pem.bytes()
    other = trustme.CA()
    write(tmp_path, other)
    keeper.look()
    assert served.bundle == other.cert_pem.bytes()


async def test_files_that_make_no_sense_at_the_start_end_the_program_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        FileKeeper(ServedCertificate(), cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=None)
    (tmp_path / "tls.crt").write_text("x")
    (tmp_path / "tls.key").write_text("y")
    with pytest.raises(SetupError, match="must be a PEM pair"):
        FileKeeper(ServedCertificate(), cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=None)


async def test_connections_from_now_on_get_the_new_certificate_and_old_ones_live() -> None:
    served = ServedCertificate()
    one = renewed(Material(), NAMES, now=T0, published=False)
    served.load(one.cert, one.key, one.bundle)
    async with opened(served.context) as port:
        first = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(one.bundle))
        two = renewed(Material(), NAMES, now=T0, published=False)
        served.load(two.cert, two.key, two.bundle)
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting(one.bundle))
        second = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(two.bundle))
        for reader, writer in (first, second):
            writer.write(b"GET /admission/healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.transport.abort()


def backed_up(material: Material) -> Json:
    values = {"ca.crt": material.bundle, "ca.key": material.ca_key, "tls.crt": material.cert, "tls.key": material.key}
    data = {key: b64encode(value).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fractile-webhook"}, "data": data}


def trusting(bundle: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=bundle.decode())
