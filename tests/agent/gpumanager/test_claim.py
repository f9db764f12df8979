"""Claims of registering processes, and what the kernel says of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.gpumanager.claim import ClaimRefused, Registered, bus_address, judge
from fractile.agent.kubelet.api import vcuda_pb2 as vcuda
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process
from fractile.model.units import ContainerName, PodUID
from fractile.region.page import ContainerLimits

UID = PodUID("0a1b2c3d-1111-4222-8333-444455556666")
OTHER = PodUID("ffffffff-1111-4222-8333-444455556666")
ID = "0123456789abcdef" * 4
OTHER_ID = ID[::-1]
LIMITS = ContainerLimits(pod_uid=UID, namespace="default", pod="p", container=ContainerName("main"), cards=())
PEER = Process(9, 1, "gpu-client", 9, 1, (CgroupPlace(UID, ID),), "mine")
WORDS = st.text(max_size=70) | st.sampled_from([UID, "main", ID, ""])
BUS = ("00000000:00:05.0",)


def verdict(peer: Process | None = PEER, **claim: str) -> Registered | ClaimRefused:
    return judge(vcuda.VDeviceRequest(**claim), peer, LIMITS, token="mine", bus_ids=BUS)


def test_a_name_or_an_id_is_enough() -> None:
    assert verdict(pod_uid=UID, container_name="main") == Registered("main", ID)
    assert verdict(pod_uid=UID, container_id=ID) == Registered(ID, ID)
    assert verdict(pod_uid=UID, container_id=ID, container_name="main") == Registered("main", ID)


@pytest.mark.parametrize("bus", ["0000:00:05.0", "00000000:00:05.0", "00:05.0", "0000:00:05.0".upper(), ""])
def test_the_own_card_may_be_written_in_any_way(bus: str) -> None:
    assert isinstance(verdict(pod_uid=UID, container_name="main", bus_id=bus), Registered)


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        ("pod", {"pod_uid": OTHER, "container_name": "main"}),
        ("pod", {"container_name": "main"}),
        ("container", {"pod_uid": UID, "container_name": "side"}),
        ("container", {"pod_uid": UID, "container_id": OTHER_ID}),
        ("container", {"pod_uid": UID, "container_id": OTHER_ID, "container_name": "main"}),
        ("container", {"pod_uid": UID}),
        ("card", {"pod_uid": UID, "container_name": "main", "bus_id": "0000:00:04.0"}),
        ("card", {"pod_uid": UID, "container_name": "main", "bus_id": "junk"}),
    ],
)
def test_what_differs_is_refused(kind: str, claim: dict[str, str]) -> None:
    found = verdict(PEER, **claim)
    assert isinstance(found, ClaimRefused)
    assert found.kind == kind


@pytest.mark.parametrize(
    ("token", "places", "inside"),
    [
        ("mine", (CgroupPlace(UID, ID),), True),
        ("mine", (), True),  # a runtime whose cgroups say nothing
        ("other", (CgroupPlace(UID, ID),), False),  # another container of the pod
        ("", (CgroupPlace(UID, ID),), True),  # a mount namespace of its own in the container
        ("", (CgroupPlace(OTHER, ID),), False),
        ("", (CgroupPlace(OTHER, ID), CgroupPlace(UID, ID)), True),  # a cluster in a pod
        ("", (), False),  # a process of the host
    ],
)
def test_the_kernel_says_who_is_inside(token: str, places: tuple[CgroupPlace, ...], inside: bool) -> None:
    peer = msgspec.structs.replace(PEER, token=token, places=places)
    assert isinstance(verdict(peer, pod_uid=UID, container_name="main"), Registered) is inside


def test_of_a_process_that_the_kernel_does_not_show_the_door_alone_decides() -> None:
    assert verdict(None, pod_uid=UID, container_id=ID) == Registered(ID, "")
    assert isinstance(verdict(None, pod_uid=OTHER, container_id=ID), ClaimRefused)
    assert isinstance(verdict(None, pod_uid=UID, container_id="../../etc"), ClaimRefused)


@given(WORDS, WORDS, WORDS, WORDS, st.sampled_from([PEER, None]))
def test_whatever_is_claimed_the_name_is_the_own_one(
    uid: str, name: str, container_id: str, bus: str, peer: Process | None
) -> None:
    found = verdict(peer, pod_uid=uid, container_name=name, container_id=container_id, bus_id=bus)
    if isinstance(found, Registered):
        assert uid == UID
        assert found.name == "main" or (len(found.name) == 64 and set(found.name) <= set("0123456789abcdef"))


@given(st.text(max_size=30))
def test_any_text_has_an_address_or_none(text: str) -> None:
    bus_address(text)
