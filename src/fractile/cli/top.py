"""``fractile top``: what cards and containers use now, as the nodes' agents report it."""

import asyncio
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import httpx2
import msgspec

from fractile.cli.options import api_server
from fractile.cli.text import top
from fractile.errors import SetupError, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from fractile.wire.output import node_usage
from fractile.wire.output.node_usage import DEFAULT_PORT, ClusterUsage, NodeUsage, Unanswered

_ANSWER = 3.0  # seconds to wait for the next bytes
_WHOLE = 10.0  # seconds for a whole answer
_LONGEST = 16 * 2**20  # bytes of an answer; a node with 128 cards and 1,000 containers needs a twentieth of that
_AT_ONCE = 64  # nodes asked at a time
_TLS_NAME = "fractile-agent.fractile-system.svc"  # the name in the certificates of the chart
_OVER_TLS = "; if it answers over TLS, give --ca or --insecure-tls"
_CA = (
    "For agents that answer over TLS (--metrics-tls-cert): a PEM file of the certificate authority (CA) that signed "
    "their certificates."
)


class _Address(KubeStruct, frozen=True):
    type: str = ""
    address: str = ""


class _Status(KubeStruct, frozen=True):
    addresses: list[_Address] | None = None


class _Node(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class Agent(KubeStruct, frozen=True):
    """Where a node's agent answers; ``url`` is empty when the node has no address."""

    node: str
    url: str


class Trust(msgspec.Struct, frozen=True):
    """How agents are authenticated: not at all, or, with a ``context``, by a certificate for ``name``."""

    scheme: str = "http"
    context: ssl.SSLContext | None = None
    name: str = ""


PLAIN = Trust()


@click.command("top")
@click.argument("node", required=False, shell_complete=api_server.complete_node)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json: the fields of docs/reference/cli.md, once.",
)
@click.option("--once", is_flag=True, help="Print the table once, instead of refreshing it on a terminal.")
@click.option("--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds.")
@click.option(
    "--agent", "agents", multiple=True, metavar="HOST:PORT", help="Read from these agents instead of a cluster's."
)
@click.option("--ca", type=click.Path(path_type=Path), metavar="FILE", help=_CA)
@click.option("--tls-name", default=_TLS_NAME, show_default=True, help="Name in their certificates, with --ca.")
@click.option("--insecure-tls", is_flag=True, help="For agents that answer over TLS: do not check their certificates.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Port of the agents."
)
@api_server.cluster_options
def command(
    node: str | None,
    output: str,
    once: bool,
    interval: float,
    agents: tuple[str, ...],
    ca: Path | None,
    tls_name: str,
    insecure_tls: bool,
    port: int,
    kubeconfig: Path | None,
    context: str,
    name: str,
) -> None:
    """Show what the cards of NODE, or of all nodes, and their containers use now.

    The nodes are those of the cluster that `fractile inspect` would read. The figures come from the nodes' agents, on
    port 5678 of the nodes' addresses, so these must be reachable from here. Exits with 1 if no agent answers.
    """
    trust = _trust(ca, tls_name, insecure=insecure_tls)
    found = [Agent(node=a, url=f"{trust.scheme}://{a}") for a in agents]
    if not found:
        found = asyncio.run(_agents(api_server.credentials(kubeconfig, context, name), node, trust.scheme, port))
    if output == "table" and not once and sys.stdout.isatty():
        asyncio.run(_watch(found, interval, trust))
        return
    usage = asyncio.run(ask(found, trust))
    click.echo(f"{node_usage.encode_cluster(usage)}\n" if output == "json" else top.table(usage), nl=False)
    if not usage.nodes:
        raise click.exceptions.Exit(1)


def _trust(ca: Path | None, name: str, *, insecure: bool) -> Trust:
    if ca is None:
        return Trust("https") if insecure else PLAIN
    if insecure:
        raise SetupError("--ca checks certificates and --insecure-tls does not; give one of them")
    try:
        return Trust("https", ssl.create_default_context(cafile=str(ca)), name)
    except (OSError, ValueError) as e:
        raise SetupError(f"{ca} holds no PEM certificate of a CA ({e})") from None


