"""The names of gpu-manager: what pods ask through them, and what they are told (evidence/gpu-manager.md#names)."""

from collections.abc import Sequence

import pytest

from fractile.dialects import table, tencent
from fractile.dialects.dialect import Facts, ResourceKind
from fractile.dialects.tencent import CORE, LIMIT, MEMORY
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.units import WHOLE, MemoryUnit, MiB, Percent
from fractile.wire.kubernetes.objects import Container, Pod
from tests.builders import by_share, card_uuid, cards, container, given, piece, placement, pod, request

NOW = 1_700_000_000_123_456_789  # ns
INIT = Role.INIT


def asks(name: str = "main", *, core: object = None, blocks: object = None) -> Container:
    amounts = {CORE: core, MEMORY: blocks}
    return container(name, limits={k: v for k, v in amounts.items() if v is not None})


def parsed(made: Pod) -> PodRequest:
    found = table.parse_pod(made, MemoryUnit.GiB)
    assert isinstance(found, PodRequest), found
    return found


def refused(made: Pod) -> str:
    found = table.parse_pod(made, MemoryUnit.MiB)
    assert isinstance(found, Refusal), found
    assert found.code is Code.MALFORMED
    return found.message


def test_half_a_card_is_time_and_blocks_of_256_mib_whatever_the_cluster_counts_in() -> None:
    (asked,) = parsed(pod("p", asks(core=50, blocks=30))).containers
    assert asked.request == Request(memory=MiB(7680), cores=Percent(50), cores_limit=Percent(50))
    assert (asked.resource, asked.amount, asked.amounts) == (CORE, 50, ((CORE, 50), (MEMORY, 30)))
    assert [asked.amount_of(r) for r in (CORE, MEMORY, "aliyun.com/gpu-mem")] == [50, 30, 0]


@pytest.mark.parametrize("blocks", [None, 0, 60])
@pytest.mark.parametrize(("core", "count"), [(100, 1), (300, 3)])
def test_a_multiple_of_a_hundred_is_whole_cards_and_memory_is_ignored(core: int, count: int, blocks: object) -> None:
    (asked,) = parsed(pod("p", asks(core=core, blocks=blocks))).containers
    assert asked.request == Request(count=count, cores=WHOLE, exclusive=True)
    assert asked.amount == core


