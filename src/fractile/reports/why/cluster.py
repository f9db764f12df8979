"""The cluster as the extender would see it: a ledger filled from the API by the code that fills the extender's.

So the answers here are those of the extender's filter, including classes, quotas and room kept for nominated pods. Not
known here: ``--quota-others deny``, sharing rules from a file other than the ConfigMap, and placements in progress.
"""

import contextlib
from collections.abc import Sequence

from fractile.dialects.agents import memory_unit, served
from fractile.dialects.table import parse_pod
from fractile.errors import WireError
from fractile.extender.filter import ONE_BY_ONE, filter_nodes
from fractile.extender.nominated import keep_room
from fractile.ledger.classes import ClassIndex, resolved
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.placement import Charge
from fractile.model.quota import NamespaceQuota, Quota
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.sharing import ClusterSharing
from fractile.model.units import NodeName, PodUID
from fractile.reconcile.nominations import Nominations
from fractile.reports.why.read import SHARING, Read
from fractile.sim.snapshot.cluster_snapshot import Machine
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.event_handlers import PodHandlers
from fractile.watch.quotas import place_of
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.files import quota_file, sharing_file
from fractile.wire.fractile import resource_class
from fractile.wire.fractile.extended_resource import to_card, withheld
from fractile.wire.kubernetes.extender import FilterResult
from fractile.wire.kubernetes.objects import ConfigMap, ObjectMeta, Pod

_SHARING = "sharing.yaml"
_NEW = "(a new node)"  # not a valid node name


