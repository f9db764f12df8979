"""Where the programs of a local cluster answer /debug/state; `fractile up` has given its control plane a token."""

from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem

from fractile.errors import SetupError
from fractile.lab.cluster import state
from fractile.lab.layout import DEFAULT_NAME, ClusterLayout, default_clusters_dir, layout

_SOCKET = "debug.sock"


class DebugEndpoint(msgspec.Struct, frozen=True):
    """Where a control plane of a local cluster answers, and what opens it."""

    url: str
    token_file: Path
    ca: Path


def control_plane(place: ClusterLayout) -> DebugEndpoint:
    """Of several the one that leads. SetupError when there is none that we could ask."""
    kept = _state(place)
    if kept.image:
        raise SetupError(
            f"the control plane of cluster {place.name} is pods, which have no token of yours; make one as "
            "docs/reference/debug-state.md says, or ask an agent with --node"
        )
    if not (kept.fractile and place.debug_token.exists()):
        raise SetupError(f"cluster {place.name} has no token; run `fractile up --name {place.name}` again")
    return DebugEndpoint(f"https://127.0.0.1:{kept.ports.control_plane}", place.debug_token, place.authority)


def agent(place: ClusterLayout, node: str) -> Path:
    """The socket of the agent of that node, also when it is a pod."""
    return place.node(_state(place).node(node).index).agent / _SOCKET


def complete_node(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The nodes of the local cluster that ``--name`` names; none where there is no such cluster."""
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
