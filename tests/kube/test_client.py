"""What the client does when the server fails: slow, gone, overloaded, or not an API server at all."""

import asyncio
import random
import ssl
import time
from contextlib import aclosing
from pathlib import Path

import pytest
import trustme

from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient, WatchEvent
from fractile.kube.credentials import Credentials, trust
from fractile.kube.tokens import FileToken
from fractile.wire.kubernetes.objects import Node, Pod
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.kube.conftest import Sleeps

POD = paths.pod("default", "p")


@pytest.fixture(autouse=True)
def one_pod(server: FakeApiServer) -> None:
    server.create(paths.pods("default"), {"metadata": {"name": "p"}, "spec": {}})


async def bind(client: KubeClient) -> None:
    await client.bind(namespace="default", name="p", uid="", node="n", annotations={"a": "1"})


async def patch(client: KubeClient) -> None:
    await client.merge_patch(POD, {"metadata": {"annotations": {"a": "1"}}})


async def create(client: KubeClient) -> None:
    await client.create(paths.pods("default"), {"metadata": {"name": "q"}})


async def test_429_is_repeated_after_the_time_that_the_server_names(
    server: FakeApiServer, client: KubeClient, sleeps: Sleeps
) -> None:
    server.inject(Fault(status=429, headers={"Retry-After": "7"}))
    await client.get(POD, Pod)
    assert sleeps.asked == [7.0]


async def test_429_is_repeated_for_a_create_since_nothing_was_done(
    server: FakeApiServer, client: KubeClient, sleeps: Sleeps
) -> None:
    server.inject(Fault(method="POST", status=429))
    await create(client)
    assert len(sleeps.asked) == 1
    assert server.get(paths.pod("default", "q"))


async def test_an_absurd_retry_after_is_not_obeyed(server: FakeApiServer, client: KubeClient, sleeps: Sleeps) -> None:
    server.inject(Fault(status=429, headers={"Retry-After": "86400"}), Fault(status=429, headers={"Retry-After": "x"}))
    await client.get(POD, Pod)
    assert sleeps.asked[0] == 30.0
    assert sleeps.asked[1] < 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_get_and_a_patch_survive_two_failures(server: FakeApiServer, client: KubeClient, status: int) -> None:
    server.inject(Fault(status=status, times=2))
    assert (await client.get(POD, Pod)).metadata.name == "p"
    server.inject(Fault(status=status, times=2))
    await patch(client)
    assert server.get(POD)["metadata"]["annotations"] == {"a": "1"}


async def test_a_failing_server_is_asked_five_times_with_growing_waits(
    server: FakeApiServer, client: KubeClient, sleeps: Sleeps
) -> None:
    server.inject(Fault(status=503, times=100))
    with pytest.raises(ApiError) as error:
        await client.get(POD, Pod)
    assert error.value.code == 503
    assert len(server.requests) == 5
    assert len(sleeps.asked) == 4
    assert all(0.5 * 0.1 * 2**i <= wait <= 1.5 * 0.1 * 2**i for i, wait in enumerate(sleeps.asked))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 501])
async def test_other_errors_are_the_callers_to_decide(server: FakeApiServer, client: KubeClient, status: int) -> None:
    server.inject(Fault(status=status, times=100))
    with pytest.raises(ApiError) as error:
        await client.get(POD, Pod)
    assert (error.value.code, error.value.reason, error.value.message) == (status, "Injected", "injected by the test")
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_create_is_not_repeated_when_it_may_have_been_done(
    server: FakeApiServer, client: KubeClient, status: int
) -> None:
    server.inject(Fault(method="POST", status=status))
    with pytest.raises(ApiError):
        await create(client)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_binding_is_never_repeated(server: FakeApiServer, client: KubeClient, status: int) -> None:
    server.inject(Fault(method="POST", status=status))
    with pytest.raises(ApiError) as error:
        await bind(client)
    assert error.value.code == status
    assert len(server.requests) == 1


async def test_a_binding_tells_the_api_server_how_long_it_may_take(server: FakeApiServer, client: KubeClient) -> None:
    await bind(client)
    assert server.requests[-1].query["timeout"] == "2s"
    await client.merge_patch(POD, {"metadata": {}}, seconds=2)
    assert server.requests[-1].query["timeout"] == "2s"
    await client.merge_patch(POD, {"metadata": {}})
    assert "timeout" not in server.requests[-1].query