@pytest.mark.parametrize(
    ("core", "blocks", "message"),
    [
        pytest.param(
            150, 4, "asks for 150 tencent.com/vcuda-core; above 100, only multiples of 100", id="one and a half"
        ),
        pytest.param(
            50, None, "asks for 50 tencent.com/vcuda-core and 0 tencent.com/vcuda-memory; a part", id="no memory"
        ),
        pytest.param(None, 4, "asks for 0 tencent.com/vcuda-core and 4 tencent.com/vcuda-memory; a part", id="no time"),
        pytest.param(0, 4, "asks for 0 tencent.com/vcuda-core and 4", id="zero time"),
        pytest.param("0.5", 4, "is not a whole number", id="a fraction"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(core: object, blocks: object, message: str) -> None:
    said = refused(pod("p", asks(core=core, blocks=blocks)))
    assert said.startswith("container main ")
    assert message in said


@pytest.mark.parametrize(("text", "limit"), [("50", 50), ("80", 80), ("100", 100)])
def test_the_limit_of_the_pod_is_soft(text: str, limit: int) -> None:
    (asked,) = parsed(pod("p", asks(core=50, blocks=4), annotations={LIMIT: text})).containers
    assert asked.request.cores_limit == limit


@pytest.mark.parametrize("text", ["", "49", "101", "-80", "eighty", "8e1", "٨٠", "1" * 5000])
def test_a_limit_that_is_none_is_refused_until_the_pod_is_bound(text: str) -> None:
    share = asks(core=50, blocks=4)
    assert "write a number from 50 to 100" in refused(pod("p", share, annotations={LIMIT: text}))
    (asked,) = parsed(pod("p", share, annotations={LIMIT: text}, node="n1")).containers
    assert asked.request.cores_limit == 50


def test_whole_cards_have_no_limit() -> None:
    (asked,) = parsed(pod("p", asks(core=100), annotations={LIMIT: "nonsense"})).containers
    assert asked.request.cores_limit == 0


def whole(count: int, name: str, role: Role = Role.APP) -> ContainerRequest:
    return ContainerRequest(
        given(name).container, role, Request(count=count, cores=WHOLE, exclusive=True), CORE, 100 * count
    )


@pytest.mark.parametrize(
    ("containers", "possible"),
    [
        pytest.param([whole(2, "warm", INIT), whole(2, "main")], True, id="as many"),
        pytest.param([whole(2, "warm", INIT), whole(3, "main")], True, id="more after"),
        pytest.param([whole(1, "warm", INIT), by_share(name="main")], True, id="one card, then a part of it"),
        pytest.param([whole(2, "warm", INIT), whole(1, "main")], False, id="fewer after"),
        pytest.param([whole(2, "warm", INIT), by_share(name="main")], False, id="a part after"),
        pytest.param([whole(2, "warm", INIT), whole(1, "cold", INIT), whole(2, "main")], False, id="fewer between"),
        pytest.param([whole(2, "warm", INIT), whole(2, "a"), by_share(name="b")], True, id="a part beside"),
        pytest.param([whole(2, "log", Role.SIDECAR), whole(1, "main")], True, id="a sidecar hands nothing on"),
    ],
)
def test_cards_that_kubelet_would_cut_up_are_refused(containers: Sequence[ContainerRequest], *, possible: bool) -> None:
    refusal = tencent.Tencent().together(containers)
    assert (refusal is None) == possible
    if refusal is not None:
        assert "kubelet would give it parts of 2 cards" in refusal.message


def test_the_refusal_reaches_the_pod() -> None:
    made = pod("p", asks(core=50, blocks=4), init=[asks("warm", core=200)])
    assert refused(made) == (
        "container main asks for 50 tencent.com/vcuda-core after an init container that asks for 200: kubelet would "
        "give it parts of 2 cards; let the init container ask for no more than this container"
    )


def test_each_card_has_a_hundred_ids_of_cores_and_one_for_each_full_block() -> None:
    by_name = {a.resource: a.ids for a in table.advertised(cards("n1", 2, memory=1000), MemoryUnit.GiB)}
    assert by_name[CORE] == {card_uuid("n1", 0): 100, card_uuid("n1", 1): 100}
    assert by_name[MEMORY] == {card_uuid("n1", 0): 3, card_uuid("n1", 1): 3}
    assert (table.kind(CORE), table.kind(MEMORY)) == (ResourceKind.PRIMARY, ResourceKind.COUNTED)


A, B = card_uuid("n1", 0), card_uuid("n1", 1)


def test_ids_of_both_resources_are_wanted_of_the_card_of_the_placement() -> None:
    (asked,) = parsed(pod("p", asks(core=50, blocks=30))).containers
    slices = (piece(B, 7680, 50),)
    assert table.ids_wanted(CORE, asked, slices) == {B: 50}
    assert table.ids_wanted(MEMORY, asked, slices) == {B: 30}


def test_of_whole_cards_all_ids_of_cores_are_wanted_and_memory_from_where_it_comes() -> None:
    (asked,) = parsed(pod("p", asks(core=200, blocks=5))).containers
    slices = (piece(A, 16276, 100), piece(B, 16276, 100))
    assert table.ids_wanted(CORE, asked, slices) == {A: 100, B: 100}
    assert table.ids_wanted(MEMORY, asked, slices) == {A: 3, B: 2}


@pytest.mark.parametrize(
    ("core", "held", "slices"),
    [
        pytest.param(50, {B: 50}, [piece(B, 7680, 50)], id="as placed or moved"),
        pytest.param(50, {A: 20, B: 30}, [piece(A, 3072, 50), piece(B, 4608, 50)], id="cut up"),
        pytest.param(200, {A: 100, B: 100}, [piece(A, 16276, 100), piece(B, 16276, 100)], id="whole"),
    ],
)
def test_what_ids_stand_for_shows_what_no_placement_gives(
    core: int, held: dict[str, int], slices: list[object]
) -> None:
    (asked,) = parsed(pod("p", asks(core=core, blocks=30))).containers
    assert list(table.slices_held(asked, {card_uuid("n1", int(k[-1])): n for k, n in held.items()}, cards())) == slices


def test_a_container_sees_its_cards_and_the_runtime_its_amounts() -> None:
    facts = Facts(50, ((CORE, 50), (MEMORY, 30)))
    answer = table.container_answer(CORE, {B: 50}, cards=cards(), unit=MemoryUnit.MiB, facts=facts)
    assert answer.environment == {"NVIDIA_VISIBLE_DEVICES": B}
    assert answer.annotations == {
        "tencent.com/vcuda-core": "50",
        "tencent.com/vcuda-memory": str(30 * 256 * 2**20),
        "tencent.com/vcuda-device": "/dev/nvidia1",
    }


def test_a_bound_pod_carries_the_annotations_of_gpu_manager_by_the_place_of_each_container() -> None:
    made = pod(
        "p",
        container("plain"),
        asks("one", core=50, blocks=4),
        asks("two", core=200),
        init=[asks("warm", core=10, blocks=1)],
    )
    asked = parsed(made)
    placed = placement(
        given("warm", piece(A, 256, 10), role=INIT),
        given("one", piece(A, 1024, 50)),
        given("two", piece(card_uuid("n1", 2), 16276, 100), piece(B, 16276, 100)),
    )
    found = table.placement_annotations(asked, placed, cards=cards("n1", 3), unit=MemoryUnit.MiB, now_ns=NOW)
    assert found == {
        "tencent.com/predicate-time": str(NOW),
        "tencent.com/predicate-node": "n1",
        "tencent.com/gpu-assigned": "false",
        "tencent.com/predicate-gpu-idx-1": "0",
        "tencent.com/predicate-gpu-idx-2": "1,2",
    }
    assert table.assigned_annotations(asked) == {"tencent.com/gpu-assigned": "true"}


def test_a_pod_of_two_families_carries_the_annotations_of_both() -> None:
    asked = parsed(pod("p", container("ours", memory=4), asks("theirs", core=50, blocks=4)))
    placed = placement(given("ours", piece(A, 4096)), given("theirs", piece(A, 1024, 50)))
    found = table.placement_annotations(asked, placed, cards=cards(), unit=MemoryUnit.GiB, now_ns=NOW)
    assert {"ALIYUN_COM_GPU_MEM_IDX", "tencent.com/predicate-gpu-idx-1"} <= found.keys()
    assert table.assigned_annotations(asked).keys() == {"ALIYUN_COM_GPU_MEM_ASSIGNED", "tencent.com/gpu-assigned"}


def test_a_pod_without_shares_carries_none_of_it() -> None:
    assert tencent.Tencent().annotate(request(), placement(), cards=cards(), unit=MemoryUnit.MiB, now_ns=NOW) == {}
