"""What all dialects together make of a pod, and what a node reports to kubelet."""

from collections.abc import Sequence

import pytest

from fractile.dialects import table
from fractile.dialects.aliyun import COUNT, MEMORY
from fractile.dialects.dialect import ResourceKind
from fractile.dialects.nvidia import GPU
from fractile.errors import SetupError
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest, Role
from fractile.model.units import MemoryUnit
from fractile.wire.fractile import placement as wire_placement
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from fractile.wire.kubernetes.objects import Container, Pod, PodSpec
from tests.builders import card_uuid, cards, container, given, piece, placement, pod

INIT, SIDECAR, APP = Role.INIT, Role.SIDECAR, Role.APP


def parse(given: Pod) -> PodRequest | Refusal | None:
    return table.parse_pod(given, MemoryUnit.MiB)


def refusal_of(*containers: Container, init: Sequence[Container] = ()) -> str:
    found = parse(pod("p", *containers, init=init))
    assert isinstance(found, Refusal), found
    assert found.code is Code.MALFORMED
    assert not found.resolvable
    return found.message


def test_containers_stand_in_the_order_of_kubelet_with_their_roles() -> None:
    found = parse(
        pod(
            "p",
            container("one", memory=3),
            container("two", count=1),
            init=[container("warm", memory=5), container("log", memory=1, sidecar=True), container("cold", memory=2)],
        )
    )
    assert isinstance(found, PodRequest)
    assert [(c.container, c.role, c.amount) for c in found.containers] == [
        ("warm", INIT, 5),
        ("log", SIDECAR, 1),
        ("cold", INIT, 2),
        ("one", APP, 3),
        ("two", APP, 1),
    ]


def test_the_request_carries_the_identity_of_the_pod() -> None:
    found = parse(pod("web", namespace="prod", uid="u-1"))
    assert isinstance(found, PodRequest)
    assert (found.uid, found.namespace, found.name, found.dialect, found.key) == (
        "u-1",
        "prod",
        "web",
        "aliyun",
        "prod/web",
    )


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(Pod(), id="nothing at all"),
        pytest.param(Pod(spec=PodSpec(containers=[])), id="no containers"),
        pytest.param(pod("p", container()), id="no resources"),
        pytest.param(pod("p", container(limits={"cpu": "1"})), id="only a CPU"),
        pytest.param(pod("p", container(limits={"amd.com/gpu": "1"})), id="somebody else's"),
        pytest.param(pod("p", container(memory=0)), id="zero memory"),
        pytest.param(pod("p", container(memory="0", count="0")), id="zero of both"),
        pytest.param(pod("p", container(limits={"nvidia.com/gpumem": 0, "nvidia.com/priority": 0})), id="no card"),
    ],
)
def test_a_pod_that_asks_for_nothing_of_ours_is_none_of_our_business(given: Pod) -> None:
    assert parse(given) is None


def test_containers_that_ask_for_nothing_are_left_out() -> None:
    found = parse(pod("p", container("idle"), container("zero", memory=0), container("busy", memory=7)))
    assert isinstance(found, PodRequest)
    assert [c.container for c in found.containers] == ["busy"]


def test_a_request_without_a_limit_counts_as_well() -> None:
    found = parse(pod("p", container(requests={MEMORY: "7"})))
    assert isinstance(found, PodRequest)
    assert found.containers[0].amount == 7


def test_a_limit_equal_to_its_request_in_other_words_is_accepted() -> None:
    found = parse(pod("p", container(memory="2k", requests={MEMORY: 2000})))
    assert isinstance(found, PodRequest)
    assert found.containers[0].amount == 2000


def test_a_limit_that_differs_from_its_request_is_refused() -> None:
    assert refusal_of(container(memory=8, requests={MEMORY: 7})) == (
        "container main asks for aliyun.com/gpu-mem with a limit that differs from its request"
    )


@pytest.mark.parametrize(
    "amount",
    ["-1", "0.5", "1e30", "lots", True, None, [], {"a": [1]}, "", pytest.param(10**5000, id="5001 digits")],
    ids=str,
)
@pytest.mark.parametrize("name", [MEMORY, COUNT])
def test_an_amount_that_is_none_is_refused_with_container_and_resource(name: str, amount: object) -> None:
    message = refusal_of(container("main", limits={name: amount}))
    assert message.startswith(f"container main asks for {name}: ")


def test_memory_and_cards_in_one_container_are_refused_with_the_choice_to_make() -> None:
    assert refusal_of(container(memory=1, count=1)) == (
        "container main asks for both aliyun.com/gpu-mem and aliyun.com/gpu-count; "
        "ask for memory on one card or for whole cards"
    )


@pytest.mark.parametrize("other", ["nvidia.com/gpu", "tencent.com/vcuda-core", "nvidia.com/gpumem-percentage"])
def test_two_families_in_one_container_are_refused_and_both_named(other: str) -> None:
    message = refusal_of(container(memory=1, limits={other: "1"}))
    assert "aliyun.com/gpu-mem" in message
    assert other in message
    assert "use the names of one family only" in message


def test_two_families_in_two_containers_are_two_matters() -> None:
    found = parse(pod("p", container("one", memory=1), container("two", limits={GPU: "1"})))
    assert isinstance(found, PodRequest)
    assert [(c.container, c.resource) for c in found.containers] == [("one", MEMORY), ("two", GPU)]