async def test_a_binding_whose_answer_is_lost_is_unreachable_and_done_once(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.inject(Fault(method="POST", drop="after"))
    with pytest.raises(Unreachable):
        await bind(client)
    assert server.writes() == [f"POST {POD}/binding"]
    assert server.get(POD)["spec"]["nodeName"] == "n"
    with pytest.raises(ApiError, match="already assigned") as error:
        await bind(client)
    assert error.value.code == 409


async def test_a_binding_whose_request_is_lost_is_unreachable_and_not_done(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.inject(Fault(method="POST", drop="before"))
    with pytest.raises(Unreachable):
        await bind(client)
    assert "nodeName" not in server.get(POD)["spec"]


async def test_a_get_and_a_patch_survive_a_lost_connection(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(drop="after"))
    assert (await client.get(POD, Pod)).metadata.name == "p"
    server.inject(Fault(drop="after"))
    await patch(client)
    assert server.get(POD)["metadata"]["annotations"] == {"a": "1"}


async def test_a_kept_connection_that_the_server_closed_is_no_error(server: FakeApiServer, client: KubeClient) -> None:
    await client.get(POD, Pod)
    await server.cut_connections()
    await bind(client)
    assert server.get(POD)["spec"]["nodeName"] == "n"


async def test_a_server_that_is_away_is_unreachable_and_found_again(server: FakeApiServer, client: KubeClient) -> None:
    await server.stop()
    with pytest.raises(Unreachable, match=r"no answer from GET http://127\.0\.0\.1"):
        await client.get(POD, Pod)
    await server.restart()
    assert (await client.get(POD, Pod)).metadata.name == "p"


@pytest.mark.parametrize(
    "fault", [Fault(delay=30), Fault(drip=0.05), Fault(delay=30, method="POST")], ids=["silent", "dripping", "binding"]
)
async def test_no_call_waits_longer_than_its_timeout(server: FakeApiServer, fault: Fault) -> None:
    server.inject(fault)
    async with KubeClient(server.credentials(), timeout=0.3) as client:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=r"within 0\.3 s|no answer"):
            await (bind(client) if fault.method else client.get(POD, Pod))
    assert time.monotonic() - begun < 5


async def test_an_error_page_of_a_proxy_is_shown_in_one_line(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(status=502, body=b"<html>\n <h1>Bad\n gateway</h1></html>", times=100))
    with pytest.raises(ApiError) as error:
        await client.get(POD, Pod)
    assert str(error.value) == "the API server answered 502 Bad Gateway: <html> <h1>Bad gateway</h1></html>"


async def test_a_page_that_is_no_kubernetes_answer_says_to_check_the_address(
    server: FakeApiServer, client: KubeClient
) -> None:
    for call in (client.get(POD, Pod), client.list(paths.pods(), Pod)):
        server.inject(Fault(status=200, body=b"<html>welcome</html>", headers={"Content-Type": "text/html"}))
        with pytest.raises(WireError, match="check the server address"):
            await call


async def test_a_redirect_to_a_login_page_is_an_error_and_not_followed(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.inject(Fault(status=302, body=b"login", headers={"Location": "http://127.0.0.1:1/"}))
    with pytest.raises(ApiError) as error:
        await client.get(POD, Pod)
    assert error.value.code == 302


async def test_an_answer_damaged_in_compression_is_a_wire_error(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(status=200, body=b"no gzip", headers={"Content-Encoding": "gzip"}))
    with pytest.raises(WireError, match="damaged"):
        await client.get(POD, Pod)


async def test_a_large_list_comes_compressed_in_pages(server: FakeApiServer, client: KubeClient) -> None:
    for i in range(1300):
        server.create(paths.nodes(), {"metadata": {"name": f"n{i:04}", "labels": {"filler": "x" * 400}}})
    nodes, version = await client.list(paths.nodes(), Node)
    assert [n.metadata.name for n in nodes] == [f"n{i:04}" for i in range(1300)]
    assert version == str(server.store.version)
    assert len(server.requests) == 3


async def test_calls_are_paced(server: FakeApiServer, sleeps: Sleeps) -> None:
    async with KubeClient(server.credentials(), qps=10, burst=3, clock=lambda: 0.0, sleep=sleeps) as client:
        for _ in range(5):
            await client.get(POD, Pod)
    assert sleeps.asked == pytest.approx([0.1, 0.2])


async def test_a_rejected_token_is_read_again_once(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server.tokens = {"old"}
    async with KubeClient(server.credentials(token=FileToken(file))) as client:
        await client.get(POD, Pod)
        server.tokens = {"new"}
        file.write_text("new\n")
        await bind(client)
        server.tokens = {"newer"}
        with pytest.raises(ApiError) as error:
            await client.get(POD, Pod)
    assert error.value.code == 401
    assert [r.status for r in server.requests] == [200, 401, 201, 401, 401]


async def test_a_rejected_token_is_read_again_for_a_watch(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    server.tokens = {"new"}
    async with KubeClient(server.credentials(token=FileToken(file))) as client:
        with pytest.raises(ApiError):
            await first_event(client)
        file.write_text("new")
        assert (await first_event(client)).metadata.name == "p"


async def first_event(client: KubeClient, *, silence: float = 5) -> WatchEvent[Pod]:
    async with aclosing(client.watch(paths.pods(), Pod, silence=silence)) as events:
        return await anext(events)


async def test_a_silent_watch_is_given_up(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(watch=True, silent=True))
    with pytest.raises(Unreachable):
        await first_event(client, silence=0.1)


async def test_a_watch_that_is_refused_says_why(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(watch=True, status=503, body=b"<html>"))
    with pytest.raises(ApiError) as error:
        await first_event(client)
    assert (error.value.code, error.value.message) == (503, "<html>")


@pytest.mark.parametrize(
    "line",
    [
        b"<html>",
        b"{",
        b"[]",
        b"{}",
        b'{"type":"GROWN","object":{}}',
        b'{"type":"ADDED","object":7}',
        b'{"type":"ADDED","object":{"metadata":[]}}',
        b'{"type":"ERROR","object":{}}',
        b'{"type":"ADDED","object":' + b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda line: line[:20].decode("latin-1"),
)
async def test_a_line_that_is_no_event_is_a_wire_error(server: FakeApiServer, client: KubeClient, line: bytes) -> None:
    server.inject(Fault(watch=True, line=line))
    with pytest.raises(WireError, match="watch of /api/v1/pods"):
        await first_event(client)


async def test_an_object_of_unknown_form_keeps_its_metadata(server: FakeApiServer, client: KubeClient) -> None:
    line = b'{"type":"ADDED","object":{"metadata":{"name":"odd","uid":"u"},"spec":"none"}}'
    server.inject(Fault(watch=True, line=line))
    event = await first_event(client)
    assert (event.metadata.name, event.metadata.uid, event.object) == ("odd", "u", None)


@pytest.mark.parametrize("cut", [1, 20, 200])
async def test_a_watch_cut_in_the_middle_of_a_line_is_unreachable(
    server: FakeApiServer, client: KubeClient, cut: int
) -> None:
    server.inject(Fault(watch=True, cut_after=cut))
    with pytest.raises(Unreachable):
        await first_event(client)


async def test_an_event_may_arrive_byte_by_byte(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(watch=True, drip=0.0001))
    assert (await first_event(client)).metadata.name == "p"


async def test_a_cancelled_call_leaves_the_client_usable(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(delay=30))
    call = asyncio.create_task(client.get(POD, Pod))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await client.get(POD, Pod)).metadata.name == "p"


async def test_a_cancelled_watch_closes_its_connection(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(watch=True, silent=True))
    watch = asyncio.create_task(first_event(client))
    await asyncio.sleep(0.05)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert (await first_event(client)).metadata.name == "p"


class Tls:
    """A certificate authority, a server that it vouches for, and a client certificate."""

    def __init__(self, *, client_certificate: bool = False) -> None:
        self.authority = trustme.CA()
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1", "api.example").configure_cert(self.server)  # pyright: ignore[reportUnknownMemberType]
        if client_certificate:
            self.server.verify_mode = ssl.CERT_REQUIRED
            self.authority.configure_trust(self.server)  # pyright: ignore[reportUnknownMemberType]
        self.ca = self.authority.cert_pem.bytes()
        issued = self.authority.issue_cert("admin@example.com")
        self.certificate = b"".join(p.bytes() for p in issued.cert_chain_pems)
        self.key = issued.private_key_pem.bytes()


async def get_over(server: FakeApiServer, credentials: Credentials) -> str:
    server.create(paths.nodes(), {"metadata": {"name": "n"}})
    async with KubeClient(credentials, rng=random.Random(1), sleep=Sleeps()) as client:
        return (await client.get(paths.node("n"), Node)).metadata.name


async def test_tls_with_a_client_certificate() -> None:
    tls = Tls(client_certificate=True)
    async with FakeApiServer(tls=tls.server) as server:
        context = trust(ca=tls.ca, certificate=tls.certificate, key=tls.key)
        assert await get_over(server, server.credentials(tls=context)) == "n"


@pytest.mark.parametrize("name", ["", "api.example"])
async def test_a_server_name_is_what_the_certificate_must_show(name: str) -> None:
    tls = Tls()
    async with FakeApiServer(tls=tls.server) as server:
        assert await get_over(server, Credentials(server.url, tls=trust(ca=tls.ca), server_name=name)) == "n"


@pytest.mark.parametrize("case", ["other authority", "other name", "no client certificate"])
async def test_tls_that_does_not_verify_is_unreachable(case: str) -> None:
    tls = Tls(client_certificate=case == "no client certificate")
    ca = Tls().ca if case == "other authority" else tls.ca
    name = "other.example" if case == "other name" else ""
    async with FakeApiServer(tls=tls.server) as server:
        with pytest.raises(Unreachable, match="no answer from GET https"):
            await get_over(server, Credentials(server.url, tls=trust(ca=ca), server_name=name))
