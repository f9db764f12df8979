"""The webhook of the program ``fractile control-plane``: its process against a fake API server."""

import asyncio
import re
import socket
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fractile.admission.configuration import MUTATING, VALIDATING
from fractile.kube import paths
from fractile.serving.https_server import Options, listening_socket
from tests.admission.world import answered, patch_of, review
from tests.builders import cards, container, pod, resource
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.main.plane import until
from tests.main.process import Running, control_plane, free_port
from tests.serving.siege import besieged
from tests.serving.webhook_client import Reviewer
from tests.wire.golden_files import golden

SECRET = paths.secret("fractile-system", "fractile-webhook")
MIB = 2**20


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    """An API server with two cards, a class, and the webhook's manifests."""
    async with FakeApiServer() as made:
        prepare(made)
        for card in cards("n1"):
            made.create(paths.extended_resources(), resource(card, "n1"))
        pair: dict[str, Any] = {"metadata": {"name": "pair"}, "spec": {"count": 2}}
        made.create(paths.resource_classes(), pair)
        yield made


def prepare(server: FakeApiServer) -> None:
    server.create(SECRET.rpartition("/")[0], {"metadata": {"name": "fractile-webhook"}})
    for path in (MUTATING, VALIDATING):
        hooks = [{"name": "pods.fractile.dev", "clientConfig": {"url": "https://127.0.0.1"}}]
        server.create(path.rpartition("/")[0], {"metadata": {"name": "fractile"}, "webhooks": hooks})


async def trusted(server: FakeApiServer) -> ssl.SSLContext:
    """What an API server trusts that reads its webhook configurations."""
    await until(lambda: "caBundle" in server.get(VALIDATING)["webhooks"][0]["clientConfig"])
    bundle = b64decode(server.get(VALIDATING)["webhooks"][0]["clientConfig"]["caBundle"])
    return ssl.create_default_context(cadata=bundle.decode())


def options(port: int) -> tuple[str, ...]:
    return ("--webhook", f"127.0.0.1:{port}", "--webhook-names", "127.0.0.1")


def peak(running: Running) -> int:
    """The most memory that the process ever had, in bytes."""
    (line,) = [s for s in Path(f"/proc/{running.pid}/status").read_text().splitlines() if s.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def test_it_makes_its_certificate_tells_the_api_server_and_serves(server: FakeApiServer, tmp_path: Path) -> None:
    port = free_port()
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path, *options(port)) as running:
        await running.ready()
        trust = await trusted(server)
        async with Reviewer(port, trust) as api:
            asked = review(pod("p", container(limits={"class.fractile.dev/pair": 1})))
            status, answer = await api.ask("mutate", asked)
            assert status == 200
            slots = [op.value for op in patch_of(answered(answer)) if op.path.endswith("limits/fractile.dev~1gpu")]
            assert slots == ["2"]
            status, answer = await api.ask("validate", review(pod("p", container(memory=10**6))))
            assert "the largest card here has 16276 MiB" in answered(answer)["warnings"][0]
            running.process.terminate()
            assert await running.ended() == 0
    assert "Traceback" not in running.log.read_text()
    async with control_plane(kubeconfig, tmp_path, *options(port)) as again:
        await again.ready()
        async with Reviewer(port, trust) as api:
            assert (await api.ask("mutate", golden("admission-pod.json")))[0] == 200, "with the same certificate"


async def test_a_pod_names_its_node_in_a_namespace_as_long_as_an_administrators_label_allows_it(
    server: FakeApiServer, tmp_path: Path
) -> None:
    port = free_port()
    allow = {"metadata": {"name": "drivers", "labels": {"fractile.dev/visible-devices": "allow"}}}
    server.create(paths.namespaces(), allow)
    itself = pod("p", container(memory=1), node="n1")
    async with control_plane(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path, *options(port)) as running:
        await running.ready()
        async with Reviewer(port, await trusted(server)) as api:

            async def taken(namespace: str) -> bool:
                answer = await api.ask("validate", review(itself, namespace=namespace))
                allowed: bool = answered(answer[1])["allowed"]
                return allowed

            async def becomes(taken_now: bool) -> None:
                async with asyncio.timeout(10):
                    while await taken("drivers") is not taken_now:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

            drivers = f"{paths.namespaces()}/drivers"
            await becomes(True)
            assert not await taken("team")
            server.merge(drivers, {"metadata": {"labels": {"fractile.dev/visible-devices": "no"}}})
            await becomes(False)
            server.merge(drivers, allow)
            await becomes(True)
            server.delete(drivers)
            await becomes(False)


async def test_a_replica_that_leads_after_the_secret_was_deleted_makes_it_and_serves(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """The one that led before has ended without making it again."""
    port = free_port()
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path, *options(port)) as first:
        await first.ready()
        before = await trusted(server)
    server.delete(SECRET)
    async with control_plane(kubeconfig, tmp_path, *options(port)) as running:
        await running.ready()
        await until(lambda: running.log.read_text().count("bundle written") == 2)
        assert server.get(SECRET)["data"]["tls.crt"]
        async with Reviewer(port, await trusted(server)) as api:
            assert (await api.ask("mutate", golden("admission-pod.json")))[0] == 200
        await shows(running, 1)
        with pytest.raises(ssl.SSLCertVerificationError):
            async with Reviewer(port, before):
                pass
    assert f"certificates created again secret={SECRET}" in running.log.read_text()


