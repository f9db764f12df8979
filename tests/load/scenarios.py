"""What is compared: one row for each way to schedule pods. A new way is one more row.

Of each row the rounds are the same: kube-scheduler is started again with the row's configuration, the control plane too
where the row has an extender, the pods are created at full speed, and all are deleted in the end.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fractile.dialects.aliyun import MEMORY
from fractile.wire.kubernetes.queued import ANNOTATION as GLOBAL_PLACEMENT
from fractile.wire.kubernetes.queued import GATE

ALL_NODES = 100  # percentageOfNodesToScore
ADAPTIVE = 0  # kube-scheduler's default: the larger the cluster, the smaller the part that is looked at

Manifest = dict[str, Any]
Make = Callable[[str, int], Manifest]  # the name of the pod, and its number

SIZES = (2, 4, 8)  # GiB, in turn


def plain_pod(name: str, number: int) -> Manifest:
    """A part of one card, by a resource whose sum per node kube-scheduler checks, whoever else is asked."""
    return gpu_pod(name, SIZES[number % len(SIZES)])


def gated_pod(name: str, number: int) -> Manifest:
    """The same with the gate in its manifest, so that no webhook need set it."""
    made = plain_pod(name, number)
    return {**made, "spec": {**made["spec"], "schedulingGates": [{"name": GATE}]}}


def gpu_pod(
    name: str, gib: int, *, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
) -> Manifest:
    limits = {MEMORY: str(gib)}
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": limits}
    container = {"name": "main", "image": "registry.example/inference:1", "resources": resources}
    metadata = {"name": name, "labels": {"app": "inference", **(labels or {})}, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    ``percentage``: percentageOfNodesToScore. ``extender``: whether kube-scheduler has ours, as `fractile up` sets it
    up, and the control plane runs, with ``flags`` more than `fractile up` gives it. ``floor``: options of the extender
    that decides nothing (tests/load/floor), which runs instead; None: the control plane. ``binds``: whether
    kube-scheduler leaves Bindings to the extender. ``webhook``: whether the API server asks our webhook about pods.
    ``profile``: fields that every profile of kube-scheduler's configuration gets.
    ``labels`` and ``annotations``: of the namespace. ``pod``: the manifests. ``creators``: how many pods are being
    created at a time. ``against``: the row that this one is compared with, and ``bar``: the least share of its pods per
    second. ``cpu_bar``: the most processor time of kube-scheduler for a pod, in ms. ``writes_bar``: the most API writes
    of the control plane for a pod. ``pace``: pods that are created per second; None: as fast as it goes. ``siege``:
    slow connections and hostile bodies that the control plane has to bear meanwhile. ``verb_bar``: the most that the
    99th percentile of any verb may take, in ms. ``memory_bar``: the most memory of the control plane, in MB.
    """

    name: str
    about: str
    percentage: int
    extender: bool
    flags: tuple[str, ...] = ()
    webhook: bool = False
    floor: tuple[str, ...] | None = None
    binds: bool = True
    profile: Mapping[str, Any] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    pod: Make = plain_pod
    creators: int = 16
    against: str = ""
    bar: float | None = None
    cpu_bar: float | None = None
    writes_bar: float | None = None
    pace: float | None = None
    siege: tuple[int, int] = (0, 0)
    verb_bar: float | None = None
    memory_bar: float | None = None

    @property
    def namespace(self) -> str:
        return f"load-{self.name}"


TABLE = (
    Scenario(name="none-100", about="no extender, all nodes", percentage=ALL_NODES, extender=False),
    Scenario(
        name="extender-100",
        about="Fractile's extender, all nodes",
        percentage=ALL_NODES,
        extender=True,
        against="none-100",
        bar=1.0,
        writes_bar=1.0,
    ),
    Scenario(name="none", about="no extender, adaptive", percentage=ADAPTIVE, extender=False),
    Scenario(
        name="extender",
        about="Fractile's extender, adaptive",
        percentage=ADAPTIVE,
        extender=True,
        against="none",
        bar=0.95,
        writes_bar=1.0,
    ),
    Scenario(
        name="gated-100",
        about="placement over all nodes, pods held back by a gate, all nodes",
        percentage=ALL_NODES,
        extender=True,
        flags=("--placement-gate",),
        webhook=True,
        annotations={GLOBAL_PLACEMENT: "true"},
        against="none-100",
        bar=1.8,
        cpu_bar=2.0,
        writes_bar=3.0,
    ),
)
ON_REQUEST = (
    Scenario(
        name="extender-one",
        about="the extender names one node for each pod, adaptive",
        percentage=ADAPTIVE,
        extender=True,
        flags=("--name-nodes=1",),
        against="none",
        bar=0.95,
        writes_bar=1.0,
    ),
    Scenario(
        name="queued-100",
        about="placement over all nodes, of pods that wait in kube-scheduler's queue, all nodes",
        percentage=ALL_NODES,
        extender=True,
        annotations={GLOBAL_PLACEMENT: "true"},
        against="none-100",
        bar=1.8,
        cpu_bar=2.0,
        writes_bar=2.0,
    ),
    Scenario(
        name="own-gate-100",
        about="placement over all nodes, pods that bring the gate, no webhook, all nodes",
        percentage=ALL_NODES,
        extender=True,
        flags=("--placement-gate",),
        annotations={GLOBAL_PLACEMENT: "true"},
        pod=gated_pod,
        against="none-100",
        bar=1.8,
        cpu_bar=2.0,
        writes_bar=3.0,
    ),
    Scenario(
        name="floor",
        about="an extender that decides nothing, in Go, adaptive",
        percentage=ADAPTIVE,
        extender=True,
        floor=(),
        against="none",
        bar=0.95,
    ),
    Scenario(
        name="floor-http2",
        about="the same over HTTP/2",
        percentage=ADAPTIVE,
        extender=True,
        floor=("--http2",),
        against="none",
        bar=0.95,
    ),
    Scenario(
        name="floor-no-bind",
        about="the same over HTTP/1.1, and kube-scheduler binds",
        percentage=ADAPTIVE,
        extender=True,
        floor=(),
        binds=False,
        against="none",
        bar=0.95,
    ),
    Scenario(
        name="webhook",
        about="extender and webhook, adaptive",
        percentage=ADAPTIVE,
        extender=True,
        webhook=True,
        against="none",
        writes_bar=1.0,
    ),
    Scenario(
        name="paced",
        about="Fractile's extender, 10 pods a second, adaptive",
        percentage=ADAPTIVE,
        extender=True,
        pace=10.0,
    ),
    Scenario(
        name="besieged",
        about="the same under 3,000 slow connections and 64 hostile bodies",
        percentage=ADAPTIVE,
        extender=True,
        pace=10.0,
        siege=(3_000, 64),
        verb_bar=50.0,
        memory_bar=400.0,
    ),
)
BY_NAME = {one.name: one for one in (*TABLE, *ON_REQUEST)}
