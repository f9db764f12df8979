"""Score the nodes and pods of a file: amounts as kube-scheduler adds them up, and the terms of every node."""

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from fractile.errors import WireError
from fractile.policy.nodes.kubernetes import Rounding
from fractile.policy.nodes.terms import Amount, NodeScore, ScoreTerm, score
from fractile.wire.kubernetes import pod_requests
from fractile.wire.kubernetes.pod_requests import CPU, MEMORY, PODS, Amounts, CountedNode, CountedPod, rounded_up
from fractile.wire.kubernetes.scoring import Strategy, StrategyKind
from fractile.wire.output import score_report
from fractile.wire.output.score_report import (
    PodReport,
    ResourceWeight,
    ScoredNode,
    ShapeReport,
    StrategyReport,
    TermReport,
)

# What kube-scheduler counts for a container without a request (pkg/scheduler/util/pod_resources.go).
IF_MISSING = {CPU: Fraction(1, 10), MEMORY: Fraction(200 * 2**20)}
_THOUSANDTHS = 1000
_ZERO = Fraction(0)
_LIMIT = 2**63 // 100  # of amounts that kube-scheduler multiplies by 100


class _Counted(msgspec.Struct, frozen=True):
    """Amounts of one pod, or of the pods on a node: as scores count them, and as filters count them."""

    scored: Amounts
    asked: Amounts

    def __add__(self, other: "_Counted") -> "_Counted":
        return _Counted(_plus(self.scored, other.scored), _plus(self.asked, other.asked))


_NOTHING = _Counted({}, {})


def scored(
    pod: CountedPod,
    nodes: Iterable[CountedNode],
    pods: Iterable[CountedPod],
    *,
    strategy: Strategy,
    source: str,
    rounding: Rounding,
) -> PodReport:
    """Score the nodes. ``pods``: all pods; those on a node take from it. Raises WireError for an invalid amount."""
    wanted = _of_pod(pod)
    held = _held(pods)
    found = [_node(node, wanted, held.get(node.metadata.name, _NOTHING), strategy, rounding) for node in nodes]
    fitting = [node for node in found if not node.lacks]
    most = max((node.score for node in fitting), default=0)
    return PodReport(
        namespace=pod.metadata.namespace or "default",
        pod=pod.metadata.name,
        strategy=_strategy(strategy, source),
        nodes=tuple(found),
        best=tuple(node.node for node in fitting if node.score == most),
    )


def _held(pods: Iterable[CountedPod]) -> dict[str, _Counted]:
    """What the pods hold, by node."""
    held: dict[str, _Counted] = {}
    for pod in pods:
        if pod.holds:
            held[pod.spec.node_name] = held.get(pod.spec.node_name, _NOTHING) + _of_pod(pod)
    return held


def _of_pod(pod: CountedPod) -> _Counted:
    try:
        asked = pod_requests.requests(pod) | {PODS: Fraction(1)}
        return _Counted(pod_requests.requests(pod, if_missing=IF_MISSING), asked)
    except WireError as e:
        raise WireError(f"pod {pod.metadata.name}: {e}") from None


def _plus(a: Amounts, b: Amounts) -> Amounts:
    return {name: a.get(name, _ZERO) + b.get(name, _ZERO) for name in a | b}


def _node(node: CountedNode, wanted: _Counted, held: _Counted, strategy: Strategy, rounding: Rounding) -> ScoredNode:
    name = node.metadata.name
    try:
        capacity = pod_requests.amounts(node.given)
        said = pod_requests.amounts(node.status.requested)
        held += _Counted(said, said)
        amounts = [_amount(r.name, held.scored, wanted.scored, capacity) for r in strategy.resources]
    except WireError as e:
        raise WireError(f"node {name}: {e}") from None
    return _report(name, score(strategy, amounts, rounding), _lacking(wanted.asked, held.asked, capacity))


def _lacking(wanted: Amounts, held: Amounts, capacity: Amounts) -> tuple[str, ...]:
    """The resources of which the node has too little left; kube-scheduler then does not score the node at all. A node
    in a file need not say how many pods it takes."""
    asked = {name: amount for name, amount in wanted.items() if amount and (name != PODS or name in capacity)}
    return tuple(n for n, a in asked.items() if held.get(n, _ZERO) + a > capacity.get(n, _ZERO))


def _amount(resource: str, held: Amounts, wanted: Amounts, capacity: Amounts) -> Amount:
    return Amount(resource, *(_whole(resource, of.get(resource, _ZERO)) for of in (held, wanted, capacity)))


def _whole(resource: str, amount: Fraction) -> int:
    found = rounded_up(amount * _THOUSANDTHS if resource == CPU else amount)
    if found >= _LIMIT // 2:  # two of them are added
        raise WireError(f"{found} of {resource} is more than kube-scheduler can compute with")
    return found


def _strategy(strategy: Strategy, source: str) -> StrategyReport:
    shape = strategy.shape if strategy.kind is StrategyKind.RATIO else ()
    return StrategyReport(
        str(strategy.kind),
        source,
        tuple(ResourceWeight(r.name, r.weight) for r in strategy.resources),
        tuple(ShapeReport(p.utilization, p.score) for p in shape),
    )


def _report(name: str, found: NodeScore, lacks: tuple[str, ...]) -> ScoredNode:
    tenths = found.tenths
    return ScoredNode(
        node=name,
        score=found.score,
        sum=found.sum,
        weights=found.weights,
        lacks=lacks,
        terms=tuple(_term(term) for term in found.terms),
        scale_of_ten=score_report.ScaleOfTen(tenths.sum, tenths.weights, tenths.score) if tenths else None,
    )


def _term(term: ScoreTerm) -> TermReport:
    a = term.amount
    return TermReport(
        resource=a.name,
        held=a.held,
        pod=a.pod,
        requested=a.requested,
        capacity=a.capacity,
        utilization=term.utilization,
        score=term.score,
        weight=term.weight,
        counted=term.counted,
    )