async def test_where_it_may_not_make_the_secret_the_extender_serves_and_all_say_that_the_webhook_does_not(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """As with roles of an earlier version. When the Secret is there again it is used without a restart."""
    server.delete(SECRET)
    server.inject(Fault(method="PATCH", path="/secrets/", status=403, times=10**6))
    port = free_port()
    async with control_plane(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path, *options(port)) as running:
        await running.ready()
        await until(lambda: "webhook without a certificate" in running.log.read_text())
        await shows(running, 0)
        await until(lambda: server.all(paths.events("fractile-system")))
        (event,) = server.all(paths.events("fractile-system"))
        about = event["involvedObject"]
        assert (about["kind"], about["name"]) == ("Secret", "fractile-webhook")
        assert (event["reason"], event["type"]) == ("WebhookWithoutCertificate", "Warning")
        server.create(SECRET.rpartition("/")[0], {"metadata": {"name": "fractile-webhook"}})
        async with asyncio.timeout(10):
            trust = await trusted(server)
        async with Reviewer(port, trust) as api:
            assert (await api.ask("mutate", golden("admission-pod.json")))[0] == 200
        await shows(running, 1)


async def shows(running: Running, wanted: float) -> None:
    """The page of metrics is made again after a moment only."""
    async with asyncio.timeout(10):
        while await certificate(running) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def certificate(running: Running) -> float | None:
    """What the metrics say; None: there is no webhook."""
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False) as http:
        text = (await http.get("/metrics")).text
    found = re.search(r"^fractile_control_plane_webhook_certificate (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


async def test_without_a_webhook_and_on_a_replica_that_waits_there_is_no_metric_of_its_certificate(
    server: FakeApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path) as running:
        await running.ready()
        assert await certificate(running) is None
    server.create(paths.leases("other"), {"metadata": {"name": "lead"}, "spec": held_by_somebody()})
    lease = "--lease=other/lead"
    async with control_plane(kubeconfig, tmp_path, lease, *options(free_port())) as waiting:
        await until(lambda: any(r.path == paths.lease("other", "lead") for r in server.requests))
        assert await certificate(waiting) is None


def held_by_somebody() -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": "somebody", "leaseDurationSeconds": 60, "acquireTime": now, "renewTime": now}


async def test_a_flood_of_large_bodies_takes_bounded_memory_and_the_extender_goes_on(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """120 bodies of 6 MiB at once are 720 MiB; 64 of them may be held, beside the buffers of the connections."""
    port = free_port()
    async with control_plane(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path, *options(port)) as running:
        await running.ready()
        trust = await trusted(server)
        before = peak(running)

        async def pour() -> int:
            try:
                async with Reviewer(port, trust) as api:
                    return await api.pour("mutate", 6 * MIB)
            except (ConnectionError, ssl.SSLError):
                return 0

        statuses = await asyncio.gather(*(pour() for _ in range(120)))
        assert set(statuses) <= {0, 400, 408, 503}
        assert peak(running) - before < 250 * MIB
        await running.ready(5)
        async with Reviewer(port, trust) as api:
            assert (await api.ask("mutate", golden("admission-pod.json")))[0] == 200


async def test_the_api_server_gets_in_while_strangers_announce_large_bodies(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """120 of them hold all 64 MiB all the time: each that is dropped comes again. Half of the reviews come over a new
    connection, as after a restart of the API server."""
    port = free_port()
    async with control_plane(server.write_kubeconfig(tmp_path / "kubeconfig"), tmp_path, *options(port)) as running:
        await running.ready()
        trust = await trusted(server)
        before = peak(running)
        taken = list[float]()
        hosts = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
        siege = besieged(port, slow=0, bodies=120, path="/admission/mutate", hosts=hosts)
        async with siege, Reviewer(port, trust) as kept:
            for _ in range(60):
                taken.append(await reviewed(kept))
                began = time.monotonic()
                async with Reviewer(port, trust) as fresh:
                    await reviewed(fresh)
                taken.append(time.monotonic() - began)
                await asyncio.sleep(0.05)
        taken.sort()
        print(f"reviews={len(taken)} p50={taken[60] * 1000:.1f} p99={taken[118] * 1000:.1f} ms")
        assert taken[-1] < 3, "the API server waits no longer"
        assert peak(running) - before < 250 * MIB


async def reviewed(api: Reviewer) -> float:
    """Seconds that a review took; it is answered."""
    began = time.monotonic()
    assert (await api.ask("mutate", golden("admission-pod.json")))[0] == 200
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--webhook", "nonsense"), "--webhook 'nonsense' is not HOST:PORT"),
        (("--webhook", "127.0.0.1:0", "--webhook-cert", "x"), "--webhook-cert and --webhook-key go together"),
        (("--webhook", "127.0.0.1:0", "--webhook-names", ","), "--webhook-names is empty"),
        (
            ("--webhook", "127.0.0.1:0", "--webhook-cert", "/none", "--webhook-key", "/none"),
            "the webhook's certificate cannot be read",
        ),
    ],
)
async def test_options_that_make_no_sense_end_it_with_a_sentence(
    server: FakeApiServer, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(control_plane(kubeconfig, tmp_path, *arguments))
        assert await running.ended() == 1
        text = running.log.read_text()
    assert says in text
    assert "Traceback" not in text


def test_answers_are_not_held_back_until_the_client_has_acknowledged_their_first_part() -> None:
    """The API server took 95 ms for a pod instead of 8: two calls, each with a delayed acknowledgement of 40 ms."""
    with (
        listening_socket(Options("127.0.0.1:0", None, None)) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
