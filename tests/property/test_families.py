"""Pods of all families of names on the same cards, in any order of coming and going: nothing is promised twice."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.dialects import aliyun, nvidia, table, tencent
from fractile.extender.filter import filter_nodes
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.placement import Placement, charges
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MemoryUnit, MiB, NodeName, PodUID
from fractile.policy.cards.plan import plan
from fractile.policy.cards.verify import mismatch
from fractile.wire.fractile import placement as wire
from fractile.wire.kubernetes.objects import Container
from tests.builders import Clock, container, pod

SLOTS = 3
CARDS = {CardUUID(f"GPU-{n}-{i}"): MiB(4096 * (1 + i)) for n in range(2) for i in range(2)}
NODES = [NodeName("n0"), NodeName("n1")]

_memory = st.sampled_from([1, 256, 1024, 2048, 4096, 8192])
_percent = st.sampled_from([1, 10, 30, 50, 99])


_cards = st.integers(1, 2)
_shares: dict[str, st.SearchStrategy[int]] = {tencent.CORE: _percent, tencent.MEMORY: st.integers(1, 20)}
_extras: dict[str, st.SearchStrategy[int]] = {
    nvidia.MEMORY: _memory,
    nvidia.PERCENTAGE: st.sampled_from([10, 50, 100]),
    nvidia.CORES: st.sampled_from([10, 30, 60, 100]),
    nvidia.PRIORITY: st.integers(0, 1),
}


def _one(resource: str, amount: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, int]]:
    return amount.map(lambda n: {resource: n})


_amounts = st.one_of(
    _one(aliyun.MEMORY, _memory),
    _one(aliyun.COUNT, _cards),
    _one(tencent.CORE, st.sampled_from([100, 200])),
    st.fixed_dictionaries(_shares),
    st.tuples(_one(nvidia.GPU, _cards), st.fixed_dictionaries({}, optional=_extras)).map(
        lambda both: both[0] | both[1]
    ),
)
_roles = st.sampled_from(["app", "app", "init", "sidecar"])
_containers = st.lists(st.tuples(_roles, _amounts), min_size=1, max_size=3)
_policies = st.sampled_from(["", "binpack", "spread", "topology-aware"])
# A pod comes, or the pod with that number goes.
_steps = st.lists(st.one_of(st.tuples(_containers, _policies), st.integers(0, 9)), min_size=3, max_size=14)


def _container(name: str, role: str, limits: dict[str, int]) -> Container:
    return container(name, limits=limits, sidecar=role == "sidecar")


def _ledger() -> Ledger:
    ledger = Ledger(Clock(), slots=SLOTS)
    for uuid, memory in CARDS.items():
        _, node, index = uuid.split("-")
        ledger.put_card(NodeName(f"n{node}"), Card(uuid=uuid, index=int(index), model="V100", memory=memory))
    return ledger


def _parsed(number: int, containers: Sequence[tuple[str, dict[str, int]]], policy: str) -> PodRequest | None:
    apps = [_container(f"c{i}", r, a) for i, (r, a) in enumerate(containers) if r == "app"]
    init = [_container(f"c{i}", r, a) for i, (r, a) in enumerate(containers) if r != "app"]
    made = pod(
        f"p{number}",
        *(apps or [container("none")]),
        init=init,
        annotations={nvidia.CARD_POLICY: policy} if policy else None,
    )
    found = table.parse_pod(made, MemoryUnit.MiB)
    return found if isinstance(found, PodRequest) else None


@settings(max_examples=250, deadline=None)
@given(_steps)
def test_pods_of_all_families_never_exceed_memory_cores_or_slots(
    steps: list[tuple[list[tuple[str, dict[str, int]]], str] | int],
) -> None:
    ledger = _ledger()
    held: dict[int, tuple[PodRequest, Placement]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if step in held:
                del held[step]
                ledger.release(PodUID(f"uid-p{step}"))
        else:
            request = _parsed(number, *step)
            placed = None if request is None else _bind(request, ledger)
            if request is not None and placed is not None:
                held[number] = request, placed
        _check(held, ledger)


def _bind(request: PodRequest, ledger: Ledger) -> Placement | None:
    """What filter and bind do; what one calls possible the other can do."""
    fitting = filter_nodes(request, list(NODES), ledger).node_names or []
    verdicts = {node: plan(request, state) for node in NODES if (state := ledger.node(node)) is not None}
    assert {n for n, v in verdicts.items() if isinstance(v, Placement)} == set(fitting)
    if not fitting:
        assert all(isinstance(v, Refusal) and v.message for v in verdicts.values())
        return None
    placed = verdicts[NodeName(fitting[0])]
    assert isinstance(placed, Placement)
    assert mismatch(request, placed) is None
    assert wire.decode(wire.encode(placed)) == placed
    assert ledger.assume(request.uid, placed) is None
    return placed


def _check(held: dict[int, tuple[PodRequest, Placement]], ledger: Ledger) -> None:
    assert ledger.audit() == []
    for card, memory in CARDS.items():
        mine = {n: c for n, (_, placed) in held.items() for c in charges(placed) if c.card == card}
        assert sum(c.memory for c in mine.values()) <= memory
        assert sum(c.cores for c in mine.values()) <= (99 if any(c.coreless for c in mine.values()) else 100)
        assert sum(c.slots for c in mine.values()) <= SLOTS
        for n in mine:
            request, placed = held[n]
            alone = {c.container for c in request.containers if c.request.exclusive}
            if any(s.card == card for c in placed.containers if c.container in alone for s in c.slices):
                assert len(mine) == 1, "somebody else is on a whole card"
