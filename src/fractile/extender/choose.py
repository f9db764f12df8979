"""The node of a pod among all nodes, as filter and score would choose it if kube-scheduler asked about each.

    cards (ledger) ∧ labels, taints (node_rules) ∧ CPU, memory, pods (engine) ──> fitting ──> the policy's best ──> node

Ties go to the first column, as in the simulator, which uses the same policies. Other resources and kube-scheduler's
plugins are not considered here; kube-scheduler judges them when it checks the node.
"""

from collections.abc import Iterator

import numpy as np

from fractile.extender.engine import Engine
from fractile.extender.filter import sought, within
from fractile.extender.policies import NodePolicies, PodToPlace, settled
from fractile.extender.score import NONE, spreads
from fractile.globalplacement.placing import Found, Left
from fractile.ledger import scan
from fractile.ledger.arrays import Bools, Ints
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_rules import NodeRules
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import NodeName
from fractile.policy.cards.choice import fits
from fractile.policy.cards.effort import Effort
from fractile.policy.nodes.view import NEVER
from fractile.policy.nodes.where import where_of
from fractile.policy.quota import Allowance, fits_within
from fractile.reconcile.nominations import Claim, Nominations, rank
from fractile.wire.kubernetes.pod_totals import of_pod
from fractile.wire.kubernetes.queued import QueuedPod, for_the_scheduler

_LOOKED_AT = 400  # the most nodes to check, where each must be checked card by card
_FULL = Refusal(Code.NO_ROOM, "no node has room")


class Chooser:
    """Changes nothing in the ledger; remembers the policy by which the card is to be chosen."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        classes: ClassIndex,
        policies: NodePolicies,
        engine: Engine,
        rules: NodeRules,
        nominations: Nominations | None = None,
    ) -> None:
        self._ledger = ledger
        self._classes = classes
        self._policies = policies
        self._engine = engine
        self._rules = rules
        self._nominations = nominations

    def choose(self, pod: QueuedPod, request: PodRequest) -> Found:
        """The node, why no node fits, or why the choice is kube-scheduler's."""
        # 1. Is it ours to choose?
        known = resolve(request, self._classes)
        if isinstance(known, Refusal):
            return known
        asking = self._policies.asking(pod, known)
        other = for_the_scheduler(pod) or ("its policy is none" if asking.policy == NONE else "")
        if other or not known.gpus:
            return Left(other or "no GPU")
        # 2. Where does it fit?
        quota = self._ledger.usage.allowance(known)
        if isinstance(quota, Refusal):
            return quota
        what = sought(known, self._ledger) if quota is None else within(known, quota, self._ledger)
        fitting = what.now() & self._open(pod)
        if not fitting.any():
            return _FULL
        # 3. Which is the best of those?
        self._policies.remember(asking)
        exact = what.exact and not self._keeping()
        columns = self._ordered(known, asking, fitting, 1 if exact else _LOOKED_AT)
        nodes = self._names(columns)
        effort = Effort(dead_ends=self._ledger.dead_ends)
        claiming = Effort(dead_ends=self._ledger.dead_ends)
        return next((n for n in nodes if exact or self._takes(pod, known, n, quota, effort, claiming)), _FULL)

    def _open(self, pod: QueuedPod) -> Bools:
        """Nodes with room for everything other than devices."""
        totals = of_pod(pod)
        return self._rules.admitted(where_of(pod.spec)) & self._engine.room(totals.cpu, totals.memory)

    def _ordered(self, request: PodRequest, asking: PodToPlace, fitting: Bools, most: int) -> Ints:
        """The best of the columns, the best first."""
        standing = self._policies.standing(asking)
        value = None if standing is None else np.where(fitting, standing.value, NEVER)
        if value is None or value.max() == NEVER:  # fullness decides, or the policy's numbers are too coarse
            emptiest = spreads(settled(request, asking), asking.plain)
            return scan.best_first(self._ledger.arrays, fitting.nonzero()[0], most, emptiest=emptiest)
        if most == 1:
            return np.array([value.argmax()], np.int64)
        return scan.largest_first(value, (value > NEVER).nonzero()[0], most)

    def _keeping(self) -> bool:
        """Whether room is kept for any pod for which others are being evicted."""
        return self._nominations is not None and bool(self._nominations.nodes())

    def _names(self, columns: Ints) -> Iterator[NodeName]:
        some: list[int] = columns.tolist()
        names = self._ledger.arrays.names
        return (name for column in some if (name := names[column]) is not None)

    def _takes(
        self,
        pod: QueuedPod,
        request: PodRequest,
        node: NodeName,
        quota: Allowance | None,
        effort: Effort,
        claiming: Effort,
    ) -> bool:
        """``claiming``: the budget for computing the claims of pods that precede this one."""
        if effort.over:
            return False
        state = self._ledger.imagine(node, taken=self._claims(pod, request, node, claiming))
        if state is None:
            return False
        if quota is None:
            return fits(request, state, effort)
        return fits_within(request, state, self._ledger.usage.place(node), quota, effort)

    def _claims(self, pod: QueuedPod, request: PodRequest, node: NodeName, effort: Effort) -> list[Claim]:
        if self._nominations is None:
            return []
        asking = rank(pod.spec.priority or 0, pod.metadata.creation_timestamp or "", request.uid)
        return self._nominations.claims(node, asking, effort)
