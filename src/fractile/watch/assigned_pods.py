"""The bound pods that hold devices, as preemption sees them: their priority, and the budgets that protect them.

Fed by the watch of pods after the ledger, which knows what they hold; pods that hold nothing are not kept.
"""

from collections.abc import Iterable
from functools import partial

import msgspec

from fractile.ledger.ledger import Ledger
from fractile.model.disruption import Protected
from fractile.model.units import NodeName, PodUID
from fractile.policy.disruption import violating
from fractile.policy.preemption import Candidate
from fractile.watch.budgets import DisruptionBudgets, Spend, nothing
from fractile.watch.pod_labels import Labels, LabelSets
from fractile.wire.kubernetes.disruption import PodDisruptionBudget, budget
from fractile.wire.kubernetes.objects import ObjectMeta, Pod
from fractile.wire.kubernetes.pod_totals import of_pod


class AssignedPod(msgspec.Struct, frozen=True, gc=False):
    """One pod. ``started`` is its creation time, which is known for every pod."""

    uid: PodUID
    namespace: str
    name: str
    node: NodeName
    priority: int
    started: str
    leaving: bool
    cpu: int
    memory: int
    labels: Labels


class AssignedPods:
    """By node and UID; written by the watches only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._on: dict[NodeName, dict[PodUID, AssignedPod]] = {}
        self._node: dict[PodUID, NodeName] = {}
        self._budgets = DisruptionBudgets()
        self._labels = LabelSets()

    # ── updates ──────────────────────────────────────────────────────────────────────────────────────────────────

    def changed(self, pod: Pod) -> None:
        """Handle a pod that appeared or changed, after the ledger has."""
        uid = PodUID(pod.metadata.uid)
        if pod.finished or not pod.spec.node_name or self._ledger.entry(uid) is None:
            self.gone(uid)
            return
        before, node = self.find(uid), NodeName(pod.spec.node_name)
        resident = self._resident(pod, uid, node)
        if before is not None and before.node != node:
            self.gone(uid)
        elif before is not None:
            self._labels.give_back(before.labels)
        self._node[uid] = node
        self._on.setdefault(node, {})[uid] = resident

    def gone(self, uid: PodUID) -> None:
        node = self._node.pop(uid, None)
        if node is not None:
            self._labels.give_back(self._on[node].pop(uid).labels)
            if not self._on[node]:
                del self._on[node]

    def budget_changed(self, found: PodDisruptionBudget) -> None:
        self._budgets.put(found.metadata.name, budget(found))

    def budget_gone(self, namespace: str, name: str) -> None:
        self._budgets.drop(namespace, name)

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────

    def on(self, node: str) -> Iterable[AssignedPod]:
        return self._on.get(NodeName(node), {}).values()

    def find(self, uid: PodUID) -> AssignedPod | None:
        node = self._node.get(uid)
        return None if node is None else self._on[node].get(uid)

    @property
    def kept_labels(self) -> int:
        """Number of distinct label sets."""
        return len(self._labels)

    def named(self, uid: PodUID) -> Pod | None:
        """The pod with its names, for an event about it."""
        found = self.find(uid)
        return found and Pod(metadata=ObjectMeta(name=found.name, namespace=found.namespace, uid=uid))

    def below(self, node: str, priority: int, spend: Spend = nothing) -> list[Candidate]:
        """The pods of the node that may be evicted for one of that priority, the most important first. ``spend``: takes
        looks from the budget for finding out which of them a budget protects."""
        held = sorted((r for r in self.on(node) if r.priority < priority), key=lambda r: (-r.priority, r.started))
        broken = self._violating((r for r in held if not r.leaving), spend) if self._budgets else frozenset[PodUID]()
        return [c for r in held if (c := self._candidate(r, violates=r.uid in broken)) is not None]

    def _violating(self, held: Iterable[AssignedPod], spend: Spend) -> frozenset[PodUID]:
        protected = [Protected(r.uid, r.namespace, r.name, r.labels.values, r.labels.key) for r in held]
        return violating(protected, partial(self._budgets.selecting, spend=spend))

    def _candidate(self, r: AssignedPod, *, violates: bool) -> Candidate | None:
        entry = self._ledger.entry(r.uid)
        if entry is None:
            return None
        return Candidate(
            uid=r.uid,
            priority=r.priority,
            started=r.started,
            violates=violates,
            leaving=r.leaving,
            cpu=r.cpu,
            memory=r.memory,
            charges=entry.charges,
        )

    def _resident(self, pod: Pod, uid: PodUID, node: NodeName) -> AssignedPod:
        meta, totals = pod.metadata, of_pod(pod)
        return AssignedPod(
            uid=uid,
            namespace=meta.namespace,
            name=meta.name,
            node=node,
            priority=pod.spec.priority or 0,
            started=meta.creation_timestamp or "",
            leaving=meta.deletion_timestamp is not None,
            cpu=totals.cpu,
            memory=totals.memory,
            labels=self._labels.take(meta.labels or {}),
        )
