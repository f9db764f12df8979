"""``fractile alive``: kubelet's liveness probe of the agent, over the Unix socket that only root can open.

The agent's page answers any client that reaches the node's address, so it can be kept busy; this socket cannot. The
module imports very little, since kubelet runs it every half minute on every node.
"""

import socket
from pathlib import Path

import click

from fractile.errors import SetupError
from fractile.main.state_dir import state_dir_option

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n"
_MOST = 4096  # bytes of an answer


@click.command("alive")
@state_dir_option("State directory of the agent.")
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=4.0, show_default=True, metavar="SECONDS")
def command(state_dir: Path, timeout: float) -> None:
    """Check that the agent of this node is alive. Exit status 0: it is."""
    path = state_dir / "debug.sock"
    try:
        answer = _asked(path, timeout)
    except OSError as e:
        raise SetupError(f"the agent does not answer at {path}: {e.strerror or e}") from None
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise SetupError(f"the agent answers at {path}: {answer[:80]!r}")
    click.echo("ok")


def _asked(path: Path, timeout: float) -> bytes:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(timeout)
        made.connect(str(path))
        made.sendall(_REQUEST)
        return made.recv(_MOST)
