"""A control plane that chooses nodes itself, on a fake API server: real objects, wired as in main/term/placing.py."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fractile.dialects.table import NAMES, parse_pod
from fractile.extender.app import Extender
from fractile.extender.choose import Chooser
from fractile.extender.engine import Engine
from fractile.extender.policies import NodePolicies
from fractile.extender.preempt import Preemption
from fractile.globalplacement.counts import DecisionTally, QueueDepths
from fractile.globalplacement.opt_in import OptIn
from fractile.globalplacement.placing import Decisions, Placing
from fractile.globalplacement.reservations import ReservationListener, Reservations
from fractile.kube import paths
from fractile.ledger.node_rules import NodeRules
from fractile.ledger.node_totals import NodeTotals
from fractile.model.units import MemoryUnit, PodUID
from fractile.watch.node_handlers import NodeHandlers
from fractile.watch.pod_mix import SeenPods
from fractile.wire.kubernetes import queued
from fractile.wire.kubernetes.manifests import Taint
from fractile.wire.kubernetes.objects import Container
from fractile.wire.kubernetes.queued import QueuedPod
from tests.builders import container
from tests.main.plane import Plane, plane

AMPLE = {"cpu": "64", "memory": "256Gi", "pods": "110"}


class World:
    """``p`` is the control plane; nodes are there as soon as ``node`` says what they can give."""

    def __init__(self, p: Plane, *, policy: str = "binpack", every_pod: bool = True, no_pod: bool = False) -> None:
        self.p = p
        self.namespaces: dict[str, str] = {}
        totals = NodeTotals()
        self.engine = Engine(p.ledger, totals)
        self.policies = NodePolicies(p.ledger, self.engine, cluster=policy)
        self.nodes = NodeHandlers(totals, SeenPods(p.clock), p.ledger.arrays, MemoryUnit.MiB)
        self.rules = NodeRules(p.ledger.arrays)
        self.chooser = Chooser(
            ledger=p.ledger,
            classes=p.index,
            policies=self.policies,
            engine=self.engine,
            rules=self.rules,
            nominations=p.nominations,
        )
        self.tally = DecisionTally()
        told = ReservationListener(
            expected=self.nodes.pod_expected,
            not_expected=self.nodes.pod_not_expected,
            give_back=p.handlers.give_back,
        )
        self.reservations = Reservations(p.ledger, p.clock, told, ended=self.tally.ended)
        self.placing = Placing(
            client=p.client,
            reservations=self.reservations,
            decisions=Decisions(
                wanted=OptIn(self.namespaces, every_pod=every_pod, no_pod=no_pod).of,
                parse=lambda pod: parse_pod(pod, MemoryUnit.MiB, NAMES),
                choose=self.chooser.choose,
                reserve=p.binder.reserve,
            ),
            clock=p.clock,
            holds=lambda uid: p.ledger.entry(uid) is not None,
            tally=self.tally,
            nominates=not no_pod,
        )
        self.extender = Extender(
            ledger=p.ledger,
            binder=p.binder,
            expected=p.expected,
            unit=MemoryUnit.MiB,
            ready=lambda: True,
            classes=p.index,
            policies=self.policies,
            preemption=Preemption(p.ledger, p.assigned_pods, p.nominations),
            nominations=p.nominations,
            placing=self.placing,
        )

    def counted(self) -> dict[str, int]:
        """What was counted so far, as KIND:LABEL; what never happened is not there."""
        found = self.tally.figures(QueueDepths())
        kinds = {"decision": found.decisions, "ended": found.ended, "gate": found.gates}
        return {f"{kind}:{label}": n for kind, some in kinds.items() for label, n in some.items() if n}

    def node(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        taints: Sequence[Taint] = (),
        cordoned: bool = False,
        gives: dict[str, Any] | None = None,
    ) -> None:
        self.nodes.node_changed(name, gives or AMPLE)
        self.rules.put(name, labels or {}, taints, cordoned=cordoned)

    # ── pods ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, name: str = "p", *containers: Container, gate: bool = False, **fields: Any) -> QueuedPod:
        """Store a pod; no_pod has seen it yet. ``spec``: more of its spec."""
        body: dict[str, Any] = {
            "metadata": {"name": name, "namespace": "default", "annotations": fields.get("annotations", {})},
            "spec": {
                "containers": msgspec.to_builtins(list(containers or (container(memory=8138),))),
                **fields.get("spec", {}),
            },
        }
        if gate:
            body["spec"]["schedulingGates"] = [{"name": queued.GATE}, *fields.get("gates", [])]
        self.p.server.create(paths.pods("default"), body)
        return self.stored(name)

    def stored(self, name: str = "p") -> QueuedPod:
        return msgspec.convert(self.p.server.get(paths.pod("default", name)), QueuedPod)

    def see(self, name: str = "p") -> QueuedPod:
        """The watch shows the pod as it is now."""
        found = self.stored(name)
        self.p.handlers.changed(found)
        self.p.assigned_pods.changed(found)
        self.nodes.pod_changed(found)
        self.placing.pod_changed(found)
        return found

    def submit(self, name: str = "p", *containers: Container, **fields: Any) -> QueuedPod:
        self.create(name, *containers, **fields)
        return self.see(name)

    async def place(self, name: str = "p") -> str:
        """Decide on the pod now; the node that it is nominated to then."""
        await self.placing.place(PodUID(self.stored(name).metadata.uid))
        return self.nominated(name)

    def nominated(self, name: str = "p") -> str:
        return self.stored(name).status.nominated_node_name

    def gated(self, name: str = "p") -> bool:
        return queued.gated(self.stored(name))

    def uid(self, name: str = "p") -> PodUID:
        return PodUID(self.stored(name).metadata.uid)

    # ── kube-scheduler ───────────────────────────────────────────────────────────────────────────────────────────────

    def filter(self, name: str, *nodes: str) -> list[str]:
        body = {"Pod": msgspec.to_builtins(self.stored(name)), "NodeNames": list(nodes)}
        answer = msgspec.json.decode(self.extender.filter(msgspec.json.encode(body)))
        assert answer["Error"] == ""
        return answer["NodeNames"]

    async def bind(self, name: str, node: str) -> str:
        meta = self.stored(name).metadata
        body = {"PodName": name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        return msgspec.json.decode(await self.extender.bind(msgspec.json.encode(body)))["Error"]


@asynccontextmanager
async def world(
    nodes: Sequence[str] = ("n1", "n2"), *, policy: str = "binpack", every_pod: bool = True, no_pod: bool = False
) -> AsyncGenerator[World, None]:
    async with plane(nodes) as p:
        made = World(p, policy=policy, every_pod=every_pod, no_pod=no_pod)
        for name in nodes:
            made.node(name)
        yield made


@asynccontextmanager
async def running(w: World) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(w.placing.run())
    yield
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task.exception()


def delete(w: World, name: str) -> None:
    uid = w.uid(name)
    w.p.server.delete(paths.pod("default", name))
    w.p.handlers.gone(uid)
    w.nodes.pod_gone(uid)
    w.placing.pod_gone(uid)
