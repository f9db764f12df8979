"""Who may call the extender: over real TLS, with certificates of several authorities."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fractile.door.seldom import HANDSHAKES
from fractile.errors import SetupError
from fractile.extender.verbs import Verb
from fractile.serving.clients import Clients
from fractile.serving.direct import Find
from fractile.serving.https_server import Options, serve
from tests.main.process import free_port

VERB = "/scheduler/bind"


async def _answer(_: Request) -> Response:
    return PlainTextResponse("done")


APP = Starlette(
    routes=[
        Route(VERB, _answer, methods=["POST"]),
        Route("/healthz", _answer),
        Route("/readyz", _answer),
        Route("/metrics", _answer),
        Route("/openapi.json", _answer),
    ]
)


class World:
    """An authority of servers, one of callers, and one that nobody knows."""

    def __init__(self, folder: Path) -> None:
        self.servers, self.callers, self.strangers = trustme.CA(), trustme.CA(), trustme.CA()
        self.cert, self.key, self.ca = folder / "tls.crt", folder / "tls.key", folder / "callers.crt"
        self.renew()
        self.callers.cert_pem.write_to_path(str(self.ca))

    def renew(self) -> None:
        pair = self.servers.issue_cert("127.0.0.1")
        self.cert.write_bytes(pair.cert_chain_pems[0].bytes())
        self.key.write_bytes(pair.private_key_pem.bytes())

    @asynccontextmanager
    async def serving(self, *names: str, find: Find = lambda path: None) -> AsyncGenerator[str, None]:
        listen = f"127.0.0.1:{free_port()}"
        options = Options(listen, self.cert, self.key, clients=Clients((self.ca,), names))
        options.look_again = 0.05
        task = asyncio.create_task(serve(APP, options, find))
        try:
            async with asyncio.timeout(20):
                while not await self.asked(f"https://{listen}", "/healthz"):  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(0.02)
            yield f"https://{listen}"
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=10)

    async def shown(self, url: str) -> int:
        """The serial number of the certificate that a new connection gets."""
        host, _, port = url.removeprefix("https://").partition(":")
        trust = ssl.create_default_context(cadata=self.servers.cert_pem.bytes().decode())
        _, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        found = writer.get_extra_info("ssl_object").getpeercert()
        writer.transport.abort()
        return int(found["serialNumber"], 16)

    async def asked(self, url: str, path: str, authority: trustme.CA | None = None, name: str = "x") -> int:
        """The status; 0 when there is no answer at all."""
        trust = ssl.create_default_context()
        trust.load_verify_locations(cadata=self.servers.cert_pem.bytes().decode())
        if authority is not None:
            pair = authority.issue_cert("caller.test", common_name=name)
            with pair.private_key_and_cert_chain_pem.tempfile() as file:
                trust.load_cert_chain(file)
        async with httpx2.AsyncClient(verify=trust, trust_env=False, timeout=10) as http:
            try:
                return (await http.request("POST" if path == VERB else "GET", url + path)).status_code
            except httpx2.TransportError:
                return 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_verb_needs_a_certificate_of_the_authority(world: World) -> None:
    async with world.serving() as url:
        assert await world.asked(url, VERB) == 403
        assert await world.asked(url, VERB, world.callers) == 200
        assert await world.asked(url, "/openapi.json") == 403


async def test_probes_and_metrics_need_none(world: World) -> None:
    async with world.serving("system:kube-scheduler") as url:
        assert [await world.asked(url, path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]


@pytest.mark.parametrize("path", [VERB, "/healthz"])
async def test_a_certificate_of_somebody_else_ends_the_handshake(world: World, path: str) -> None:
    async with world.serving() as url:
        assert await world.asked(url, path, world.strangers) == 0


async def test_handshakes_that_fail_are_counted_and_in_the_log_seldom(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HANDSHAKES, "_next", 0.0)
    before = HANDSHAKES.total
    async with world.serving() as url:
        for _ in range(3):
            await world.asked(url, VERB, world.strangers)
        assert await world.asked(url, VERB, world.callers) == 200
    lines = [r.getMessage() for r in caplog.records if "TLS handshake failed" in r.getMessage()]

    assert HANDSHAKES.total == before + 3
    assert len(lines) == 1
    assert "peer=127.0.0.1" in lines[0]
    assert "unable to get local issuer certificate" in lines[0]


async def test_names_are_asked_for_where_they_are_given(world: World) -> None:
    async with world.serving("system:kube-scheduler", "other") as url:
        assert await world.asked(url, VERB, world.callers, "system:kube-scheduler") == 200
        assert await world.asked(url, VERB, world.callers, "other") == 200
        assert await world.asked(url, VERB, world.callers, "system:node:n1") == 403


async def test_a_verb_that_needs_no_application_asks_for_the_certificate_too(world: World) -> None:
    called: list[bytes] = []

    def answer(body: bytes) -> bytes:
        called.append(body)
        return b"done"

    verbs = {VERB.encode(): Verb(VERB, answer, str.encode)}
    async with world.serving("system:kube-scheduler", find=verbs.get) as url:
        assert await world.asked(url, VERB) == 403
        assert await world.asked(url, VERB, world.callers, "system:node:n1") == 403
        assert await world.asked(url, VERB, world.strangers, "system:kube-scheduler") == 0
        assert called == []
        assert await world.asked(url, VERB, world.callers, "system:kube-scheduler") == 200
        assert called == [b""]


async def test_a_path_is_not_opened_by_how_it_is_written(world: World) -> None:
    async with world.serving() as url:
        for path in ("/healthz/../scheduler/bind", "/healthz/", "//healthz", "/scheduler/filter?x=/healthz"):
            assert await world.asked(url, path) == 403, path


async def test_a_certificate_is_read_again_when_it_changes(world: World) -> None:
    async with world.serving() as url:
        before = await world.shown(url)
        world.key.write_text("half written")
        await asyncio.sleep(0.3)
        assert await world.shown(url) == before
        world.renew()
        async with asyncio.timeout(10):
            while await world.shown(url) == before:  # noqa: ASYNC110 - it is looked at by connecting
                await asyncio.sleep(0.05)
        assert await world.asked(url, VERB) == 403, "callers are asked for as before"


def test_an_authority_that_cannot_work_is_told_at_the_start(world: World, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="needs --tls-cert"):
        Options("127.0.0.1:0", None, None, clients=Clients((world.ca,)))
    with pytest.raises(SetupError, match="holds no PEM certificate"):
        Options("127.0.0.1:0", world.cert, world.key, clients=Clients((tmp_path / "none",)))
    with pytest.raises(SetupError, match="holds no PEM certificate"):
        Options("127.0.0.1:0", world.cert, world.key, clients=Clients((world.key,)))