# ── families that are switched off ───────────────────────────────────────────────────────────────────────────────────


OFF = frozenset({"aliyun", "tencent"})


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(container(limits={GPU: "1"}), id="theirs"),
        pytest.param(container(limits={GPU: "-1"}), id="theirs, malformed"),
        pytest.param(container(memory="0", limits={GPU: "1"}), id="none of ours, one of theirs"),
        pytest.param(container(limits={"nvidia.com/gpumem": "1"}), id="only an amount"),
    ],
)
def test_a_family_that_is_off_is_somebody_elses(given: Container) -> None:
    assert table.parse_pod(pod("p", given), MemoryUnit.MiB, OFF) is None
    assert table.parse_pod(pod("p", given, node="n1"), MemoryUnit.MiB, OFF) is None


def test_beside_a_family_that_is_off_only_ours_counts_and_both_in_one_container_are_refused() -> None:
    found = table.parse_pod(pod("p", container("a", memory=1), container("b", limits={GPU: 1})), MemoryUnit.MiB, OFF)
    assert isinstance(found, PodRequest)
    assert [c.container for c in found.containers] == ["a"]
    refused = table.parse_pod(pod("p", container(memory=1, limits={GPU: 1})), MemoryUnit.MiB, OFF)
    assert isinstance(refused, Refusal)


def test_what_was_given_before_a_family_was_switched_off_stays_given() -> None:
    text = wire_placement.encode(placement(given("b", piece(card_uuid("n1", 0), 16276, 100))))
    made = pod(
        "p",
        container("a", limits={GPU: 1}),
        container("b", limits={GPU: 1}),
        node="n1",
        annotations={wire_placement.ANNOTATION: text},
    )
    found = table.parse_pod(made, MemoryUnit.MiB, OFF)
    assert isinstance(found, PodRequest)
    assert [c.container for c in found.containers] == ["b"]


def test_a_node_reports_only_the_families_that_are_on() -> None:
    names = {a.resource for a in table.advertised(cards(), MemoryUnit.MiB, dialects=OFF)}
    assert names == {r for r, kind in table.managed().items() if kind is not ResourceKind.AMOUNT} - {
        GPU,
        GPU_SLOT,
        DEVICE_SLOT,
    }


# ── what a pod may not do ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_may_mix_containers_by_memory_and_by_card() -> None:
    found = parse(pod("p", container("small", memory=1), container("large", count=2)))
    assert isinstance(found, PodRequest)
    assert [c.request.exclusive for c in found.containers] == [False, True]


def test_more_containers_than_a_placement_can_name_are_refused() -> None:
    message = refusal_of(*(container(f"c{i}", memory=1) for i in range(257)))
    assert "more than 256 containers" in message
    assert "at most 256" in message


@pytest.mark.parametrize("role", ["containers", "init containers"])
def test_more_containers_than_one_pod_may_start_on_a_node_are_refused_unless_it_is_bound(role: str) -> None:
    many = [container(f"c{i}", memory=1) for i in range(65)]
    apps, inits = (many, []) if role == "containers" else (many[:1], many[1:])
    message = refusal_of(*apps, init=inits)
    assert message.endswith(
        "asks for GPUs or other devices in 65 containers, init containers included; a pod may do so in at most 64"
    )
    assert isinstance(parse(pod("p", *apps, init=inits, node="n1")), PodRequest)
    assert isinstance(parse(pod("p", *many[:64])), PodRequest)


@pytest.mark.parametrize(
    ("unit", "memory"), [pytest.param(MemoryUnit.MiB, 16276, id="MiB"), pytest.param(MemoryUnit.GiB, 15, id="GiB")]
)
def test_a_node_reports_the_memory_and_the_number_of_its_cards(unit: MemoryUnit, memory: int) -> None:
    by_name = {a.resource: a for a in table.advertised(cards("n1", 2), unit)}
    assert by_name[MEMORY].ids == {card_uuid("n1", 0): memory, card_uuid("n1", 1): memory}
    assert by_name[MEMORY].total == 2 * memory
    assert by_name[COUNT].ids == {card_uuid("n1", 0): 1, card_uuid("n1", 1): 1}


def test_a_node_without_cards_reports_none() -> None:
    assert [a.total for a in table.advertised([], MemoryUnit.MiB)] == [0] * 7


def test_exactly_sixty_thousand_ids_are_taken() -> None:
    assert table.advertised(cards("n1", 4, memory=15_000), MemoryUnit.MiB)[0].total == 60_000


def test_more_ids_than_kubelet_takes_are_refused_with_the_unit_that_fits() -> None:
    with pytest.raises(SetupError) as refusal:
        table.advertised(cards("n1", 8, memory=81_920), MemoryUnit.MiB)
    assert str(refusal.value) == (
        "aliyun.com/gpu-mem in MiB needs 655360 device ids on this node, kubelet takes at most 60000; "
        "start the cluster's agents with --memory-unit GiB"
    )
    assert table.advertised(cards("n1", 8, memory=81_920), MemoryUnit.GiB)[0].total == 640


def test_a_node_too_large_for_every_unit_is_refused_without_a_false_promise() -> None:
    with pytest.raises(SetupError, match="no larger unit fits either"):
        table.advertised(cards("n1", 2, memory=2**36), MemoryUnit.MiB)