async def ask(agents: Sequence[Agent], trust: Trust = PLAIN) -> ClusterUsage:
    """Ask all agents. Those that do not answer are listed and do not hide the answers of others."""
    turns = asyncio.Semaphore(_AT_ONCE)
    async with (
        httpx2.AsyncClient(timeout=_ANSWER, trust_env=False, verify=trust.context or False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        asked = [tasks.create_task(_one(http, agent, turns, trust.name)) for agent in agents]
    answers = [task.result() for task in asked]
    return ClusterUsage(
        nodes=tuple(sorted((a for a in answers if isinstance(a, NodeUsage)), key=lambda n: n.node)),
        unanswered=tuple(a for a in answers if isinstance(a, Unanswered)),
    )


async def _one(http: httpx2.AsyncClient, agent: Agent, turns: asyncio.Semaphore, name: str) -> NodeUsage | Unanswered:
    if not agent.url:
        return Unanswered(node=agent.node, reason="the node has no InternalIP")
    async with turns:
        try:
            called = {"sni_hostname": name} if name else {}  # certificates do not contain the addresses
            async with (
                asyncio.timeout(_WHOLE),
                http.stream("GET", f"{agent.url}/v1/usage", extensions=called) as answer,
            ):
                if answer.status_code != 200:
                    return Unanswered(node=agent.node, reason=f"{agent.url} answers {answer.status_code}")
                return node_usage.decode(await _body(answer))
        except TimeoutError:
            return Unanswered(node=agent.node, reason=f"{agent.url} has not answered in {_WHOLE:.0f} s")
        except httpx2.TimeoutException:  # it has no text
            return Unanswered(node=agent.node, reason=f"{agent.url} has not answered in {_ANSWER:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            hint = _OVER_TLS if isinstance(e, httpx2.RemoteProtocolError | httpx2.ReadError) and not name else ""
            return Unanswered(
                node=agent.node, reason=f"{agent.url} does not answer ({str(e) or type(e).__name__}{hint})"
            )
        except WireError as e:
            return Unanswered(node=agent.node, reason=str(e))


async def _body(answer: httpx2.Response) -> bytes:
    """The body of an answer; WireError when it is longer than any agent's."""
    body = bytearray()
    async for some in answer.aiter_bytes():
        body += some
        if len(body) > _LONGEST:
            raise WireError(f"{answer.url.host} sends more than {_LONGEST // 2**20} MiB, which no agent does")
    return bytes(body)


async def _agents(credentials: Credentials, node: str | None, scheme: str, port: int) -> list[Agent]:
    async with KubeClient(credentials) as client:
        cards, _ = await client.list(paths.extended_resources(), ExtendedResource)
        nodes, _ = await client.list(paths.nodes(), _Node)
    named = sorted({card.spec.node_name for card in cards})
    if not named:
        raise SetupError("the cluster has no cards; check that `fractile agent` runs on the GPU nodes")
    if node is not None and node not in named:
        raise SetupError(f"node {node!r} has no cards; nodes with cards: {', '.join(named[:20])}")
    addresses = {n.metadata.name: _internal(n) for n in nodes}
    return [Agent(node=n, url=_url(scheme, addresses.get(n, ""), port)) for n in named if node in (None, n)]


def _internal(node: _Node) -> str:
    return next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "")


def _url(scheme: str, address: str, port: int) -> str:
    if not address:
        return ""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


async def _watch(agents: Sequence[Agent], interval: float, trust: Trust) -> None:
    # Imported late: rich takes a tenth of a second, which pipes and scripts should not wait for.
    from rich.live import Live
    from rich.text import Text

    with Live(Text("..."), screen=True, auto_refresh=False) as live:
        while True:
            usage = await ask(agents, trust)
            size = live.console.size
            shown = top.screen(usage, size.width, size.height)
            live.update(Text(shown.rstrip("\n"), no_wrap=True, overflow="crop"), refresh=True)
            await asyncio.sleep(interval)
