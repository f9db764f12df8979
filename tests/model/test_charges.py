"""What a pod costs each card at its peak, and what Kubernetes counts for it."""

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from fractile.model.placement import ContainerPlacement, Slice, charges
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, Role, peak_amount
from fractile.model.units import CardUUID, ContainerName, MiB, Percent
from tests.builders import by_memory, given, piece, placement, request

INIT, SIDECAR, APP = Role.INIT, Role.SIDECAR, Role.APP

# Containers as (role, amount), and what Kubernetes counts (KEP-753: a sidecar runs on beside what comes after it).
COUNTED = [
    pytest.param([(APP, 5)], 5, id="one app"),
    pytest.param([(APP, 5), (APP, 3)], 8, id="apps add up"),
    pytest.param([(INIT, 9), (APP, 5)], 9, id="a larger init container is the peak"),
    pytest.param([(INIT, 3), (APP, 5)], 5, id="a smaller init container is free"),
    pytest.param([(INIT, 4), (INIT, 6), (APP, 5)], 6, id="init containers do not add up"),
    pytest.param([(SIDECAR, 2), (APP, 5)], 7, id="a sidecar adds to the apps"),
    pytest.param([(SIDECAR, 2), (INIT, 6), (APP, 5)], 8, id="a sidecar adds to a later init container"),
    pytest.param([(INIT, 6), (SIDECAR, 2), (APP, 3)], 6, id="a sidecar does not add to an earlier init container"),
    pytest.param([(SIDECAR, 1), (INIT, 6), (SIDECAR, 2), (INIT, 7), (APP, 3), (APP, 3)], 10, id="everything together"),
]


def as_requests(containers: list[tuple[Role, int]]) -> list[ContainerRequest]:
    return [by_memory(amount, f"c{i}", role=role) for i, (role, amount) in enumerate(containers)]


def as_placements(containers: list[tuple[Role, int]], card: str) -> tuple[ContainerPlacement, ...]:
    return tuple(given(f"c{i}", piece(card, amount), role=role) for i, (role, amount) in enumerate(containers))


@pytest.mark.parametrize(("containers", "counted"), COUNTED)
def test_the_amount_of_a_pod_is_what_kubernetes_counts(containers: list[tuple[Role, int]], counted: int) -> None:
    assert peak_amount(as_requests(containers)) == counted


@pytest.mark.parametrize(("containers", "counted"), COUNTED)
def test_a_pod_on_one_card_costs_it_what_kubernetes_counts(containers: list[tuple[Role, int]], counted: int) -> None:
    (charge,) = charges(placement(*as_placements(containers, "GPU-a")))
    assert (charge.card, charge.memory) == ("GPU-a", counted)


def test_each_card_is_charged_for_its_own_peak() -> None:
    costs = charges(
        placement(
            given("warm", piece("GPU-a", 9, 40), role=INIT),
            given("log", piece("GPU-b", 2, 10), role=SIDECAR),
            given("one", piece("GPU-a", 5, 60)),
            given("two", piece("GPU-b", 7, 20)),
        )
    )
    assert [(c.card, c.memory, c.cores) for c in costs] == [("GPU-a", 9, 60), ("GPU-b", 9, 30)]


def test_two_slices_of_one_container_on_one_card_add_up() -> None:
    (charge,) = charges(placement(given("main", piece("GPU-a", 5, 10), piece("GPU-a", 6, 20))))
    assert (charge.memory, charge.cores) == (11, 30)


def test_a_placement_answers_for_each_container() -> None:
    held = placement(given("one", piece("GPU-a")), given("two", piece("GPU-b")))
    assert held.slices_of(ContainerName("two")) == (piece("GPU-b"),)
    assert held.slices_of(ContainerName("three")) == ()


def test_a_pod_is_known_by_namespace_and_name() -> None:
    assert request(name="web").key == "default/web"


@pytest.mark.parametrize(
    ("code", "resolvable"),
    [
        (Code.NO_ROOM, True),
        (Code.NO_CARDS, True),
        (Code.TOO_LARGE, False),
        (Code.MALFORMED, False),
        (Code.GONE, False),
        (Code.ELSEWHERE, False),
    ],
)
def test_only_what_a_change_of_the_cluster_can_cure_is_resolvable(code: Code, resolvable: bool) -> None:
    assert Refusal(code, "no").resolvable is resolvable


SLICES = st.builds(
    Slice,
    st.just(CardUUID("GPU-a")),
    st.integers(0, 9).map(MiB),
    st.sampled_from([0, 1, 100]).map(Percent),
    st.integers(0, 2),
) | st.builds(Slice, st.just(CardUUID("IB-a")), st.just(MiB(0)), shares=st.integers(1, 3))


@drawn(SLICES)
def test_a_slice_alone_costs_what_it_costs_after_an_init_container_with_less(one: Slice) -> None:
    less = Slice(one.card, MiB(0), shares=min(one.shares, 1))
    assert charges(placement(given("main", one))) == charges(placement(given("a", less, role=INIT), given("main", one)))
