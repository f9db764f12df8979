"""Where ``fractile plan`` and ``fractile simulate`` find nodes and pods: CSV, YAML or JSON files, or the API server.

A name that ends in .yaml, .yml or .json is a file of manifests; ``live`` is the cluster chosen by --kubeconfig,
--context and --name; any other name is a CSV file with the columns of docs/develop/simulate.md. Nothing is written,
neither here nor on the cluster.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from fractile.errors import ApiError, SetupError, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient, KubeObject
from fractile.kube.credentials import Credentials
from fractile.reports import reading
from fractile.sim.snapshot.build import NamedPod, SnapshotObjects, Wrong, snapshot_of
from fractile.sim.snapshot.cluster_snapshot import Snapshot
from fractile.sim.snapshot.rows import machines_of, node_rows, pod_rows, tasks_of
from fractile.sim.snapshot.trace import NodeRow, PodRow, read_nodes, read_pods
from fractile.sim.snapshot.yaml_files import SUFFIXES, read_objects, told
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.manifests import DisruptionBudget, PlannedNode, PlannedPod

LIVE = "live"

K = TypeVar("K", bound=KubeObject)


def for_simulation(nodes: str, pods: str, who: Callable[[], Credentials]) -> tuple[Sequence[NodeRow], Sequence[PodRow]]:
    """The nodes, without their pods, and all pods of the other source, whether they run or wait."""
    if not (_is_manifest(nodes) or _is_manifest(pods) or LIVE in (nodes, pods)):
        rows = read_nodes(Path(nodes))
        return rows, read_pods(Path(pods), rows)
    snapshot = _with_pods(nodes, pods, who, keep=False)
    tasks = (*snapshot.bound, *snapshot.pending)
    if not tasks:
        raise WireError(f"{pods} has no pods")
    return node_rows(snapshot), pod_rows(snapshot, tasks)


def for_plan(nodes: str, pods: str | None, who: Callable[[], Credentials], shapes: Sequence[NodeRow] = ()) -> Snapshot:
    """The nodes with what runs on them, and the waiting pods, from ``nodes`` if ``pods`` is None.

    ``shapes``: nodes that may be added, so that pods which fit only them do not count as a mistake in the trace.
    """
    return _with_pods(nodes, pods or nodes, who, keep=True, shapes=shapes)


def _with_pods(
    nodes: str, pods: str, who: Callable[[], Credentials], *, keep: bool, shapes: Sequence[NodeRow] = ()
) -> Snapshot:
    """The nodes and the pods. ``keep``: pods that run on ``nodes`` stay there; else only the pods of ``pods`` count."""
    if pods == LIVE != nodes:
        raise click.UsageError("--pods live goes with --nodes live: its pods run on the cluster's own nodes")
    wrong, notes = _wrong(LIVE in (nodes, pods))
    first = _objects(nodes, who)
    if pods == nodes:
        found = snapshot_of(first, wrong)
    else:
        running = [n for n in first.pods if keep and n.pod.spec.node_name]
        found = snapshot_of(_merged(msgspec.structs.replace(first, pods=running), _pods_only(pods)), wrong)
    if not found.machines:
        raise WireError(f"{nodes} has no nodes")
    if pods != nodes and not _is_manifest(pods):
        rows = read_pods(Path(pods), (*node_rows(found), *shapes))
        found = msgspec.structs.replace(found, pending=(*found.pending, *tasks_of(rows)))
    return msgspec.structs.replace(found, notes=(*found.notes, *notes))


def _merged(first: SnapshotObjects, second: SnapshotObjects) -> SnapshotObjects:
    """The nodes and cards of the first, and everything else of both."""
    return msgspec.structs.replace(
        first,
        pods=[*first.pods, *second.pods],
        budgets=[*first.budgets, *second.budgets],
        classes=[*first.classes, *second.classes],
    )


def _objects(source: str, who: Callable[[], Credentials]) -> SnapshotObjects:
    if source == LIVE:
        return asyncio.run(live(who()))
    if _is_manifest(source):
        return read_objects(Path(source))
    return SnapshotObjects(machines=machines_of(read_nodes(Path(source))))


def _pods_only(source: str) -> SnapshotObjects:
    """The pods of a file of manifests. Pods of a CSV file are read later, since they are checked against the nodes."""
    if not _is_manifest(source):
        return SnapshotObjects()
    found = read_objects(Path(source))
    if not found.pods:
        raise WireError(f"{source} has no pods")
    return found


def _is_manifest(source: str) -> bool:
    return Path(source).suffix.lower() in SUFFIXES


def _wrong(live: bool) -> tuple[Wrong, list[str]]:
    notes: list[str] = []
    return (lambda who, why: notes.append(f"{who}: {why}")) if live else told, notes


# ── the API server ───────────────────────────────────────────────────────────────────────────────────────────────────


async def live(who: Credentials) -> SnapshotObjects:
    async with KubeClient(who) as client:
        found = await objects_of(client)
        budgets = await reading.read(client, paths.disruption_budgets(), DisruptionBudget)
    named = [(f"PodDisruptionBudget {b.metadata.namespace}/{b.metadata.name}", b) for b in budgets]
    return msgspec.structs.replace(found, budgets=named)


async def objects_of(client: KubeClient) -> SnapshotObjects:
    """Everything that decides where a pod fits now; without disruption budgets, which matter only for moves."""
    nodes = await reading.read(client, paths.nodes(), PlannedNode)
    cards = await _if_served(client, paths.extended_resources(), ExtendedResource)
    classes = await _if_served(client, paths.resource_classes(), ResourceClass)
    pods = await reading.read(client, paths.pods(), PlannedPod)
    return SnapshotObjects(
        nodes=[(f"node {n.metadata.name}", n) for n in nodes],
        cards=[(f"ExtendedResource {c.metadata.name}", c) for c in cards],
        classes=classes,
        pods=[NamedPod(f"pod {p.metadata.namespace}/{p.metadata.name}", p) for p in pods],
    )


async def _if_served(client: KubeClient, path: str, kind: type[K]) -> list[K]:
    """The objects; none where Fractile is not installed, since such a cluster can be planned too."""
    try:
        return await reading.read(client, path, kind)
    except SetupError as e:
        if isinstance(e.__context__, ApiError) and e.__context__.code == 404:
            return []
        raise
