"""What the preempt verb takes of the control plane's thread: full nodes of eight cards, from proposal to victims.

Kube-scheduler waits for it, 5 s by default, and proposes 100 nodes at most, or a tenth of them. Processor time: others
of the machine do not count.
"""

import random
import time

from msgspec.structs import replace

from fractile.extender.preempt import Preemption
from fractile.ledger.classes import ClassIndex
from fractile.model.placement import Placement
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.policy.cards.plan import plan
from fractile.reconcile.nominations import Nominations
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes.extender import MetaPod, MetaVictims
from fractile.wire.kubernetes.objects import Pod
from tests.builders import by_card, by_memory, card, cluster, pod, request
from tests.perf.measuring.report import Row

NODES = 100
CARD = 80_000  # MiB
SLICES = (5000, 10_000, 20_000)
BAR = 1000.0  # ms
TIMES = 3

ASKED = (
    ("a slice", by_memory(40_000)),
    ("a card", by_card(1)),
    ("four cards", by_card(4)),
    ("eight cards", by_card(8)),
)


def measure() -> list[Row]:
    """One node and a hundred, each full of slices of four priorities."""
    assigned_pods, preemption = _world()
    asking = _of_priority(pod("high"), 10)
    rows: list[Row] = []
    for what, asked in ASKED:
        for nodes in (1, NODES):
            proposed = {f"n{i}": _proposal(assigned_pods, f"n{i}") for i in range(nodes)}
            spent = min(_spent(preemption, asking, request(asked), proposed) for _ in range(TIMES))
            rows.append(Row(f"preempt for {what}, {nodes} full nodes x 8 cards", spent * 1000, "ms", BAR))
    return rows


def _spent(preemption: Preemption, asking: Pod, asked: PodRequest, proposed: dict[str, MetaVictims]) -> float:
    began = time.process_time()
    found = preemption.victims(asking, asked, proposed)
    spent = time.process_time() - began
    assert found, "it helps everywhere"
    assert all(victims.pods for victims in found.values())
    return spent


def _proposal(assigned_pods: AssignedPods, node: str) -> MetaVictims:
    return MetaVictims([MetaPod(next(iter(assigned_pods.on(node))).uid)])


def _world() -> tuple[AssignedPods, Preemption]:
    rng = random.Random(1)
    names = [f"n{i}" for i in range(NODES)]
    ledger = cluster({name: [card(name, j, memory=CARD) for j in range(8)] for name in names})
    assigned_pods = AssignedPods(ledger)
    placed = 0
    for node in names:
        while True:
            state = ledger.node(node)
            assert state is not None
            chosen = plan(request(by_memory(rng.choice(SLICES))), state)
            if not isinstance(chosen, Placement):
                break
            uid = f"u{placed}"
            placed += 1
            ledger.observe(PodUID(uid), chosen)
            assigned_pods.changed(_of_priority(pod(uid, uid=uid, node=node), rng.choice((0, 1, 2, 3))))
    nominations = Nominations(
        ledger=ledger,
        waiting=WaitingPods(),
        assigned_pods=assigned_pods,
        classes=ClassIndex(ledger),
        clock=time.monotonic,
    )
    return assigned_pods, Preemption(ledger, assigned_pods, nominations)


def _of_priority(made: Pod, priority: int) -> Pod:
    return replace(made, spec=replace(made.spec, priority=priority))
