"""Where the programs of a local cluster serve /debug/state; `fractile up` gives its control plane a token."""

from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem

from fractile.errors import SetupError
from fractile.lab.cluster import state
from fractile.lab.layout import DEFAULT_NAME, ClusterLayout, default_clusters_dir, layout

_SOCKET = "debug.sock"


class DebugEndpoint(msgspec.Struct, frozen=True):
    """The URL of a local cluster's control plane, and the files needed to call it."""

    url: str
    token_file: Path
    ca: Path


def control_plane(place: ClusterLayout) -> DebugEndpoint:
    """The endpoint of the control plane, of the leader if there are several. SetupError when none can be called."""
    kept = _state(place)
    if kept.image:
        raise SetupError(
            f"the control plane of cluster {place.name} runs in pods, for which this command has no token; make one as "
            "docs/reference/debug-state.md says, or query an agent with --node"
        )
    if not (kept.fractile and place.debug_token.exists()):
        raise SetupError(f"cluster {place.name} has no token; run `fractile up --name {place.name}` again")
    return DebugEndpoint(f"https://127.0.0.1:{kept.ports.control_plane}", place.debug_token, place.authority)


def agent(place: ClusterLayout, node: str) -> Path:
    """The socket of the node's agent, whether that is a process or a pod."""
    return place.node(_state(place).node(node).index).agent / _SOCKET


def complete_node(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The nodes of the local cluster given by ``--name``; nothing if it does not exist."""
    try:
        kept = _state(layout(default_clusters_dir(), ctx.params.get("name") or DEFAULT_NAME))
    except (SetupError, OSError):
        return []
    return [CompletionItem(node.name) for node in kept.nodes if node.name.startswith(incomplete)]


def _state(place: ClusterLayout) -> state.ClusterState:
    kept = state.load(place)
    if kept is None:
        raise SetupError(f"there is no local cluster {place.name!r}; start it with `fractile up --name {place.name}`")
    return kept
