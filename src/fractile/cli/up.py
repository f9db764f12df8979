"""`fractile up`: starts or completes a local cluster."""

from pathlib import Path

import click
import msgspec

from fractile.cli.options.cluster_name import name_option
from fractile.errors import SetupError
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import DEFAULT_CARDS, DEFAULT_NODES, ClusterSpec, from_file, from_options
from fractile.lab.cluster.up import StartedCluster, UpOptions
from fractile.lab.progress import Progress
from fractile.model.units import MemoryUnit
from fractile.wire.files import cluster_file, sharing_file

JSON_VERSION = 1


def _policy(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    from fractile.extender.policies import valid  # late: numpy takes a tenth of a second

    if text is not None and not valid(text):
        raise click.BadParameter(f"{text!r} is not a policy; see docs/operate/node-policies.md")
    return text


@click.command("up")
@name_option
@click.option("--nodes", type=int, help=f"Number of equal nodes.  [default: {DEFAULT_NODES}]")
@click.option("--cards", metavar="CARDS", help=f"The cards of each node.  [default: '{DEFAULT_CARDS}']")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A cluster.yaml that describes nodes and cards one by one (docs/reference/cluster-file.md).",
)
@click.option(
    "--memory-unit",
    type=click.Choice([u.name for u in MemoryUnit]),
    help="What one unit of aliyun.com/gpu-mem is worth.  [default: MiB]",
)
@click.option(
    "--sharing",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="How cards may be cut (docs/operate/sharing.md); on a running cluster, applied within 2 seconds. /dev/null: "
    "no rules.",
)
@click.option(
    "--policy",
    callback=_policy,
    help="How nodes are chosen (docs/operate/node-policies.md); on a running cluster, the control plane restarts with "
    "it.",
)
@click.option(
    "--replicas",
    type=int,
    help="Number of control planes, of which one leads (docs/operate/high-availability.md), 1 to 5.  [default: 1]",
)
@click.option(
    "--chart", is_flag=True, help="Run Fractile in pods, installed from its Helm chart (docs/operate/install.md)."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--hollow", is_flag=True, hidden=True, help="Nodes without kubelet even where real ones are possible.")
@click.option("--without-fractile", is_flag=True, hidden=True, help="Kubernetes alone.")
def command(
    name: str,
    nodes: int | None,
    cards: str | None,
    file: Path | None,
    memory_unit: str | None,
    sharing: Path | None,
    policy: str | None,
    replicas: int | None,
    chart: bool,
    output: str,
    hollow: bool,
    without_fractile: bool,
) -> None:
    """Start, or complete, a local Kubernetes cluster with simulated cards.

    Runs the real etcd, kube-apiserver, kube-scheduler, kube-controller-manager and, as root, real kubelets with
    containerd; and Fractile on top. Run it again after a crash or a reboot: it starts what does not run and leaves the
    rest alone.
    """
    spec = _spec(name, nodes=nodes, cards=cards, file=file, unit=MemoryUnit[memory_unit] if memory_unit else None)
    cluster = LocalCluster(name, progress=Progress(lambda line: click.echo(line, err=True)))
    rules = None if sharing is None else _rules(sharing)
    wish = UpOptions(
        spec=spec,
        hollow=hollow,
        fractile=not without_fractile,
        sharing=rules,
        chart=chart,
        policy=policy,
        replicas=replicas,
    )
    started = cluster.up(wish)
    click.echo(_json(cluster, started) if output == "json" else _text(cluster, started))


def _spec(
    cluster: str, *, nodes: int | None, cards: str | None, file: Path | None, unit: MemoryUnit | None
) -> ClusterSpec | None:
    """The spec that the options describe; None without such options, which keeps an existing cluster as it is."""
    if file is not None:
        if nodes is not None or cards is not None:
            raise click.UsageError("--file describes nodes and cards; give it alone, or --nodes and --cards")
        return from_file(cluster, cluster_file.decode(_read(file, "--file"), source=str(file)), unit=unit)
    if nodes is None and cards is None and unit is None:
        return None
    return from_options(
        cluster,
        nodes=DEFAULT_NODES if nodes is None else nodes,
        cards=DEFAULT_CARDS if cards is None else cards,
        unit=unit or MemoryUnit.MiB,
    )


def _rules(file: Path) -> str:
    """The text of a file of sharing rules; WireError, with the line, when it is malformed."""
    try:
        text = _read(file, "--sharing").decode()
    except UnicodeDecodeError:
        raise SetupError(f"{file} is not UTF-8 text; see docs/operate/sharing.md for its form") from None
    sharing_file.decode(text, str(file))
    return text


def _read(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise SetupError(f"{file} cannot be read: {e.strerror}; give {option} a readable file") from None


def _text(cluster: LocalCluster, started: StartedCluster) -> str:
    name = "" if cluster.name == "fractile" else f" --name {cluster.name}"
    count = len(started.state.nodes)
    lines = [
        f"Cluster {cluster.name} is up: {count} {'hollow ' if started.state.hollow else ''}"
        f"node{'s' if count > 1 else ''}, {started.seconds:.1f} s.",
        f"  fractile inspect{name:<20}  cards, and the pods that share them",
        f"  fractile kubectl{name} get pods   or: export KUBECONFIG={cluster.kubeconfig}",
        f"  fractile down{name}",
    ]
    return "\n".join(lines)


def _json(cluster: LocalCluster, started: StartedCluster) -> str:
    state = started.state
    document = {
        "version": JSON_VERSION,
        "name": cluster.name,
        "kubeconfig": str(cluster.kubeconfig),
        "stateDirectory": str(cluster.place.root),
        "memoryUnit": state.spec.unit.name,
        "hollow": state.hollow,
        "seconds": round(started.seconds, 1),
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "cards": [
                    {"uuid": c.uuid, "index": c.index, "model": c.model, "memoryMiB": c.memory} for c in node.spec.cards
                ],
                "interconnect": node.spec.links,
            }
            for node in state.nodes
        ],
        "components": started.components,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()
