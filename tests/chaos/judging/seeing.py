"""Looks at the whole cluster: API server, kubelets, agents, control plane. The only module that builds snapshots.

Failure rule: what cannot be read now raises a FractileError or an OSError; the round looks again.
"""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletState
from fractile.errors import FractileError, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.lab.cluster.local import LocalCluster
from fractile.model.units import NodeName
from fractile.region import directory
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from fractile.wire.fractile.extended_resource import ExtendedResource, to_card
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes import pod_requests
from fractile.wire.kubernetes.pod_requests import CountedNode
from tests.chaos.acts.denials import Denials
from tests.chaos.acts.programs import Programs
from tests.chaos.judging.snapshot import LedgerReport, SeenPod, Snapshot, Token

_PODS = re.compile(r'^fractile_ledger_pods\{state="(\w+)"\} (\S+)$', re.M)
_CONFLICTS = re.compile(r"^fractile_ledger_conflicts (\S+)$", re.M)
_WITHIN = 20.0  # seconds


class Unreadable(FractileError):
    """One of the books cannot be read now."""


class Eyes:
    """Reads; changes nothing."""

    def __init__(self, cluster: LocalCluster, client: KubeClient, programs: Programs) -> None:
        self._cluster = cluster
        self._client = client
        self._programs = programs
        self._denials = Denials({node: cluster.place.log(f"{node}/kubelet") for node in programs.nodes})

    async def pods(self, namespace: str = "") -> tuple[SeenPod, ...]:
        async with asyncio.timeout(_WITHIN):
            found, _ = await self._client.list(paths.pods(namespace), SeenPod)
        return tuple(found)

    async def look(self) -> Snapshot:
        """Kubelet's books and the directories first: what they name is in the API by then."""
        async with asyncio.timeout(_WITHIN):
            nodes = self._programs.nodes
            books = await asyncio.gather(*(self._books(node) for node in nodes))
            tokens = await asyncio.to_thread(self._tokens, nodes)
            listed, _ = await self._client.list(paths.nodes(), CountedNode)
            cards, _ = await self._client.list(paths.extended_resources(), ExtendedResource)
            classes, _ = await self._client.list(paths.resource_classes(), ResourceClass)
            return Snapshot(
                pods=await self.pods(),
                cards=tuple(to_card(card) for card in cards),
                allocatable={n.metadata.name: pod_requests.amounts(n.given) for n in listed},
                classes=tuple(classes),
                records={node: found.recorded or () for node, found in zip(nodes, books, strict=True)},
                listed={
                    node: {(p.namespace, p.name, c): held for p in found.listed for c, held in p.held.items()}
                    for node, found in zip(nodes, books, strict=True)
                },
                tokens=tokens,
                ledger=report_of(await self._programs.metrics()),
                denied=await asyncio.to_thread(self._denials.look),
            )

    async def _books(self, node: str) -> KubeletState:
        folder = self._cluster.kubelet_folder(node)
        kubelet = Kubelet(folder / "pod-resources" / "kubelet.sock", folder / "device-plugins" / FILE_NAME)
        try:
            books = await kubelet.state()
        finally:
            await kubelet.close()
        if books.recorded is None:
            raise Unreadable(f"the checkpoint of {node} cannot be read")
        return books

    def _tokens(self, nodes: Sequence[str]) -> tuple[Token, ...]:
        found: list[Token] = []
        for node in nodes:
            place = self._cluster.place.node(self._cluster.state.node(node).index)
            for folder in sorted((place.agent / "slices").glob("[!.]*")):
                found.append(token_of(NodeName(node), folder))
        return tuple(found)


def token_of(node: NodeName, folder: Path) -> Token:
    """One that is being changed, or not granted yet, says nothing."""
    try:
        limits = directory.read(folder)
    except (OSError, WireError):
        limits = None
    if limits is None:
        return Token(node, folder.name)
    return Token(node, folder.name, limits.pod_uid, limits.container, tuple((c.uuid, c.memory) for c in limits.cards))


def report_of(page: str) -> LedgerReport | None:
    """Of the metrics of the replica that is ready; None of an empty page."""
    states = {state: int(float(count)) for state, count in _PODS.findall(page)}
    conflicts = _CONFLICTS.search(page)
    if conflicts is None:
        return None
    return LedgerReport(states.get("bound", 0), states.get("assumed", 0), int(float(conflicts[1])))
