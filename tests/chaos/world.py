"""A quiet cluster as a snapshot: two nodes of two cards, and pods on them that hold what all books say. Tests then make
one book say something else."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from fractile.dialects.aliyun import MEMORY
from fractile.lab.demos import workload as w
from fractile.model.card import Card
from fractile.model.units import CardUUID, ContainerName, NodeName, PodUID
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile import placement
from fractile.wire.fractile.device_ids import device_id
from tests import builders
from tests.chaos.judging.snapshot import LedgerReport, SeenPod, Snapshot, Token

SIZE = 16_000  # MiB of a card
NODES = ("n1", "n2")
NAMESPACE = "chaos"


def cards() -> tuple[tuple[NodeName, Card], ...]:
    return tuple((NodeName(n), builders.card(n, i, memory=SIZE)) for n in NODES for i in range(2))


def seen_pod(
    name: str,
    *,
    memory: int = 3000,
    node: str = "",
    card: int = 0,
    phase: str = "",
    restarts: int = 0,
    started: bool | None = None,
    more: Mapping[str, Any] | None = None,
    beside: Mapping[str, str] | None = None,
) -> SeenPod:
    """A pod that asks for memory; with a node it is bound and, unless a phase is given, runs there.
    ``more``: of its metadata; ``beside``: other amounts that it asks for."""
    made: dict[str, Any] = w.pod(name, w.container(memory=memory))
    made["spec"]["containers"][0]["resources"]["limits"] |= beside or {}
    made["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{name}", **(more or {})}
    phase = phase or ("Running" if node else "Pending")
    made["status"] = dict[str, Any](phase=phase)
    if node:
        made["spec"]["nodeName"] = node
        given = builders.placement(builders.given("main", builders.piece(uuid(node, card), memory)), node=node)
        made["metadata"]["annotations"] = {placement.ANNOTATION: placement.encode(given)}
    if phase == "Running" if started is None else started:
        status = {"name": "main", "containerID": f"c-{name}", "restartCount": restarts, "ready": phase == "Running"}
        made["status"]["containerStatuses"] = [status]
    return msgspec.convert(made, SeenPod)


def uuid(node: str, card: int) -> CardUUID:
    return builders.card_uuid(node, card)


def world(*pods: SeenPod) -> Snapshot:
    """All books agree with the pods' placements."""
    records: dict[str, list[Recorded]] = {node: [] for node in NODES}
    listed: dict[str, dict[tuple[str, str, str], dict[str, frozenset[str]]]] = {node: {} for node in NODES}
    tokens: list[Token] = []
    used: dict[str, int] = {}
    for pod in pods:
        placed = pod.placement
        if placed is None or pod.finished:
            continue
        (piece,) = placed.containers[0].slices
        first = used.get(piece.card, 0)
        used[piece.card] = first + piece.memory
        ids = frozenset(device_id(piece.card, k) for k in range(first, first + piece.memory))
        records[placed.node].append(Recorded(PodUID(pod.uid), ContainerName("main"), MEMORY, ids))
        listed[placed.node][NAMESPACE, pod.name, "main"] = {MEMORY: ids}
        tokens.append(Token(placed.node, f"t-{pod.name}", pod.uid, "main", ((piece.card, piece.memory * 2**20),)))
    return Snapshot(
        pods=pods,
        cards=cards(),
        allocatable={node: {MEMORY: Fraction(2 * SIZE)} for node in NODES},
        records={node: tuple(entries) for node, entries in records.items()},
        listed=listed,
        tokens=tuple(tokens),
        ledger=LedgerReport(sum(p.bound and not p.finished for p in pods), 0, 0),
    )


def but(seen: Snapshot, **changes: object) -> Snapshot:
    return msgspec.structs.replace(seen, **changes)


def kinds(sentences: Sequence[str]) -> set[str]:
    """What each sentence begins with."""
    return {sentence.partition(":")[0] for sentence in sentences}
