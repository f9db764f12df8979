"""``fractile top`` as a person runs it, against agents' answers over HTTP and an API server at the wire."""

import asyncio
import contextlib
import io
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
import trustme

from fractile.agent.usage.http import Address, HttpServer, PageRequest, Response
from fractile.cli import top
from fractile.cli.text.top import table
from fractile.cli.top import Agent, ask
from fractile.kube import paths
from fractile.main.cli import main
from fractile.wire.output import node_usage
from fractile.wire.output.node_usage import ClusterUsage, NodeUsage, Unanswered
from tests.fakes.apiserver import FakeApiServer
from tests.metrics.test_node import NODE
from tests.reports.objects import card

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@asynccontextmanager
async def agent(
    usage: NodeUsage | bytes = NODE, *, status: int = 200, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """The port of an agent that says this."""

    async def answer(_: PageRequest) -> Response:
        return Response(usage if isinstance(usage, bytes) else node_usage.encode(usage), status=status)

    server = HttpServer(Address("127.0.0.1", 0), {"/v1/usage": answer}, tls=tls)
    running = asyncio.create_task(server.run())
    try:
        await asyncio.wait_for(server.listening.wait(), 10)
        yield server.port
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    async def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(main, ["top", *args])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


async def test_a_pipe_gets_cards_containers_and_what_is_wrong(run: Run) -> None:
    async with agent() as port:
        code, out, err = await run("--agent", f"127.0.0.1:{port}")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "NODE  CARD  MODEL              BUSY  USED/TOTAL MiB  PROMISED MiB  CORES  CONTAINERS  PROCESSES",
        'n1       0  Tesla "V100"        40%      1500/16384          4096    30%           1          2',
        "n1       1  Tesla (unhealthy)     -         ?/16384             0     0%           0          -",
        "",
        "NODE  CARD  NAMESPACE  POD  CONTAINER  BUSY  SHARE/CORES  USED/QUOTA MiB  PEAK MiB  REFUSED  WAITED s  THROTTLED s",  # noqa: E501
        "n1       0  ns         p    main        25%        30/30       1000/4096      2048        3       1.5          0.5",  # noqa: E501
        "n1       1  ns         p    main          -         -/20          ?/2048         -        -         -            -",  # noqa: E501
        "",
        "n1: outside the ledger: 1 MiB of card 0, x/q, process (pid 7 on the node): uses a card it was not given "
        "(no-slice)",
        "n1: outside the ledger: 1 MiB of card 0, x/q, process (pid 8 on the node): uses a card it was not given "
        "(no-slice)",
        "n1: outside the ledger: an unknown amount of card 0, no pod, process (pid 9 on the node): uses the card from "
        "outside all pods (not-a-pod)",
        "n1: 512 MiB of card 0 held by (deleted) ns/grace main, until its processes have ended",
    ]


async def test_json_has_all_that_the_agents_say(run: Run) -> None:
    async with agent() as port:
        code, out, _ = await run("--agent", f"127.0.0.1:{port}", "-o", "json")
    assert code == 0
    assert node_usage.decode_cluster(out) == ClusterUsage(nodes=(NODE,))


async def test_nodes_and_their_addresses_come_from_the_cluster(run: Run, tmp_path: Path) -> None:
    async with agent(msgspec.structs.replace(NODE, node="n2")) as port, FakeApiServer() as server:
        server.create(paths.extended_resources(), card("n2", 0))
        for name, kind in (("n1", "InternalIP"), ("n2", "InternalIP")):
            addresses = [{"type": "Hostname", "address": name}, {"type": kind, "address": "127.0.0.1"}]
            server.create(paths.nodes(), {"metadata": {"name": name}, "status": {"addresses": addresses}})
        kubeconfig = str(server.write_kubeconfig(tmp_path / "k"))
        code, out, _ = await run("--kubeconfig", kubeconfig, "--port", str(port), "-o", "json")
        assert code == 0
        assert [n.node for n in node_usage.decode_cluster(out).nodes] == ["n2"]
        code, _, err = await run("--kubeconfig", kubeconfig, "n1")
        assert (code, "nodes with cards: n2" in err) == (1, True)


@pytest.mark.parametrize("args", [["--once"], ["-o", "json"]])
async def test_the_exit_code_says_that_no_agent_answers(run: Run, args: list[str]) -> None:
    code, out, _ = await run("--agent", "127.0.0.1:1", *args)
    assert (code, "does not answer" in out) == (1, True)
    async with agent() as port:
        code, _, _ = await run("--agent", "127.0.0.1:1", "--agent", f"127.0.0.1:{port}", *args)
    assert code == 0


