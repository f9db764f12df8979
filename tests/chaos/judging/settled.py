"""Whether the cluster has come to rest: what each pod still waits for although nothing hinders it. Pure.

Who fits is asked of a ledger that is built again from the annotations, and of kube-scheduler's sums: the node's
allocatable amounts, less what its pods request.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from fractile.dialects.aliyun import MEMORY
from fractile.dialects.dialect import ResourceKind
from fractile.dialects.table import managed
from fractile.extender.filter import filter_nodes
from fractile.ledger.classes import ClassIndex, resolved
from fractile.ledger.ledger import Ledger
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.wire.fractile import resource_class
from fractile.wire.fractile.resource_class import Invalid
from fractile.wire.kubernetes import pod_requests
from fractile.wire.kubernetes.pod_requests import CountedPod, CountedSpec, is_extended
from tests.chaos.judging.snapshot import SeenPod, Snapshot

SLOTS = 10  # of a card; the default of control plane and agents


def unsettled(seen: Snapshot, wanted: Mapping[str, str]) -> list[str]:
    """What is still to happen; empty at a quiet point. ``wanted``: the names that are to exist."""
    return [*_unfinished(seen, wanted), *_lacking(seen), *_idle(seen)]


def refused(pod: SeenPod) -> bool:
    """Whether kubelet failed it before it ever ran, as it does when a plugin is away; its controller makes another."""
    return pod.status.phase == "Failed" and not pod.started


def _unfinished(seen: Snapshot, wanted: Mapping[str, str]) -> Iterator[str]:
    names = {p.name for p in seen.pods}
    yield from (f"{name} does not exist" for name in wanted if name not in names)
    for pod in seen.pods:
        if pod.leaving or pod.name not in wanted:
            yield f"{pod.name} is to go and is still there"
        elif pod.bound and not pod.finished and not pod.running:
            yield f"{pod.name} is bound to {pod.spec.node_name} and does not run"


def _lacking(seen: Snapshot) -> Iterator[str]:
    """Nodes that do not show all that they have: nobody fits there now, but soon."""
    for node, allocatable in seen.allocatable.items():
        cards = [card for on, card in seen.cards if on == node]
        if not all(card.healthy for card in cards) or allocatable.get(MEMORY, 0) != sum(c.memory for c in cards):
            yield f"{node} does not show all its cards"


def _idle(seen: Snapshot) -> Iterator[str]:
    """Pods that fit and are not bound."""
    waiting = [p for p in seen.pods if not p.bound and not p.finished and not p.leaving]
    if not waiting:
        return
    ledger, classes = rebuilt(seen)
    nodes = sorted(seen.allocatable)
    for pod in waiting:
        request = resolved(pod.request, classes)
        if not isinstance(request, PodRequest):
            yield f"{pod.name} asks for nothing that makes sense: {request}"
            continue
        fitting = filter_nodes(request, nodes, ledger).node_names or []
        fitting = [node for node in fitting if _sum_suffices(seen, pod, node)]
        if fitting:
            yield f"{pod.name} would fit on {', '.join(fitting)} and is not bound"


def rebuilt(seen: Snapshot) -> tuple[Ledger, ClassIndex]:
    """A ledger that knows what the annotations say."""
    ledger = Ledger(lambda: 0.0, slots=SLOTS)
    classes = ClassIndex(ledger)
    for node, card in seen.cards:
        ledger.put_card(node, card)
    for one in seen.classes:
        decoded = resource_class.decode(one)
        if not isinstance(decoded, Invalid):
            classes.put(decoded)
    for pod in seen.holding:
        if (placed := pod.placement) is not None:
            ledger.observe(PodUID(pod.uid), placed)
    return ledger, classes


def _sum_suffices(seen: Snapshot, pod: SeenPod, node: str) -> bool:
    free = dict(seen.allocatable[node])
    for other in seen.holding:
        if other.spec.node_name == node:
            for name, amount in _requested(other).items():
                free[name] = free.get(name, Fraction(0)) - amount
    return all(amount <= free.get(name, Fraction(0)) for name, amount in _requested(pod).items())


def _requested(pod: SeenPod) -> Mapping[str, Fraction]:
    spec = CountedSpec(containers=pod.spec.containers, init_containers=pod.spec.init_containers)
    asked = pod_requests.requests(CountedPod(metadata=pod.metadata, spec=spec))
    left = {
        name for name, kind in managed().items() if kind is ResourceKind.AMOUNT
    }  # to the extender, by kube-scheduler
    return {name: amount for name, amount in asked.items() if is_extended(name) and name not in left}
