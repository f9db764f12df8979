"""The gpushare names: what pods ask through them, and what they are told (evidence/gpushare.md#names)."""

from collections.abc import Sequence

import pytest

from fractile.dialects import table
from fractile.dialects.aliyun import COUNT, MEMORY
from fractile.dialects.dialect import Facts
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB
from fractile.wire.kubernetes.objects import Pod
from tests.builders import by_card, card_uuid, cards, container, given, on_card, piece, placement, pod, request

NOW = 1_700_000_000_123_456_789  # ns


def parsed(given: Pod, unit: MemoryUnit = MemoryUnit.MiB) -> PodRequest:
    found = table.parse_pod(given, unit)
    assert isinstance(found, PodRequest), found
    return found


def annotations(
    asked: PodRequest, placed: Placement, *, held: Sequence[Card] = (), unit: MemoryUnit = MemoryUnit.MiB
) -> dict[str, str]:
    return table.placement_annotations(asked, placed, cards=held or cards(), unit=unit, now_ns=NOW)


def in_units(memory: int, units: int, name: str = "main", *, role: Role = Role.APP) -> ContainerRequest:
    return ContainerRequest(
        container=given(name).container, role=role, request=Request(memory=MiB(memory)), resource=MEMORY, amount=units
    )


@pytest.mark.parametrize(
    ("unit", "amount", "memory"),
    [
        pytest.param(MemoryUnit.MiB, "8138", 8138, id="MiB"),
        pytest.param(MemoryUnit.GiB, "8", 8192, id="GiB"),
        pytest.param(MemoryUnit.MiB, 8138, 8138, id="a number"),
        pytest.param(MemoryUnit.MiB, "8Ki", 8192, id="a suffix multiplies the unit"),
    ],
)
def test_memory_is_asked_in_the_unit_of_the_cluster(unit: MemoryUnit, amount: object, memory: int) -> None:
    (asked,) = parsed(pod("p", container(memory=amount)), unit).containers
    assert asked.request == Request(count=1, memory=MiB(memory))
    assert asked.resource == MEMORY
    assert asked.amount * unit == memory


def test_whole_cards_are_asked_by_count_and_shared_with_nobody() -> None:
    (asked,) = parsed(pod("p", container(count="2"))).containers
    assert asked.request == Request(count=2, cores=WHOLE, exclusive=True)
    assert (asked.resource, asked.amount) == (COUNT, 2)


def test_a_bound_pod_carries_the_annotations_of_gpushare_in_mib() -> None:
    assert annotations(request(), on_card(1, 8138)) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16276",
        "ALIYUN_COM_GPU_MEM_POD": "8138",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000123456789",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    }


def test_a_bound_pod_carries_the_annotations_of_gpushare_in_gib() -> None:
    found = annotations(request(in_units(8192, 8)), on_card(1, 8192), unit=MemoryUnit.GiB)
    assert found == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000123456789",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    }


def test_the_index_is_that_of_nvml_whatever_the_order_of_the_list() -> None:
    held = [cards("n1", 4)[i] for i in (1, 3)]
    assert annotations(request(), on_card(3, 8138), held=held)["ALIYUN_COM_GPU_MEM_IDX"] == "3"


def test_a_pod_on_several_cards_lists_them_and_counts_as_kubernetes_does() -> None:
    asked = request(in_units(9000, 9000, "warm", role=Role.SIDECAR), in_units(9500, 9500, "main"))
    placed = placement(
        given("warm", piece(card_uuid("n1", 0), 9000), role=Role.SIDECAR),
        given("main", piece(card_uuid("n1", 1), 9500)),
    )
    found = annotations(asked, placed)
    assert found["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
    assert found["ALIYUN_COM_GPU_MEM_DEV"] == "16276,16276"
    assert found["ALIYUN_COM_GPU_MEM_POD"] == "18500"


def test_the_amount_of_a_pod_is_its_peak_not_its_sum() -> None:
    asked = request(in_units(9000, 9000, "warm", role=Role.INIT), in_units(4000, 4000, "main"))
    placed = placement(
        given("warm", piece(card_uuid("n1", 0), 9000), role=Role.INIT), given("main", piece(card_uuid("n1", 0), 4000))
    )
    assert annotations(asked, placed)["ALIYUN_COM_GPU_MEM_POD"] == "9000"


def test_a_pod_by_card_needs_no_gpushare_annotations() -> None:
    placed = placement(given("main", piece(card_uuid("n1", 0), 16276, 100)))
    assert annotations(request(by_card()), placed) == {}
    assert table.assigned_annotations(request(by_card())) == {}


def test_a_pod_with_both_describes_its_memory_only() -> None:
    asked = request(in_units(4000, 4000, "small"), by_card(1, "large"))
    placed = placement(
        given("small", piece(card_uuid("n1", 0), 4000)), given("large", piece(card_uuid("n1", 1), 16276, 100))
    )
    found = annotations(asked, placed)
    assert (found["ALIYUN_COM_GPU_MEM_IDX"], found["ALIYUN_COM_GPU_MEM_POD"]) == ("0", "4000")


def test_a_running_pod_is_marked_assigned() -> None:
    assert table.assigned_annotations(request()) == {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}


def environment(
    resource: str, held: dict[CardUUID, int], *, unit: MemoryUnit = MemoryUnit.MiB, pod_amount: int
) -> dict[str, str]:
    answer = table.container_answer(resource, held, cards=cards("n1", 3), unit=unit, facts=Facts(pod_amount))
    return answer.environment


@pytest.mark.parametrize(
    ("unit", "units", "of_pod", "of_card"),
    [
        pytest.param(MemoryUnit.MiB, 8138, 9138, "16276", id="MiB"),
        pytest.param(MemoryUnit.GiB, 8, 9, "15", id="GiB"),
    ],
)
def test_a_container_by_memory_finds_all_of_gpushare_in_its_environment(
    unit: MemoryUnit, units: int, of_pod: int, of_card: str
) -> None:
    assert environment(MEMORY, {card_uuid("n1", 1): units}, unit=unit, pod_amount=of_pod) == {
        "NVIDIA_VISIBLE_DEVICES": card_uuid("n1", 1),
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": str(of_pod),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": of_card,
    }


def test_a_container_by_card_sees_its_cards_in_the_order_of_their_indices() -> None:
    held = {card_uuid("n1", 2): 1, card_uuid("n1", 0): 1}
    assert environment(COUNT, held, pod_amount=2) == {
        "NVIDIA_VISIBLE_DEVICES": f"{card_uuid('n1', 0)},{card_uuid('n1', 2)}"
    }
