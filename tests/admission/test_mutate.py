"""What a pod gets on its way in."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.admission.mutate import Mutation, mutate_pod, mutate_quota, mutate_template
from fractile.dialects.table import RESOURCES
from fractile.wire.kubernetes.admission import Op, QuotaSpec, ReviewedQuota
from fractile.wire.kubernetes.objects import Gate, Pod
from fractile.wire.kubernetes.queued import GATE
from tests.admission.world import CLASSES, Json, patched
from tests.builders import container, pod

K80 = "class.fractile.dev/nvidia.tesla.k80"
PAIR = "class.fractile.dev/pair"
HCA = "class.fractile.dev/mellanox.hca"
GPU, DEVICE = "fractile.dev/gpu", "fractile.dev/device"


def asking(limits: Json, requests: Json | None = None) -> Pod:
    """A pod as the API server sends it: what is limited is requested too."""
    return pod("p", container(limits=limits, requests=limits if requests is None else requests))


def amounts(mutated: Json, which: str = "limits") -> Json:
    found: Json = mutated["spec"]["containers"][0]["resources"].get(which, {})
    return found


def after(given: Pod, mutation: Mutation | None = None) -> Json:
    return patched(given, (mutation or mutate_pod(given, CLASSES)).ops)


@pytest.mark.parametrize(
    ("limits", "become"),
    [
        pytest.param({K80: "2"}, {K80: "2", GPU: "2"}, id="a class of whole GPUs gets as many slots"),
        pytest.param({PAIR: "3"}, {PAIR: "3", GPU: "6"}, id="a unit of two devices is two slots"),
        pytest.param({HCA: "1"}, {HCA: "1", DEVICE: "1"}, id="other devices have slots of their own"),
        pytest.param({"nvidia.tesla.k80": "1"}, {K80: "1", GPU: "1"}, id="a bare name is that of a class"),
        pytest.param(
            {"nvidia.tesla.k80": "1", "mellanox.hca": "2"},
            {K80: "1", GPU: "1", HCA: "2", DEVICE: "2"},
            id="a class of GPUs and one of other devices",
        ),
        pytest.param({K80: 2, GPU: 2}, {K80: 2, GPU: 2}, id="numbers that are right already stay numbers"),
        pytest.param({K80: "0"}, {K80: "0", GPU: "0"}, id="none of a class is no slot"),
        pytest.param({"class.fractile.dev/later": "1"}, {"class.fractile.dev/later": "1", GPU: "1"}, id="unknown"),
        pytest.param({K80: "many"}, {K80: "many"}, id="what is no number is left for the API server"),
        pytest.param(
            {"nvidia.com/gpumem": "3000"},
            {"nvidia.com/gpumem": "3000", "nvidia.com/gpu": "1"},
            id="memory means one card",
        ),
        pytest.param(
            {"nvidia.com/gpucores": "30"},
            {"nvidia.com/gpucores": "30", "nvidia.com/gpu": "1"},
            id="cores mean one card",
        ),
        pytest.param(
            {"nvidia.com/gpumem": "1", "nvidia.com/gpu": "2"},
            {"nvidia.com/gpumem": "1", "nvidia.com/gpu": "2"},
            id="a number of cards is a number of cards",
        ),
        pytest.param({"nvidia.com/gpumem": "0"}, {"nvidia.com/gpumem": "0"}, id="no memory means no card"),
        pytest.param({"cpu": "1", "memory": "2Gi"}, {"cpu": "1", "memory": "2Gi"}, id="nothing of ours"),
        pytest.param({"unknown": "1"}, {"unknown": "1"}, id="a bare name of no class"),
        pytest.param({"hugepages-2Mi": "1Gi"}, {"hugepages-2Mi": "1Gi"}, id="large pages"),
    ],
)
def test_the_amounts_of_a_container_become(limits: Json, become: Json) -> None:
    given = asking(limits)
    mutated = after(given)
    assert amounts(mutated) == amounts(mutated, "requests") == become
    assert mutate_pod(msgspec.convert(mutated, Pod), CLASSES).ops == (), "once is enough"


def test_the_patch_is_as_small_as_it_can_be() -> None:
    given = asking({K80: "2", "cpu": "1"})
    place = "/spec/containers/0/resources"
    assert list(mutate_pod(given, CLASSES).ops) == [
        Op("add", f"{place}/limits/fractile.dev~1gpu", "2"),
        Op("add", f"{place}/requests/fractile.dev~1gpu", "2"),
    ]
    assert mutate_pod(asking({K80: "2", GPU: "2"}), CLASSES) == Mutation()


def test_what_is_limited_and_not_requested_is_requested() -> None:
    given = pod("p", container(limits={K80: "1", "nvidia.com/gpumem": "5", "cpu": "1"}))
    mutated = after(given)
    assert amounts(mutated, "requests") == {
        K80: "1",
        GPU: "1",
        "nvidia.com/gpumem": "5",
        "nvidia.com/gpu": "1",
    }


def test_init_containers_and_every_container_are_looked_at() -> None:
    given = pod("p", container(memory=1), container("two", limits={K80: "1"}), init=[container("i", limits={PAIR: 1})])
    mutated = after(given)
    assert amounts(mutated) == {"aliyun.com/gpu-mem": 1}
    assert mutated["spec"]["containers"][1]["resources"]["limits"] == {K80: "1", GPU: "1"}
    assert mutated["spec"]["init_containers" if "init_containers" in mutated["spec"] else "initContainers"][0][
        "resources"
    ]["limits"] == {PAIR: 1, GPU: "2"}


def test_two_classes_of_one_kind_in_a_container_are_refused() -> None:
    mutation = mutate_pod(asking({K80: "1", PAIR: "1"}), CLASSES)
    assert mutation.ops == ()
    assert mutation.refusal == (
        f"container main asks for {K80} and {PAIR}; a container can have devices of one class of each kind; use a "
        "class that admits both, or another container"
    )


def test_another_number_of_slots_than_the_class_has_is_corrected_and_told() -> None:
    given = asking({PAIR: "1", GPU: "1"})
    mutation = mutate_pod(given, CLASSES)
    assert amounts(after(given, mutation))[GPU] == "2"
    assert mutation.warnings == (f"container main needs 2 {GPU} for 1 {PAIR}, not 1",)


def test_a_bare_name_that_is_written_again_counts() -> None:
    given = asking({"pair": "3", PAIR: "1", GPU: "2"})
    mutation = mutate_pod(given, CLASSES)
    assert amounts(after(given, mutation)) == {PAIR: "3", GPU: "6"}
    assert mutation.warnings[0] == f"container main: pair replaces {PAIR}, which was 1"


@pytest.mark.parametrize(
    ("asked", "now", "becomes"),
    [
        pytest.param({K80: "1"}, "default-scheduler", "ours", id="the default one is replaced"),
        pytest.param({K80: "1"}, "", "ours", id="none is replaced"),
        pytest.param({K80: "1"}, "volcano", "volcano", id="a chosen one stays"),
        pytest.param({"cpu": "1"}, "default-scheduler", "default-scheduler", id="not for pods without devices"),
    ],
)
def test_the_scheduler_of_the_namespace(asked: Json, now: str, becomes: str) -> None:
    given = msgspec.structs.replace(asking(asked), spec=msgspec.structs.replace(asking(asked).spec, scheduler_name=now))
    mutation = mutate_pod(given, CLASSES, scheduler="ours")
    assert patched(given, mutation.ops)["spec"].get("schedulerName", now) == becomes


def test_a_family_that_somebody_else_serves_is_left_alone() -> None:
    others = RESOURCES - {r for r in RESOURCES if r.startswith("nvidia.com/")}
    assert mutate_pod(asking({"nvidia.com/gpumem": "1"}), CLASSES, resources=others, scheduler="ours") == Mutation()


def test_a_template_has_its_bare_names_translated_and_nothing_else() -> None:
    given = pod("p", container(limits={"pair": 1, "nvidia.com/gpumem": 3}))
    ops = mutate_template(given, CLASSES, ("spec", "template", "spec")).ops
    assert list(ops) == [
        Op("remove", "/spec/template/spec/containers/0/resources/limits/pair"),
        Op("add", "/spec/template/spec/containers/0/resources/limits/class.fractile.dev~1pair", 1),
    ]


def test_a_quota_by_bare_name_counts_requests_of_the_class() -> None:
    quota = ReviewedQuota(spec=QuotaSpec(hard={"nvidia.tesla.k80": "5", "requests.pair": "1", "pods": "9", "odd": "1"}))
    made = patched({"spec": {"hard": dict(quota.spec.hard or {})}}, mutate_quota(quota, CLASSES).ops)
    assert made["spec"]["hard"] == {f"requests.{K80}": "5", f"requests.{PAIR}": "1", "pods": "9", "odd": "1"}


HAMI = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
NAMES = st.sampled_from(
    [K80, PAIR, HCA, "class.fractile.dev/later", "pair", "nvidia.tesla.k80", "odd", GPU, DEVICE, "cpu", *HAMI]
)
VALUES: st.SearchStrategy[Any] = st.one_of(st.integers(0, 9), st.sampled_from(["0", "1", "2k", "-1", "x", ""]))
MAPS = st.one_of(st.none(), st.dictionaries(NAMES, VALUES, max_size=5))


@given(limits=MAPS, requests=MAPS)
def test_whatever_a_container_asks_for_the_patch_applies_and_twice_is_once(
    limits: Json | None, requests: Json | None
) -> None:
    given_pod = pod("p", container(limits=limits, requests=requests))
    mutation = mutate_pod(given_pod, CLASSES)
    if mutation.refusal:
        assert mutation.ops == ()
        return
    once = patched(given_pod, mutation.ops)
    again = mutate_pod(msgspec.convert(once, Pod), CLASSES)
    assert again.ops == ()
    assert not again.refusal
    before = set(limits or {}) | set(requests or {})
    now = {name for which in ("limits", "requests") for name in amounts(once, which)}
    assert "cpu" not in before or "cpu" in now
    assert not now & {"pair", "nvidia.tesla.k80"}, "no bare name of a class is left"


def test_a_pod_with_devices_is_gated_where_its_node_is_chosen_first() -> None:
    one = asking({"aliyun.com/gpu-mem": "1"})
    mutated = after(one, mutate_pod(one, CLASSES, gate=GATE))
    assert mutated["spec"]["schedulingGates"] == [{"name": GATE}]
    again = msgspec.convert(mutated, Pod)
    assert mutate_pod(again, CLASSES, gate=GATE).ops == (), "once is enough"


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        pytest.param({"cpu": "1"}, {}, id="no devices"),
        pytest.param(
            {"aliyun.com/gpu-mem": "1"}, {"scheduling_gates": [Gate(name="example.com/x")]}, id="others' gate"
        ),
        pytest.param({"aliyun.com/gpu-mem": "1"}, {"node_name": "n1"}, id="a node"),
    ],
)
def test_others_are_not_gated(asked: Json, fields: Json) -> None:
    one = asking(asked)
    one = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, **fields))
    assert not [op for op in mutate_pod(one, CLASSES, gate=GATE).ops if "schedulingGates" in op.path]
