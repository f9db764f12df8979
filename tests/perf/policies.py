"""filter and prioritize when a policy of the placement engine chooses, bytes to bytes, on the cluster of ``verbs``.

Warm: such pods were served before. Between two calls another pod is charged and one leaves, so that two nodes are not
as they were. After a bind the control plane works out at once what that changes; ``unseen changes`` are those that
nobody has looked at, as when pods end.
"""

import time
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import msgspec

from fractile.extender.app import Extender
from fractile.extender.engine import Engine
from fractile.extender.expected import Expected
from fractile.extender.policies import NodePolicies
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_totals import NodeTotals
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.units import MemoryUnit, PodUID
from fractile.policy.nodes.asked import asked
from fractile.policy.nodes.mix import Mix, mix_of_counts
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import FilterResult, HostPriority
from fractile.wire.kubernetes.pod_totals import NodeCapacity
from tests.builders import CARD_MEMORY, given, piece
from tests.builders import placement as placed
from tests.perf.measuring import timing
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import NAMES, SIZES, card_of, full_ledger
from tests.perf.verbs import P99, RATIO, request_of

NODE = NodeCapacity(cpu=96_000, memory=786_432, pods=110)
POLICIES = ("fgd-plus", "fgd-plus+2*bestfit")
CLASSES = 30  # kinds of pods that are expected


def measure() -> list[Row]:
    return [row for policy in POLICIES for row in _rows(policy)]


def _rows(policy: str) -> list[Row]:
    ledger = full_ledger()
    extender, policies = extender_of(ledger, policy)
    fits, few = request_of("8138", NAMES), request_of("8138", NAMES[:100])
    cold = _seconds(lambda: extender.filter(fits))
    answered = msgspec.json.decode(extender.filter(fits), type=FilterResult)
    scores = msgspec.json.decode(extender.prioritize(fits), type=list[HostPriority])
    assert len(answered.node_names or ()) == 100
    assert {s.score for s in scores} > {0, 10}
    change = changes(ledger)

    def bound() -> None:
        change()
        policies.catch_up()

    every = FilterResult(node_names=list(NAMES))
    return [
        *_verb(f"filter, 5,000 names, {policy}", extender.filter, fits, every, bound),
        *_verb(f"filter, unseen changes, {policy}", extender.filter, fits, every, change),
        *_verb(f"prioritize, 100 names, {policy}", extender.prioritize, few, scores[:100], change)[:1],
        Row(f"the first pod of its kind, {policy}", cold * 1e3, "ms", None, "all 5,000 nodes are scored"),
    ]


def extender_of(ledger: Ledger, policy: str) -> tuple[Extender, NodePolicies]:
    """Its verbs over that ledger with nodes of 96 CPUs, pods of four, and a mix of CLASSES kinds."""
    unused: Any = WaitingPods()  # bind is not measured here
    engine = Engine(ledger, totals_of(ledger), mix_of_world())
    policies = NodePolicies(ledger, engine, cluster=policy)
    extender = Extender(
        ledger=ledger,
        binder=unused,
        expected=Expected(time.monotonic),
        unit=MemoryUnit.MiB,
        ready=lambda: True,
        policies=policies,
    )
    return extender, policies


def totals_of(ledger: Ledger) -> NodeTotals:
    """CPU and memory of all nodes, and of the pods on them."""
    totals, random = NodeTotals(), Random(4)
    for name in NAMES:
        totals.put_node(name, NODE)
    for uid, entry in ledger.entries():
        totals.put_pod(
            uid, entry.placement.node, PodDemand(1000 * random.randint(1, 8), 16_384, parts=(PartOfCard(2034),))
        )
    return totals


def mix_of_world() -> Mix:
    """Parts of three sizes and whole cards, with different CPU."""
    random = Random(5)
    wishes = [PodDemand(1000 * cpu, 0, parts=(PartOfCard(size),)) for cpu in range(1, 9) for size in SIZES]
    wishes += [PodDemand(8000 * cards, 0, whole=cards) for cards in (1, 1, 2, 4, 8)]
    wishes += [PodDemand(1000 * cpu, 0, whole=1) for cpu in (4, 12)]
    known = [ask for w in wishes[:CLASSES] if (ask := asked(w, CARD_MEMORY)) is not None]
    return mix_of_counts({ask: random.randint(10, 100) for ask in known})


def changes(ledger: Ledger) -> Callable[[], None]:
    """Puts a pod somewhere and takes away one of before: two nodes change."""
    random, numbers = Random(6), count()

    def change() -> None:
        n = next(numbers)
        node = random.randrange(len(NAMES))
        part = placed(given("main", piece(card_of(node, random.randrange(8)).uuid, 2034)), node=NAMES[node])
        ledger.observe(PodUID(f"new-{n}"), part)
        ledger.release(PodUID(f"new-{n - 10}"))

    return change


def _verb(
    what: str,
    verb: Callable[[bytes], bytes],
    body: bytes,
    answer: FilterResult | list[HostPriority],
    change: Callable[[], None],
) -> list[Row]:
    def only() -> None:
        wire.decode_args(body)
        wire.encode(answer)

    found = timing.in_turn({"change": change, "handler": lambda: verb(body), "only": only})
    ratio = found["handler"].median / found["only"].median
    return [
        Row(f"{what}: p99", found["handler"].p99 * 1e3, "ms", P99, f"median {found['handler'].median * 1e3:.2f}"),
        Row(f"{what}: ratio", ratio, "x", RATIO, "to decoding the request and encoding all names"),
    ]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
