"""`fractile debug-state`: the state of a running program, from /debug/state (docs/reference/debug-state.md).

Failure rule: one request with a timeout of ten seconds and no retries; every failure is a SetupError of one sentence.
"""

import http.client
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import click

from fractile.cli.options import debug_local
from fractile.cli.options.cluster_name import complete
from fractile.cli.options.target import api_server_runs
from fractile.errors import SetupError
from fractile.lab.layout import DEFAULT_NAME, ClusterLayout, default_clusters_dir, layout
from fractile.wire.output import debug_state

SOCKET = Path("/var/lib/fractile/debug.sock")  # of the agent of this node
_TIMEOUT = 10.0
_MOST = 256 * 2**20  # bytes
_CA = "PEM file of the certificate authority (CA) that signed its certificate; default: those of the system."


@click.command("debug-state")
@click.option(
    "--socket", "path", type=click.Path(path_type=Path), help=f"Socket of an agent, on its node.  [default: {SOCKET}]"
)
@click.option(
    "--name", metavar="CLUSTER", shell_complete=complete, help="Show the control plane of this local cluster."
)
@click.option(
    "--node", shell_complete=debug_local.complete_node, help="Show the agent of this node of a local cluster."
)
@click.option("--url", metavar="URL", help="Address of a control plane, such as https://127.0.0.1:8443.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="File with the token for --url; - for the standard input."
)
@click.option("--ca", type=click.Path(path_type=Path), help=_CA)
@click.option("--insecure", is_flag=True, help="Do not check its certificate; only for your own port-forward.")
def command(
    path: Path | None,
    name: str | None,
    node: str | None,
    url: str | None,
    token_file: Path | None,
    ca: Path | None,
    insecure: bool,
) -> None:
    """Print the internal state of an agent or a control plane: ledger, watches, plugins, directories.

    An agent, on its node or by kubectl exec in its pod: no options. The control plane of a local cluster: --name (on a
    machine without an agent, no options: the cluster `fractile`). An agent of a local cluster: --node. Any other
    control plane: --url, and a token whose user may `get` /debug/state.
    """
    if url is None and (token_file or ca or insecure):
        raise SetupError("--token-file, --ca and --insecure go with --url")
    if url is not None and (path or token_file is None):
        raise SetupError("give --url with --token-file, or --socket alone")
    if (name or node) and (url or path):
        raise SetupError("--name and --node choose a local cluster; give them without --url and --socket")
    if url is not None:
        body = _of_control_plane(url, token_file, _trust(ca, insecure))
    elif (place := _local(name, node, path)) is None:
        body = _of_agent(path or SOCKET)
    elif node is not None:
        body = _of_agent(debug_local.agent(place, node))
    else:
        there = debug_local.control_plane(place)
        body = _of_control_plane(there.url, there.token_file, _trust(there.ca, insecure=False))
    debug_state.decode(body)  # refuses an answer that is not a state
    click.echo(body.decode())


def _local(name: str | None, node: str | None, path: Path | None) -> ClusterLayout | None:
    """The local cluster that the options choose; None: the agent of this machine."""
    place = layout(default_clusters_dir(), name or DEFAULT_NAME)
    if name or node:
        return place
    return None if path or SOCKET.exists() or not api_server_runs(place) else place


def _of_agent(path: Path) -> bytes:
    connection = http.client.HTTPConnection("agent", timeout=_TIMEOUT)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(_TIMEOUT)
    try:
        connection.sock.connect(str(path))
    except OSError as e:
        connection.close()
        raise SetupError(
            f"no agent answers at {path}: {e.strerror or e}; run this as root on its node, or name a local cluster"
        ) from None
    return _ask(connection, str(path), {})


def _of_control_plane(url: str, token_file: Path | None, trust: ssl.SSLContext) -> bytes:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(f"--url {url!r} is not of the form https://HOST:PORT")
    made = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT, context=trust)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT)
    )
    return _ask(made, url, {"Authorization": f"Bearer {_token(token_file)}"})


def _ask(connection: http.client.HTTPConnection, where: str, headers: dict[str, str]) -> bytes:
    try:
        connection.request("GET", debug_state.PATH, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST)
    except (OSError, http.client.HTTPException) as e:
        raise SetupError(f"no answer from {where}: {e}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise SetupError(f"{where} answers {answer.status}: {body[:300].decode(errors='replace').strip()}")
    return body


def _token(file: Path | None) -> str:
    assert file is not None
    try:
        with click.open_file(str(file)) as given:  # knows "-"
            text: str = given.read()
    except (OSError, UnicodeDecodeError) as e:
        raise SetupError(f"--token-file {file} cannot be read: {e}") from None
    token = text.strip()
    if not (token and token.isascii() and token.isprintable()):
        raise SetupError(f"--token-file {file} holds no token")
    return token


def _trust(ca: Path | None, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as e:
        raise SetupError(f"--ca {ca} holds no PEM certificate: {e}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
