"""Paths of cgroups as the runtimes and drivers write them: recorded forms, and what a hostile container can add."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.node.cgroup import CgroupPlace, places
from fractile.model.units import PodUID

UID = "0a1b2c3d-1111-4222-8333-444455556666"
UNDER = UID.replace("-", "_")
OTHER = "ffffffff-1111-4222-8333-444455556666"
A = "0123456789abcdef" * 4
B = "fedcba9876543210" * 4
STATIC = "0123456789abcdef0123456789abcdef"
POD_A = CgroupPlace(PodUID(UID), A)

V1 = f"""12:pids:/kubepods/burstable/pod{UID}/{A}
11:cpuset:/kubepods/burstable/pod{UID}/{A}
5:cpu,cpuacct:/kubepods/burstable/pod{UID}/{A}
4:memory:/kubepods/burstable/pod{UID}/{A}
1:name=systemd:/kubepods/burstable/pod{UID}/{A}
0::/
"""

ONE = [
    pytest.param(V1, id="v1, cgroupfs, containerd"),
    pytest.param(f"0::/kubepods/besteffort/pod{UID}/{A}\n", id="v2, cgroupfs, best effort"),
    pytest.param(f"0::/kubepods/pod{UID}/{A}\n", id="v2, cgroupfs, guaranteed"),
    pytest.param(
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{A}.scope\n",
        id="v2, systemd, containerd",
    ),
    pytest.param(
        f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{A}.scope/container\n", id="v2, systemd, CRI-O with a child"
    ),
    pytest.param(
        f"9:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/crio-{A}.scope\n",
        id="v1, systemd, CRI-O",
    ),
    pytest.param(
        f"4:memory:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/docker-{A}.scope\n",
        id="v1, systemd, docker",
    ),
    pytest.param(
        f"0::/system.slice/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{A}\n",
        id="systemd names without the systemd driver",
    ),
    pytest.param(
        f"0::/../../kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{A}.scope\n",
        id="kind, seen from a sibling cgroup namespace",
    ),
    pytest.param(f"4:memory:/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}\n", id="kind, seen from its host"),
    pytest.param(f"0::/kubepods/burstable/pod{UID}/{A}/docker/{B}\n", id="docker in a pod"),
    pytest.param(f"0::/kubepods/pod{UID}/{A}/init.scope\n", id="systemd in a container"),
]


@pytest.mark.parametrize("text", ONE)
def test_the_pod_and_its_container_are_found(text: str) -> None:
    assert places(text) == (POD_A,)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"0::/{A}\n", id="kubelet without cgroups per QoS class"),
        pytest.param(f"4:memory:/k8s.io/{A}\n", id="containerd's namespace"),
        pytest.param(f"0::/system.slice/cri-containerd-{A}.scope\n", id="systemd without a pod"),
        pytest.param(f"0::/default/{A}\n", id="ctr"),
    ],
)
def test_without_the_pods_cgroup_the_container_is_known(text: str) -> None:
    assert places(text) == (CgroupPlace(container_id=A),)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0::/\n", id="the root"),
        pytest.param("0::/system.slice/sshd.service\n", id="a service"),
        pytest.param("0::/user.slice/user-1000.slice/session-3.scope\n", id="a session"),
        pytest.param("", id="nothing"),
        pytest.param("no cgroup file at all", id="no colons"),
        pytest.param(f"0::/kubepods.slice/crio-conmon-{A}.scope\n", id="CRI-O's monitor"),
        pytest.param(f"1:name=systemd:/kubepods/pod{UID}/{A}\n0::/\n", id="only a hierarchy that limits nothing"),
        pytest.param(f"0::/x{A}y\n", id="hex digits inside a word"),
    ],
)
def test_a_process_of_the_host_is_in_no_place(text: str) -> None:
    assert places(text) == ()


def test_a_static_pod_has_a_hash_for_a_uid() -> None:
    assert places(f"0::/kubepods/burstable/pod{STATIC}/{A}\n") == (CgroupPlace(PodUID(STATIC), A),)


def test_a_pod_whose_container_is_not_made_yet_is_known_alone() -> None:
    assert places(f"0::/kubepods/pod{UID}\n") == (CgroupPlace(PodUID(UID)),)


def test_a_container_cannot_pass_for_another_pod_by_naming_its_own_cgroups() -> None:
    found = places(f"0::/kubepods/burstable/pod{UID}/{A}/pod{OTHER}/{B}\n")
    assert found[0] == POD_A
    assert found[1:] == (CgroupPlace(PodUID(OTHER), B),)


def test_a_cluster_in_a_pod_gives_both_the_outer_first() -> None:
    found = places(f"0::/kubepods/pod{UID}/{A}/kubelet/kubepods/pod{OTHER}/{B}\n")
    assert found == (POD_A, CgroupPlace(PodUID(OTHER), B))


@given(st.text(max_size=300))
def test_any_text_gives_places_and_no_error(text: str) -> None:
    for place in places(text):
        assert place.pod_uid or place.container_id


@given(
    before=st.lists(st.sampled_from(["kubepods", "burstable", "kubelet.slice", "docker", "..", "a-b"]), max_size=4),
    after=st.lists(st.sampled_from([f"pod{OTHER}", B, "docker", f"crio-{B}.scope", "init.scope"]), max_size=4),
    systemd=st.booleans(),
    controllers=st.lists(st.sampled_from(["memory", "devices", "cpu", "pids"]), unique=True, max_size=3),
)
def test_the_outermost_pod_is_the_first_whatever_stands_around_it(
    before: list[str], after: list[str], systemd: bool, controllers: list[str]
) -> None:
    own = [f"x-pod{UNDER}.slice", f"cri-containerd-{A}.scope"] if systemd else [f"pod{UID}", A]
    path = "/" + "/".join([*before, *own, *after])
    text = "".join(f"{n}:{c}:{path}\n" for n, c in enumerate(controllers)) or f"0::{path}\n"
    assert places(text)[0] == POD_A


@pytest.mark.parametrize("end", ["\r", "\x0c", "\u2028"])
def test_the_name_of_a_cgroup_makes_no_line_of_its_own(end: str) -> None:
    text = f"12:pids:/kubepods/pod{UID}/{A}/x{end}4:memory:/kubepods/pod{OTHER}/{B}\n4:memory:/kubepods/pod{UID}/{A}\n"
    assert places(text)[0] == POD_A
