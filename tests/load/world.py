"""The cluster as objects: nodes of eight cards, a card object for each, and pods that run with their placements.

As the API server would have stored them after kubelets, agents and the control plane had done their work. Pure; names
and UIDs are derived from numbers, so that a run can be repeated.
"""

import random
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from fractile.dialects import table
from fractile.dialects.aliyun import MEMORY
from fractile.model.card import Card
from fractile.model.units import CardUUID, MemoryUnit, MiB, NodeName
from fractile.wire.fractile import extended_resource, placement
from tests.builders import given, piece
from tests.builders import placement as placed
from tests.load.scenarios import SIZES, Manifest, gpu_pod

UNIT = MemoryUnit.GiB
CARDS = 8
CARD = 16  # GiB
RUNNING = "running"  # the namespace of the pods that were there before

_UUIDS = uuid.UUID("0a4b3a4e-8f0e-4d5e-9c0a-7e3f6f1d2a11")  # our own name space for uuid5
_CREATED = "2026-11-21T04:31:03Z"
_ZONES = 3


class Stored(msgspec.Struct, frozen=True):
    """An object and where the API server keeps it in etcd."""

    key: str
    value: bytes


def node_name(number: int) -> NodeName:
    return NodeName(f"node-{number:05d}.pool-a.example.internal")


def card_of(node: int, slot: int) -> Card:
    identity = CardUUID(f"GPU-{uuid.uuid5(_UUIDS, f'{node}/{slot}')}")
    return Card(identity, slot, "Tesla-V100-SXM2-16GB", MiB(CARD * UNIT), f"00000000:{slot + 1:02X}:00.0")


def objects(nodes: int, running: int) -> Iterator[Stored]:
    """Everything that is there before the first pod is created."""
    for number in range(nodes):
        yield _node(number)
        yield from (_card(number, slot) for slot in range(CARDS))
    for number, (node, slot, gib) in enumerate(cells(nodes, running)):
        yield _running(number, node, slot, gib)


def cells(nodes: int, running: int) -> Iterator[tuple[int, int, int]]:
    """Node, slot and GiB of each running pod: cards at random, each as long as it has room."""
    rng = random.Random(1)
    free = [CARD] * (nodes * CARDS)
    if running * sum(SIZES) > len(SIZES) * sum(free) // 2:
        raise ValueError(f"{running} pods fill more than half of {nodes} nodes; give more nodes or fewer pods")
    for number in range(running):
        gib = SIZES[number % len(SIZES)]
        while free[cell := rng.randrange(len(free))] < gib:
            pass
        free[cell] -= gib
        yield *divmod(cell, CARDS), gib


def _node(number: int) -> Stored:
    name = node_name(number)
    cards = [card_of(number, slot) for slot in range(CARDS)]
    ours = {a.resource: str(a.total) for a in table.advertised(cards, UNIT) if a.total}
    amounts = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "900Gi", "pods": "110", **ours}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": f"zone-{number % _ZONES}",
        "node.kubernetes.io/instance-type": "gpu-8",
    }
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _meta(name, labels=labels),
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [_condition(kind, "False") for kind in _PRESSURES] + [_condition("Ready", "True")],
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        },
    }
    return Stored(f"/registry/minions/{name}", msgspec.json.encode(body))


_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


def _condition(kind: str, status: str) -> Manifest:
    times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), _CREATED)
    return {"type": kind, "status": status, "reason": "Hollow", "message": "nobody runs it", **times}


def _card(node: int, slot: int) -> Stored:
    made = extended_resource.from_card(card_of(node, slot), node_name(node), dialects=table.NAMES)
    body: dict[str, Any] = msgspec.to_builtins(made)
    body["metadata"] = {**body["metadata"], **_meta(body["metadata"]["name"])}
    body["status"] = {"phase": "Available"}
    group, plural = extended_resource.GROUP, extended_resource.PLURAL
    return Stored(f"/registry/{group}/{plural}/{body['metadata']['name']}", msgspec.json.encode(body))


def _running(number: int, node: int, slot: int, gib: int) -> Stored:
    name, host = f"running-{number:06d}", node_name(node)
    held = placed(given("main", piece(card_of(node, slot).uuid, MiB(gib * UNIT))), node=host)
    body = gpu_pod(name, gib)
    meta = _meta(name, labels=body["metadata"]["labels"], annotations={placement.ANNOTATION: placement.encode(held)})
    body["metadata"] = {**meta, "namespace": RUNNING}
    container = body["spec"]["containers"][0]
    # What the API server's defaults are for requests of other resources it does when it stores, not when it reads.
    container["resources"]["requests"][MEMORY] = container["resources"]["limits"][MEMORY]
    body["spec"] |= {"nodeName": host, "serviceAccountName": "default"}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": _CREATED}
    body["status"] = {"phase": "Running", "conditions": [ready], "startTime": _CREATED, "podIP": "10.244.0.5"}
    return Stored(f"/registry/pods/{RUNNING}/{name}", msgspec.json.encode(body))


def _meta(name: str, **more: object) -> Manifest:
    return {"name": name, "uid": str(uuid.uuid5(_UUIDS, name)), "creationTimestamp": _CREATED, **more}
