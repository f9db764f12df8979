"""The bound pods that hold devices, as preemption sees them: what they are worth, and which budgets protect them.

Fed by the watch of pods after the ledger, which knows what they hold; nothing is kept of pods that hold nothing.
"""

from collections.abc import Iterable, Mapping

import msgspec

from fractile.ledger.ledger import Ledger
from fractile.model.disruption import Budget, Protected
from fractile.model.units import NodeName, PodUID
from fractile.policy.disruption import violating
from fractile.policy.preemption import Candidate
from fractile.wire.disruption import PodDisruptionBudget, budget
from fractile.wire.objects import ObjectMeta, Pod
from fractile.wire.pod_totals import of_pod

_ALIKE = 4096  # sets of labels that are kept once for all pods that have them


class Resident(msgspec.Struct, frozen=True, gc=False):
    """One pod. ``started`` is its creation, which is what is known of every pod."""

    uid: PodUID
    namespace: str
    name: str
    node: NodeName
    priority: int
    started: str
    leaving: bool
    cpu: int
    memory: int
    labels: Mapping[str, str]


class Residents:
    """By node and UID; written by the watches only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._on: dict[NodeName, dict[PodUID, Resident]] = {}
        self._node: dict[PodUID, NodeName] = {}
        self._budgets: dict[tuple[str, str], Budget] = {}
        self._labels: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    # ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────

    def changed(self, pod: Pod) -> None:
        """A pod appeared or changed, and the ledger knows of it."""
        uid = PodUID(pod.metadata.uid)
        if pod.finished or not pod.spec.node_name or self._ledger.entry(uid) is None:
            self.gone(uid)
            return
        node = NodeName(pod.spec.node_name)
        self._node[uid] = node
        self._on.setdefault(node, {})[uid] = self._resident(pod, uid, node)

    def gone(self, uid: PodUID) -> None:
        node = self._node.pop(uid, None)
        if node is not None:
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]

    def budget_changed(self, found: PodDisruptionBudget) -> None:
        self._budgets[found.metadata.namespace, found.metadata.name] = budget(found)

    def budget_gone(self, namespace: str, name: str) -> None:
        self._budgets.pop((namespace, name), None)

    # ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────

    def on(self, node: str) -> Iterable[Resident]:
        return self._on.get(NodeName(node), {}).values()

    def find(self, uid: PodUID) -> Resident | None:
        node = self._node.get(uid)
        return None if node is None else self._on[node].get(uid)

    def named(self, uid: PodUID) -> Pod | None:
        """The pod with its names, for an event about it."""
        found = self.find(uid)
        return found and Pod(metadata=ObjectMeta(name=found.name, namespace=found.namespace, uid=uid))

    def below(self, node: str, priority: int) -> list[Candidate]:
        """The pods of the node that may be evicted for one of that priority, the most important first."""
        held = sorted((r for r in self.on(node) if r.priority < priority), key=lambda r: (-r.priority, r.started))
        protected = [Protected(r.uid, r.namespace, r.name, r.labels) for r in held if not r.leaving]
        broken = violating(protected, list(self._budgets.values())) if self._budgets else frozenset[PodUID]()
        return [c for r in held if (c := self._candidate(r, violates=r.uid in broken)) is not None]

    def _candidate(self, r: Resident, *, violates: bool) -> Candidate | None:
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

    def _resident(self, pod: Pod, uid: PodUID, node: NodeName) -> Resident:
        meta, totals = pod.metadata, of_pod(pod)
        return Resident(
            uid=uid,
            namespace=meta.namespace,
            name=meta.name,
            node=node,
            priority=pod.spec.priority or 0,
            started=meta.creation_timestamp or "",
            leaving=meta.deletion_timestamp is not None,
            cpu=totals.cpu,
            memory=totals.memory,
            labels=self._once(meta.labels or {}),
        )

    def _once(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        if len(self._labels) > _ALIKE:
            self._labels.clear()
        return self._labels.setdefault(tuple(sorted(labels.items())), labels)