async def test_who_does_not_answer_is_named_and_hides_nobody() -> None:
    async with agent() as good, agent(b"<html>") as bad, agent(status=503) as busy:
        asked = [Agent(node=str(p), url=f"http://127.0.0.1:{p}") for p in (good, bad, busy, 1)]
        found = await ask([*asked, Agent(node="lost", url=""), Agent(node="odd", url="http://[")])
    assert [n.node for n in found.nodes] == ["n1"]
    reasons = {u.node: u.reason for u in found.unanswered}
    assert "is invalid" in reasons[str(bad)]
    assert "answers 503" in reasons[str(busy)]
    assert "does not answer" in reasons["1"]
    assert reasons["lost"] == "the node has no InternalIP"
    assert "does not answer" in reasons["odd"]
    assert "lost: the node has no InternalIP" in table(found)


async def test_an_agent_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_ANSWER", 0.2)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await ask([Agent(node="slow", url=f"http://127.0.0.1:{port}")])
    assert [(u.node, u.reason) for u in found.unanswered] == [
        ("slow", f"http://127.0.0.1:{port} has not answered in 0.2 s")
    ]


async def test_a_failure_without_a_text_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client says of a connection that breaks in an unlucky moment."""

    def fails(*_: object, **__: object) -> None:
        raise httpx2.ReadError("")

    monkeypatch.setattr(httpx2.AsyncClient, "stream", fails)
    found = await ask([Agent(node="odd", url="http://127.0.0.1:1")])
    assert "does not answer (ReadError" in found.unanswered[0].reason


@pytest.mark.parametrize(
    ("every", "size", "said"),
    [(0.05, 1, "has not answered in 1 s"), (0.0, 2**20, "sends more than 16 MiB")],
    ids=["drops", "without end"],
)
async def test_an_answer_that_never_ends_is_given_up(
    monkeypatch: pytest.MonkeyPatch, every: float, size: int, said: str
) -> None:
    monkeypatch.setattr(top, "_WHOLE", 1.0)

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b" " * size)
                await writer.drain()
                await asyncio.sleep(every)

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await asyncio.wait_for(ask([Agent(node="odd", url=f"http://127.0.0.1:{port}")]), 10)
    assert [said in u.reason for u in found.unanswered] == [True]


async def test_a_cluster_without_cards_is_a_sentence(run: Run, tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        code, out, err = await run("--kubeconfig", str(server.write_kubeconfig(tmp_path / "k")))
    assert (code, out) == (1, "")
    assert "fractile agent" in err


def test_what_is_switched_off_or_broken_is_said() -> None:
    container = msgspec.structs.replace(NODE.containers[0], enforced=False, problem="it is not a regular file")
    text = table(
        ClusterUsage(
            nodes=(msgspec.structs.replace(NODE, containers=(container,), audited=False),),
            unanswered=(Unanswered(node="n9", reason="gone"),),
        )
    )
    for sentence in (
        "n1: ns/p main: isolation is off",
        "n1: ns/p main: its ledger cannot be read: it is not a regular file",
        "n1: NVML does not list processes",
        "n9: gone",
    ):
        assert sentence in text


def test_a_node_without_cards_in_use_has_only_its_cards() -> None:
    text = table(ClusterUsage(nodes=(msgspec.structs.replace(NODE, containers=(), outside=(), departed=()),)))
    assert len(io.StringIO(text).readlines()) == 3


async def test_agents_that_answer_over_tls_are_asked_so_and_checked(run: Run, tmp_path: Path) -> None:
    authority, ca, other = trustme.CA(), tmp_path / "ca.crt", tmp_path / "other.crt"
    authority.cert_pem.write_to_path(str(ca))
    trustme.CA().cert_pem.write_to_path(str(other))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with authority.issue_cert("agents.test").private_key_and_cert_chain_pem.tempfile() as pair:
        context.load_cert_chain(pair)
    async with agent(tls=context) as port:
        asked = "--agent", f"127.0.0.1:{port}", "-o", "json"
        answered = [
            node_usage.decode_cluster((await run(*asked, *how))[1])
            for how in (
                ("--ca", str(ca), "--tls-name", "agents.test"),
                ("--insecure-tls",),
                ("--ca", str(other), "--tls-name", "agents.test"),
                ("--ca", str(ca)),
                (),
            )
        ]
    assert [bool(a.nodes) for a in answered] == [True, True, False, False, False]
    assert "certificate verify failed" in answered[2].unanswered[0].reason
    assert "Hostname mismatch" in answered[3].unanswered[0].reason
    assert "if it answers over TLS, give --ca" in answered[4].unanswered[0].reason


async def test_an_authority_that_is_none_and_two_ways_to_trust_are_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("none")
    code, _, err = await run("--agent", "127.0.0.1:1", "--ca", str(tmp_path / "none"))
    assert (code, "holds no PEM certificate" in err) == (1, True)
    code, _, err = await run("--agent", "127.0.0.1:1", "--ca", str(tmp_path / "none"), "--insecure-tls")
    assert (code, "give one of them" in err) == (1, True)