class ClusterView:
    """``placement_warnings``: what is wrong with placements, by pod. ``cut``: the rules for how cards may be cut."""

    def __init__(self, read: Read) -> None:
        self.ledger = Ledger(lambda: 0.0)
        self.index = ClassIndex(self.ledger)
        self.placement_warnings: dict[PodUID, str] = {}
        self.cut = ClusterSharing()
        self._pod = read.pod
        self._pools: dict[str, str] = {}
        self._put_sharing(read)
        shown = _cards(read)
        cards = [(node, card) for node, card, _ in shown]
        for _, node in read.objects.nodes:
            self.ledger.usage.put_place(NodeName(node.metadata.name), place_of(node.metadata))
        for node, card, held in shown:
            self.ledger.put_card(node, card)
            self.ledger.withhold(card.uuid, held)
        self.unit = memory_unit((n for _, n in read.objects.nodes), cards)
        self.families = served(r for _, r in read.objects.cards)
        self._put_classes(read.objects.classes)
        self._nominations = self._put_pods([n.pod for n in read.objects.pods])
        self.parsed = parse_pod(read.pod, self.unit, self.families)
        self.request = resolved(self.parsed, self.index)

    def limit(self, namespaces: dict[str, NamespaceQuota], problem: str = "") -> None:
        """Replace the quotas."""
        self.ledger.usage.limit(Quota(namespaces, problem=problem))

    def filtered(self, names: Sequence[str]) -> FilterResult:
        """The answer of the extender's filter about each of the nodes."""
        fitting: list[str] = []
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for i in range(0, len(names), ONE_BY_ONE):  # for more at a time, the filter gives one reason for all
            found = self._filtered(list(names[i : i + ONE_BY_ONE]))
            fitting += found.node_names or ()
            failed |= found.failed
            unresolvable |= found.unresolvable
        return FilterResult(node_names=fitting, failed=failed, unresolvable=unresolvable)

    def refused_by_quota(self) -> str:
        """Why the quota refuses the pod on every node; empty when it does not."""
        left = self.ledger.usage.allowance(self.request) if isinstance(self.request, PodRequest) else None
        return left.message if isinstance(left, Refusal) else ""

    @property
    def bounded(self) -> bool:
        """Whether a quota or sharing rules apply to the pod."""
        limited = isinstance(self.request, PodRequest) and self.ledger.usage.allowance(self.request) is not None
        return limited or self.cut != ClusterSharing()

    def request_of(self, pod: Pod) -> PodRequest | Refusal | None:
        """The request of a pod like this one."""
        return resolved(parse_pod(pod, self.unit, self.families), self.index)

    def refused_on(self, request: PodRequest, node: str) -> str:
        """Why that node would refuse the request; "" when it would take it."""
        found = self._answer(request, [node])
        return "" if found.node_names else next(iter((*found.failed.values(), *found.unresolvable.values())), "")

    def refused_on_new(self, request: PodRequest, machine: Machine) -> str:
        """Why a new node like ``machine`` would refuse the request; "" when it would take it."""
        name = NodeName(_NEW)
        self._pools[name] = machine.labels.get(sharing_file.POOL_LABEL, "")
        self.ledger.usage.put_place(name, place_of(ObjectMeta(labels=dict(machine.labels))))
        for card in machine.cards:
            self.ledger.put_card(name, card)
        try:
            return self.refused_on(request, name)
        finally:
            for card in machine.cards:
                self.ledger.drop_card(card.uuid)

    def _filtered(self, names: list[str]) -> FilterResult:
        if not isinstance(self.request, PodRequest):
            return filter_nodes(self.request, names, self.ledger)
        return self._answer(self.request, names)

    def _answer(self, request: PodRequest, names: list[str]) -> FilterResult:
        found = filter_nodes(request, names, self.ledger)
        return keep_room(found, self._pod, request, self.ledger, self._nominations)

    def _put_sharing(self, read: Read) -> None:
        """Apply the present sharing rules. Malformed rules are ignored: the control plane's log says what is wrong."""
        if read.sharing is None:
            return
        with contextlib.suppress(WireError):
            self.cut = sharing_file.decode((read.sharing.data or {}).get(_SHARING, ""), SHARING)
        labels = {n.metadata.name: n.metadata.labels or {} for _, n in read.objects.nodes}
        self._pools = {name: own.get(sharing_file.POOL_LABEL, "") for name, own in labels.items()}
        self.ledger.share_by(lambda node, model: self.cut.rule(self._pools.get(node, ""), model), sized=self.cut.sized)

    def _put_classes(self, classes: Sequence[resource_class.ResourceClass]) -> None:
        for written in classes:
            cls = resource_class.decode(written)
            if isinstance(cls, resource_class.Invalid):
                self.index.spoil(written.metadata.name, cls.message)
            else:
                self.index.put(cls)

    def _warn(self, pod: Pod, _reason: str, message: str) -> None:
        self.placement_warnings[PodUID(pod.metadata.uid)] = message

    def _put_pods(self, pods: Sequence[Pod]) -> Nominations:
        waiting, assigned_pods = WaitingPods(), AssignedPods(self.ledger)
        handlers = PodHandlers(
            ledger=self.ledger,
            waiting=waiting,
            unit=self.unit,
            warn=self._warn,
            freed=lambda node: None,
            needs_repair=lambda pod: None,
            dialects=self.families,
        )
        for pod in pods:
            handlers.changed(pod)
            assigned_pods.changed(pod)
        return Nominations(
            ledger=self.ledger, waiting=waiting, assigned_pods=assigned_pods, classes=self.index, clock=lambda: 0.0
        )


def _cards(read: Read) -> list[tuple[NodeName, Card, Charge | None]]:
    """The cards, each with what processes of deleted pods hold of it."""
    found: list[tuple[NodeName, Card, Charge | None]] = []
    for _, resource in read.objects.cards:
        try:
            found.append((*to_card(resource), withheld(resource)))
        except WireError:
            continue  # ``fractile inspect`` reports those
    return found


def quotas_in_force(read: Read, source: str) -> tuple[dict[str, NamespaceQuota], str]:
    """The quotas that the control plane applies, and what is wrong with the ConfigMap."""
    if read.config is None:
        return {}, ""
    try:
        return quota_file.decode(read.config.data or {}, f"quota ConfigMap {source}"), ""
    except WireError as e:
        return _kept(read.kept), str(e)


def _kept(config: ConfigMap | None) -> dict[str, NamespaceQuota]:
    try:
        return quota_file.decode(config.data, "kept quotas") if config and config.data else {}
    except WireError:
        return {}
