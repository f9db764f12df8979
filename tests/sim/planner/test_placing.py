"""Pods onto a planned cluster: what a policy proposes, and what the exact books say to it."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.where import Where
from fractile.sim.kinds import Kinds
from fractile.sim.planner.placing import Placer, asks_of
from fractile.sim.planner.stock import PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine, Snapshot
from fractile.wire.kubernetes.manifests import Taint
from tests.sim.replay import Books
from tests.sim.worlds import machine, part, snapshots, whole

FGD, BESTFIT = POLICIES["fgd-plus"], POLICIES["bestfit"]


def placer(*machines: Machine, demands: tuple[Demand, ...] = ()) -> Placer:
    return Placer(machines, demands, FGD)


def fill(found: Placer, demand: Demand) -> int:
    """How many of them fit."""
    count = 0
    while found.place(demand) is not None:
        count += 1
    return count


@pytest.mark.parametrize(
    ("demand", "times"),
    [
        pytest.param(whole(), 4, id="whole cards"),
        pytest.param(whole(2), 2, id="pairs"),
        pytest.param(part(5_333), 12, id="thirds, whose thousandths do not add up"),
        pytest.param(part(1_000, compute=400), 8, id="by time"),
        pytest.param(part(9_000, compute=100), 4, id="by memory"),
        pytest.param(part(100), 32, id="by CPU"),
        pytest.param(Demand(0, 40_000, DemandPart(1, memory=10)), 3, id="by the node's memory"),
        pytest.param(Demand(0, 0, DemandPart(1, memory=10)), 110, id="by places for pods"),
        pytest.param(Demand(0, 0, DemandPart(3, memory=8_000)), 2, id="parts of three cards"),
    ],
)
def test_a_node_takes_as_many_as_it_has_room_for(demand: Demand, times: int) -> None:
    assert fill(placer(machine(), demands=(demand,)), demand) == times


def test_time_and_memory_of_a_card_are_two_things() -> None:
    """By the larger share alone, 600 + 600 thousandths would not go on one card."""
    found = placer(machine(gpus=1))

    assert found.place(part(9_600, compute=300)) is not None
    assert found.place(part(4_000, compute=600)) is not None
    assert found.place(part(2_000, compute=100)) is not None
    assert found.place(part(500, compute=1)) is None
    assert found.stock.card_left[0].tolist() == [400]


def test_one_percent_of_the_time_stays_with_those_who_were_promised_none() -> None:
    found = placer(machine(gpus=1))

    assert found.place(part(1_000)) is not None
    assert found.place(part(1_000, compute=1_000)) is None
    assert found.place(part(1_000, compute=990)) is not None


def test_a_whole_card_is_nobody_elses() -> None:
    found = placer(machine(gpus=1, card=0))
    tiny = Demand(0, 0, DemandPart(1, compute=1))

    assert found.place(tiny) is not None
    assert found.place(whole()) is None
    again = placer(machine(gpus=1, card=0))
    assert again.place(whole()) is not None
    assert again.place(tiny) is None


def test_a_request_in_mib_goes_to_the_smallest_cards_first() -> None:
    found = placer(machine("large", card=80_000, model="A100"), machine("small"), demands=(part(8_000),))
    held = [found.place(part(8_000)) for _ in range(9)]

    assert [found.stock.machines[h.row].name for h in held if h] == ["small"] * 8 + ["large"]


def test_what_is_too_large_for_one_size_of_cards_goes_to_the_next() -> None:
    found = placer(machine("small"), machine("large", card=80_000, model="A100"))

    held = found.place(part(20_000))
    assert held is not None
    assert found.stock.machines[held.row].name == "large"


def test_models_labels_taints_and_cordons_keep_pods_away() -> None:
    taint = Taint(key="team", value="a", effect="NoSchedule")
    found = placer(
        machine("t4", model="T4"),
        machine("tainted", taints=[taint]),
        machine("cordoned", cordoned=True),
        machine("labelled", labels={"pool": "big"}),
        machine("plain"),
    )
    in_pool = whole(4, where=Where(selector=(("pool", "big"),)))
    elsewhere = whole(4, where=Where(selector=(("pool", "none"),)))
    names = [found.stock.machines[h.row].name for d in (in_pool, whole(4, models=("T4",))) if (h := found.place(d))]

    assert names == ["labelled", "t4"]
    assert found.place(elsewhere) is None
    assert fill(found, whole(4)) == 1


def test_a_policy_sees_conditions_as_kinds_of_nodes() -> None:
    machines = (machine("a"), machine("b", labels={"pool": "big"}), machine("c", labels={"pool": "big"}))
    wanted = whole(where=Where(selector=(("pool", "big"),)))
    kinds = Kinds(machines, (wanted, whole()))

    assert kinds.of_row.tolist() == [0, 1, 1]
    assert [a.models for a in asks_of(wanted, kinds)] == [("1",)]
    assert [a.models for a in asks_of(whole(), kinds)] == [()]


def test_conditions_beyond_the_number_of_kinds_are_still_kept() -> None:
    machines = tuple(machine(f"n{i}", 1, labels={"host": f"n{i}"}) for i in range(100))
    wanted = tuple(whole(where=Where(selector=(("host", f"n{i}"),))) for i in range(100))
    found = Placer(machines, wanted, FGD)

    held = [found.place(d) for d in wanted]
    assert [h and h.row for h in held] == list(range(100))
    assert len(found.stock.kinds.names) <= 64


def test_sick_cards_have_nothing_left() -> None:
    one = machine(gpus=2)
    sick = msgspec.structs.replace(one.cards[0], healthy=False)
    found = placer(msgspec.structs.replace(one, cards=(sick, one.cards[1])))

    assert found.place(whole(2)) is None
    held = found.place(part(1_000))
    assert held is not None
    assert [t.device for t in held.taken] == [1]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_nothing_is_promised_twice_and_releasing_gives_everything_back(snapshot: Snapshot) -> None:
    found = Placer(snapshot.machines, [t.demand for t in snapshot.pending], BESTFIT)
    fresh = [
        a.copy() for a in (found.stock.card_left, found.stock.time_left, found.stock.users, found.stock.view.gpu_left)
    ]
    books = Books(snapshot.machines)
    helds: list[PodHold] = []
    for number, t in enumerate((*snapshot.bound, *snapshot.pending) * 2):
        held = found.place(t.demand)
        if held is None:
            assert not found.stock.feasible(t.demand).any()
            continue
        helds.append(held)
        books.put(found.stock.machines[held.row].name, f"{number}", t.demand, [x.device for x in held.taken])
    for held in helds:
        found.release(held)

    stock = found.stock
    now = [stock.card_left, stock.time_left, stock.users, stock.view.gpu_left]
    assert all((a == b).all() for a, b in zip(fresh, now, strict=True))
    assert (stock.cpu_left == stock.view.cpu).all()
