"""The names of HAMi: what pods ask through them, and what they are told (evidence/hami.md#names)."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from fractile.dialects import nvidia, table
from fractile.dialects.dialect import Facts, ResourceKind
from fractile.dialects.nvidia import CORES, GPU, MEMORY, PERCENTAGE, PRIORITY
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ANY, ContainerRequest, PodRequest, Request, Role, Selector
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB, Percent
from fractile.wire.kubernetes.objects import Container, Pod
from tests.builders import by_slots, card_uuid, cards, container, given, piece, placement, pod, request

NOW = 1_700_000_000_123_456_789  # ns
INIT, SIDECAR = Role.INIT, Role.SIDECAR
A, B = card_uuid("n1", 0), card_uuid("n1", 1)


def asks(
    name: str = "main",
    gpu: object = 1,
    *,
    memory: object = None,
    percentage: object = None,
    cores: object = None,
    priority: object = None,
) -> Container:
    amounts = {GPU: gpu, MEMORY: memory, PERCENTAGE: percentage, CORES: cores, PRIORITY: priority}
    return container(name, limits={k: v for k, v in amounts.items() if v is not None})


def parsed(made: Pod) -> PodRequest:
    found = table.parse_pod(made, MemoryUnit.GiB)
    assert isinstance(found, PodRequest), found
    return found


def asked(made: Container, annotations: Mapping[str, str] | None = None) -> Request:
    (found,) = parsed(pod("p", made, annotations=annotations)).containers
    return found.request


def refused(made: Pod) -> str:
    found = table.parse_pod(made, MemoryUnit.MiB)
    assert isinstance(found, Refusal), found
    assert found.code is Code.MALFORMED
    return found.message


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


def part(count: int = 1, *, memory: int = 0, percent: int = 0, cores: int = 0) -> Request:
    return Request(
        count=count,
        memory=MiB(memory),
        memory_percent=Percent(percent),
        cores=Percent(cores),
        cores_limit=Percent(cores),
        slots=1,
    )


def whole(count: int = 1) -> Request:
    return Request(count=count, cores=WHOLE, exclusive=True, slots=1)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        pytest.param(asks(gpu=2), whole(2), id="without an amount: whole cards"),
        pytest.param(asks(memory=0, percentage=0, cores=0), whole(), id="zeros are no amounts"),
        pytest.param(asks(gpu=2, memory=3000), part(2, memory=3000), id="MiB of each, whatever the cluster counts in"),
        pytest.param(asks(percentage=50), part(percent=50), id="a part of the memory"),
        pytest.param(asks(percentage=100), part(percent=100), id="all of the memory, shared time"),
        pytest.param(asks(memory=3000, percentage=50), part(memory=3000), id="MiB win over a percentage"),
        pytest.param(asks(memory=3000, cores=30), part(memory=3000, cores=30), id="both"),
        pytest.param(asks(cores=30), part(percent=100, cores=30), id="time alone: all of the memory"),
        pytest.param(asks(cores=100), whole(), id="all of the time: the card"),
        pytest.param(asks(cores=100, percentage=100), whole(), id="all of both"),
        pytest.param(asks(memory=3000, cores=100), part(memory=3000, cores=100), id="all of the time, some memory"),
        pytest.param(asks(percentage=20, cores=100), part(percent=20, cores=100), id="all of the time, a percentage"),
    ],
)
def test_amounts_mean_what_they_mean_to_hami(made: Container, wanted: Request) -> None:
    assert asked(made) == wanted


def test_the_device_ids_are_counted_by_cards_and_all_amounts_are_kept() -> None:
    (found,) = parsed(pod("p", asks(gpu=2, memory=3000, cores=30))).containers
    assert (found.resource, found.amount) == (GPU, 2)
    assert found.amounts == ((GPU, 2), (CORES, 30), (MEMORY, 3000))


@pytest.mark.parametrize(
    ("amount", "priority"), [(None, 0), (0, 1), (1, 0), (5, 0)], ids=["nothing", "high", "low", "lower"]
)
def test_zero_is_the_high_priority_and_nothing_the_low_one(amount: object, priority: int) -> None:
    assert asked(asks(memory=1, priority=amount)).priority == priority


@pytest.mark.parametrize("gpu", [None, 0])
@pytest.mark.parametrize("extra", [{MEMORY: 3000}, {CORES: 30}, {PERCENTAGE: 50, CORES: 30}, {PRIORITY: 1}])
def test_an_amount_without_a_card_is_refused_with_what_to_write(gpu: object, extra: dict[str, int]) -> None:
    said = refused(pod("p", container(limits=extra | ({} if gpu is None else {GPU: gpu}))))
    assert f"without {GPU}; write {GPU}: 1" in said
    assert all(name in said for name in extra)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        pytest.param(asks(percentage=101), "asks for 101 nvidia.com/gpumem-percentage; it is a percentage", id="mem"),
        pytest.param(asks(cores=200), "asks for 200 nvidia.com/gpucores; it is a percentage", id="cores"),
        pytest.param(asks(memory="0.5"), "nvidia.com/gpumem: ", id="a fraction"),
        pytest.param(asks(gpu=-1), "nvidia.com/gpu: ", id="negative"),
        pytest.param(
            container(memory=4, limits={MEMORY: 3000, GPU: 1}),
            "use the names of one family only",
            id="two families",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(made: Container, message: str) -> None:
    said = refused(pod("p", made))
    assert said.startswith("container main asks for ")
    assert message in said


amounts = st.one_of(st.none(), st.integers(-1, 3), st.integers(90, 110), st.sampled_from(["x", "1k", 2**70, "1e3"]))


@drawn(
    st.fixed_dictionaries(dict.fromkeys((GPU, MEMORY, PERCENTAGE, CORES, PRIORITY), amounts)),
    st.dictionaries(
        st.sampled_from([nvidia.USE_TYPE, nvidia.NOUSE_UUID, nvidia.CARD_POLICY, nvidia.NODE_POLICY]),
        st.text(alphabet="aA1,- \u0130\n", max_size=8),
    ),
)
def test_whatever_is_written_is_a_request_a_refusal_or_nothing(
    limits: dict[str, object], annotations: dict[str, str]
) -> None:
    found = table.parse_pod(pod("p", container(limits=limits), annotations=annotations), MemoryUnit.MiB)
    if not isinstance(found, PodRequest):
        return
    (one,) = found.containers
    asked = one.request
    assert asked.count == one.amount > 0
    assert asked.slots == 1
    assert asked.exclusive is not bool(asked.memory or asked.memory_percent)
    assert 0 <= asked.cores <= WHOLE
    assert asked.memory_on(MiB(16276)) > 0 or asked.memory_percent


# ── which cards, which node ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        pytest.param({nvidia.USE_TYPE: "A100,v100"}, Selector(models=("A100", "v100")), id="models"),
        pytest.param({nvidia.NOUSE_TYPE: " 1080 , ,A10"}, Selector(not_models=("1080", "A10")), id="spaces"),
        pytest.param({nvidia.USE_UUID: f"{A},{B}"}, Selector(cards=(A, B)), id="cards"),
        pytest.param({nvidia.NOUSE_UUID: A}, Selector(not_cards=(A,)), id="not the card"),
        pytest.param({nvidia.USE_TYPE: " , "}, ANY, id="no word is no wish"),
    ],
)
def test_annotations_say_which_cards(annotations: dict[str, str], wanted: Selector) -> None:
    assert asked(asks(memory=1), annotations).selector == wanted
    assert asked(asks(), annotations).selector == wanted


@pytest.mark.parametrize(
    ("models", "model", "admitted"),
    [("a100", "NVIDIA A100-SXM4-80GB", True), ("V100,p40", "Tesla P40", True), ("A100", "Tesla V100", False)],
)
def test_a_type_is_any_part_of_the_models_name_in_any_case(models: str, model: str, *, admitted: bool) -> None:
    assert asked(asks(), {nvidia.USE_TYPE: models}).selector.admits_model(model) is admitted
    assert asked(asks(), {nvidia.NOUSE_TYPE: models}).selector.admits_model(model) is not admitted


def test_a_list_that_never_ends_is_refused_until_the_pod_is_bound() -> None:
    annotations = {nvidia.USE_UUID: ",".join(f"GPU-{i}" for i in range(257))}
    assert refused(pod("p", asks(), annotations=annotations)) == (
        "the annotation nvidia.com/use-gpuuuid names 257 cards; the most is 256"
    )
    models = {nvidia.NOUSE_TYPE: "T4," * 257}
    assert "nouse-gputype names 257 models; the most is 256" in refused(pod("p", asks(), annotations=models))
    bound = pod("p", asks(), annotations=annotations, node="n1")
    assert parsed(bound).containers[0].request.selector == ANY


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("binpack", "binpack"),
        ("Spread", "spread"),
        ("mutex,numa,spread,binpack", "spread"),
        ("topology-aware", "topology"),
        ("numa", ""),
        ("", ""),
    ],
)
def test_the_first_word_that_says_how_to_choose_a_card_counts(text: str, policy: str) -> None:
    assert asked(asks(memory=1), {nvidia.CARD_POLICY: text}).policy == policy


@pytest.mark.parametrize(("text", "policy"), [("binpack", "binpack"), (" SPREAD ", "spread"), ("random", ""), ("", "")])
def test_the_policy_for_nodes_is_binpack_spread_or_the_clusters(text: str, policy: str) -> None:
    assert asked(asks(memory=1), {nvidia.NODE_POLICY: text}).node_policy == policy


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_card_has_ten_slots_unless_another_number_is_said() -> None:
    (mine,) = (a for a in table.advertised(cards(), MemoryUnit.GiB) if a.resource == GPU)
    assert (mine.ids, mine.distinct) == ({A: 10, B: 10}, True)
    (mine,) = (a for a in table.advertised(cards(), MemoryUnit.GiB, slots=3) if a.resource == GPU)
    assert mine.ids == {A: 3, B: 3}


def test_only_the_cards_have_device_ids() -> None:
    kinds = {name: table.managed()[name] for name in (GPU, MEMORY, PERCENTAGE, CORES, PRIORITY)}
    assert kinds == {GPU: ResourceKind.PRIMARY} | dict.fromkeys(
        (MEMORY, PERCENTAGE, CORES, PRIORITY), ResourceKind.AMOUNT
    )


def test_one_id_of_each_card_of_the_placement_is_wanted_and_stands_for_it() -> None:
    (found,) = parsed(pod("p", asks(gpu=2, percentage=50, cores=20))).containers
    slices = (piece(A, 8138, 20, 1), piece(B, 8138, 20, 1))
    assert table.ids_wanted(GPU, found, slices) == {A: 1, B: 1}
    assert table.slices_held(found, {A: 1, B: 1}, cards()) == slices


def test_an_id_of_a_whole_card_stands_for_all_of_it() -> None:
    (found,) = parsed(pod("p", asks())).containers
    assert table.slices_held(found, {B: 1}, cards()) == (piece(B, 16276, 100, 1),)


def test_two_ids_of_one_card_are_no_two_cards() -> None:
    (found,) = parsed(pod("p", asks(gpu=2, memory=10))).containers
    assert table.slices_held(found, {B: 2}, cards()) == (piece(B, 10, 0, 1),)


def all_of(count: int, name: str, role: Role = Role.APP) -> ContainerRequest:
    return ContainerRequest(given(name).container, role, whole(count), GPU, count)


@pytest.mark.parametrize(
    ("containers", "possible"),
    [
        pytest.param([by_slots(2, 9, 0, "w", role=INIT), by_slots(2, 5, 0, "m")], True, id="as many"),
        pytest.param([by_slots(2, 9, 0, "w", role=INIT), by_slots(3, 5, 0, "m")], True, id="more"),
        pytest.param([by_slots(1, 9, 0, "w", role=INIT), by_slots(1, 5, 0, "m")], True, id="one"),
        pytest.param([by_slots(2, 9, 0, "w", role=INIT), by_slots(1, 5, 0, "m")], False, id="fewer, other amounts"),
        pytest.param([by_slots(2, 9, 0, "w", role=INIT), by_slots(1, 9, 0, "m")], True, id="fewer, the same amounts"),
        pytest.param([all_of(2, "w", INIT), all_of(1, "m")], True, id="fewer whole ones"),
        pytest.param([all_of(2, "w", INIT), by_slots(1, 9, 0, "m")], False, id="a part of one of two"),
        pytest.param(
            [by_slots(2, 9, 0, "w", role=SIDECAR), by_slots(1, 5, 0, "m")], True, id="a sidecar keeps its own"
        ),
        pytest.param(
            [by_slots(2, 9, 0, "w", role=INIT), by_slots(2, 5, 0, "m"), by_slots(1, 1, 0, "n")],
            True,
            id="none are left",
        ),
    ],
)
def test_kubelet_may_not_be_left_a_choice_that_matters(
    containers: Sequence[ContainerRequest], *, possible: bool
) -> None:
    assert (nvidia.NvidiaDialect().together(containers) is None) == possible


def test_the_refusal_of_such_a_pod_names_both_numbers() -> None:
    made = pod("p", asks(memory=4000), init=[asks("warm", 2, memory=1000)])
    assert refused(made).startswith("container main asks for 1 nvidia.com/gpu after an init container with 2, and for")


# ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("facts", "environment"),
    [
        pytest.param(Facts(1), {}, id="nothing known"),
        pytest.param(Facts(2, ((GPU, 2),)), {}, id="whole cards"),
        pytest.param(
            Facts(2, ((GPU, 2), (CORES, 30), (MEMORY, 3000), (PERCENTAGE, 50))),
            {
                "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
                "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
                "CUDA_DEVICE_SM_LIMIT": "30",
            },
            id="MiB and percent",
        ),
        pytest.param(
            Facts(2, ((GPU, 2), (PERCENTAGE, 50))),
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "8138m", "CUDA_DEVICE_MEMORY_LIMIT_1": "8138m"},
            id="a part of the memory",
        ),
    ],
)
def test_a_container_sees_its_cards_and_hamis_variables(facts: Facts, environment: dict[str, str]) -> None:
    answer = table.container_answer(GPU, {B: 1, A: 1}, cards=cards(), unit=MemoryUnit.GiB, facts=facts)
    assert answer.environment == {"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"} | environment
    assert not answer.annotations


def test_a_bound_pod_carries_hamis_annotations() -> None:
    made = pod(
        "p",
        container("plain"),
        asks("one", 2, memory=1000, cores=50),
        asks("two"),
        init=[container("plain-too"), asks("warm", memory=500)],
    )
    found = parsed(made)
    c, d = CardUUID("GPU-c"), CardUUID("GPU-d")
    placed = placement(
        given("warm", piece(A, 500, 0, 1), role=INIT),
        given("one", piece(A, 1000, 50, 1), piece(B, 1000, 50, 1)),
        given("two", piece(c, 16276, 100, 1), piece(d, 9, 100, 1)),
    )
    told = table.placement_annotations(found, placed, cards=cards(), unit=MemoryUnit.MiB, now_ns=NOW)
    assert told == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-time": "1700000000",
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-allocated": (
            f";{A},NVIDIA,500,0:;;{A},NVIDIA,1000,50:{B},NVIDIA,1000,50:;GPU-c,NVIDIA,16276,100:GPU-d,NVIDIA,9,100:;"
        ),
    }
    assert table.assigned_annotations(found) == {"hami.io/bind-phase": "success"}


def test_a_pod_without_cards_of_this_family_carries_none_of_it() -> None:
    assert nvidia.NvidiaDialect().annotate(request(), placement(), cards=cards(), unit=MemoryUnit.MiB, now_ns=NOW) == {}
    assert nvidia.NvidiaDialect().assigned(request()) == {}
