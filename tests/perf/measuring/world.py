"""The cluster of the benchmarks: 5,000 nodes of 8 cards, 20,000 placed slices, pods of about 5 kB each."""

import random
import time
from collections.abc import Iterator

import msgspec

from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.units import CardUUID, MiB, NodeName, PodUID
from fractile.wire.fractile import extended_resource, placement
from tests.builders import CARD_MEMORY, given, piece
from tests.builders import placement as placed

NODES = 5_000
CARDS = 8
SLICES = 20_000
SIZES = (2034, 4069, 8138)  # MiB

NAMES = [NodeName(f"node-{i:05d}.pool-a.example.internal") for i in range(NODES)]

_POD = (
    b'{"metadata":{"name":"inference-%(i)06d-7c9d8f6b5d-x2x4q","generateName":"inference-7c9d8f6b5d-","namespace":"team-'
    b'%(team)02d","uid":"%(uid)s","resourceVersion":"%(version)d","generation":1,"creationTimestamp":"2026-11-21T04:31:03Z",'
    b'"labels":{"app":"inference","pod-template-hash":"7c9d8f6b5d","team":"vision"},"annotations":{%(annotations)s},'
    b'"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"inference-7c9d8f6b5d","uid":"%(uid)s",'
    b'"controller":true,"blockOwnerDeletion":true}],"managedFields":[{"manager":"kube-controller-manager","operation":'
    b'"Update","apiVersion":"v1","time":"2026-11-21T04:31:03Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{%(fields)s}}}]},'
    b'"spec":{"volumes":[{"name":"kube-api-access-x2x4q","projected":{"sources":[{"serviceAccountToken":'
    b'{"expirationSeconds":3607,"path":"token"}}],"defaultMode":420}}],"containers":[{"name":"main","image":'
    b'"registry.example/inference:1","env":[%(env)s],"resources":{"limits":{"aliyun.com/gpu-mem":"%(memory)d","cpu":"4"},'
    b'"requests":{"aliyun.com/gpu-mem":"%(memory)d","cpu":"2"}},"terminationMessagePath":"/dev/termination-log"}],'
    b'"restartPolicy":"Always","dnsPolicy":"ClusterFirst","serviceAccountName":"default","nodeName":"%(node)s",'
    b'"schedulerName":"default-scheduler","priority":0,"preemptionPolicy":"PreemptLowerPriority"},"status":{"phase":'
    b'"Running","conditions":[%(conditions)s],"hostIP":"10.0.0.1","podIP":"10.244.0.5","startTime":"2026-11-21T04:31:03Z",'
    b'"containerStatuses":[{"name":"main","state":{"running":{"startedAt":"2026-11-21T04:31:05Z"}},"lastState":{},"ready":true,'
    b'"restartCount":0,"image":"registry.example/inference:1","imageID":"sha256:0123456789abcdef","containerID":'
    b'"containerd://0123456789abcdef","started":true}],"qosClass":"Burstable"}}'
)
_CONDITIONS = b",".join(
    b'{"type":"%s","observedGeneration":1,"status":"True","lastProbeTime":null,"lastTransitionTime":"2026-11-21T04:31:05Z"}'
    % kind
    for kind in (b"PodReadyToStartContainers", b"Initialized", b"Ready", b"ContainersReady", b"PodScheduled")
)
_FIELDS = b",".join(b'"f:field-%03d":{".":{},"f:name":{},"f:value":{},"f:imagePullPolicy":{}}' % i for i in range(25))
_ENV = b",".join(b'{"name":"SETTING_%03d","value":"a value of some length"}' % i for i in range(12))


def card_of(node: int, slot: int) -> Card:
    uuid = CardUUID(f"GPU-{node:08x}-{slot:04x}-4000-8000-000000000000")
    return Card(uuid, slot, "Tesla-V100-SXM2-16GB", MiB(CARD_MEMORY), f"00000000:{slot:02X}:00.0")


def full_ledger() -> Ledger:
    """Every card, and slices of three sizes at random until there are SLICES."""
    ledger = Ledger(time.monotonic)
    for n, name in enumerate(NAMES):
        for slot in range(CARDS):
            ledger.put_card(name, card_of(n, slot))
    rng = random.Random(1)
    count = 0
    while count < SLICES:
        if ledger.observe(PodUID(f"pod-{count}"), _slice(rng.randrange(NODES), rng.randrange(CARDS), rng)) is None:
            count += 1
    return ledger


def _slice(node: int, slot: int, rng: random.Random) -> Placement:
    return placed(given("main", piece(card_of(node, slot).uuid, rng.choice(SIZES))), node=NAMES[node])


def card_objects() -> Iterator[bytes]:
    """All ExtendedResources as the API server lists them."""
    for n, name in enumerate(NAMES):
        for slot in range(CARDS):
            yield msgspec.json.encode(extended_resource.from_card(card_of(n, slot), name))


def node_object(name: NodeName, capacity: bytes = b"{}") -> bytes:
    """A node that is ready; ``capacity``: what it says it has."""
    ready = b'[{"type":"Ready","status":"True","lastTransitionTime":"2026-11-21T04:31:03Z"}]'
    status = b'{"capacity":%s,"allocatable":%s,"conditions":%s}' % (capacity, capacity, ready)
    return b'{"metadata":{"name":"%s"},"status":%s}' % (name.encode(), status)


def node_objects() -> Iterator[bytes]:
    """All nodes."""
    return map(node_object, NAMES)


def pod_objects(count: int) -> Iterator[bytes]:
    """Bound pods, dealt out over the cards one after another, each with its placement; about 5 kB."""
    for i in range(count):
        cell = i % (NODES * CARDS)
        node, slot = divmod(cell, CARDS)
        held = placed(given("main", piece(card_of(node, slot).uuid, 2034)), node=NAMES[node])
        annotation = msgspec.json.encode({placement.ANNOTATION: placement.encode(held)})[1:-1]
        yield _POD % {
            b"i": i,
            b"team": i % 50,
            b"uid": b"%08x-8f0e-4d5e-9c0a-7e3f6f1d2a11" % i,
            b"version": 1000 + i,
            b"annotations": annotation,
            b"fields": _FIELDS,
            b"conditions": _CONDITIONS,
            b"env": _ENV,
            b"memory": 2034,
            b"node": NAMES[node].encode(),
        }
