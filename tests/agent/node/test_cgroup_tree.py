"""Containers are found in the trees that kubelet and the runtimes make, of v1 and v2."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractile.agent.node.cgroup_tree import CgroupTree, Walk, down_to_containers
from fractile.agent.node.procfs import ProcFs

UID = "0a1b2c3d-1111-4222-8333-444455556666"
UNDER = UID.replace("-", "_")
OTHER = "ffffffff-1111-4222-8333-444455556666"
A = "0123456789abcdef" * 4
B = "fedcba9876543210" * 4
FORMS = [
    pytest.param("memory/kubepods/burstable/pod{uid}/{id}", id="v1, cgroupfs"),
    pytest.param("kubepods/pod{uid}/{id}", id="v2, cgroupfs, guaranteed"),
    pytest.param(
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{id}.scope",
        id="v2, systemd",
    ),
    pytest.param(
        "memory/kubepods.slice/kubepods-pod{under}.slice/crio-{id}.scope",
        id="v1, systemd, CRI-O",
    ),
    pytest.param("memory/fractile/node-1/kubepods/besteffort/pod{uid}/{id}", id="below a node's own cgroup"),
]


class Machine:
    """A tree of cgroups and a /proc, both of files."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc = root / "cgroup", root / "proc"
        self.proc.mkdir()
        self.root.mkdir()

    def cgroup(self, path: str, *pids: int) -> Path:
        made = self.root / path
        made.mkdir(parents=True, exist_ok=True)
        for folder in (made, *made.parents):
            if folder == self.root:
                break
            if not (folder / "cgroup.procs").exists():
                (folder / "cgroup.procs").write_text("")
        (made / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return made

    def process(self, pid: int, token: str) -> None:
        """One that sees the directory of the token at /etc/fractile."""
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + ["77"] + ["0"] * 30))
        (folder / "mountinfo").write_text(f"1 2 8:1 /var/lib/fractile/slices/{token} /etc/fractile ro - ext4 x rw\n")

    def tree(self, walk: Walk = down_to_containers) -> CgroupTree:
        return CgroupTree(self.root, processes=ProcFs(self.proc), walk=walk)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_container_is_found_by_its_id_and_by_what_its_processes_see(machine: Machine, form: str) -> None:
    a, b, _ = (
        machine.cgroup(form.format(uid=uid, under=uid.replace("-", "_"), id=container), *pids)
        for uid, container, pids in ((UID, A, (10, 11)), (UID, B, (20,)), (OTHER, A, (30,)))
    )
    for pid, token in ((10, "one"), (11, "one"), (20, "two"), (30, "three")):
        machine.process(pid, token)
    tree = machine.tree()
    assert tree.find(UID, token="", container_id=A) == a
    assert tree.find(UID, token="two") == b
    assert tree.find(UID, token="three") is None  # of another pod
    assert tree.find(UID, token="nobody") is None
    assert tree.pids(a) == (10, 11)


def test_where_paths_do_not_say_which_pod_it_is_only_the_containers_own_processes_do(machine: Machine) -> None:
    a, b = machine.cgroup(f"memory/k8s.io/{A}", 10, 11), machine.cgroup(f"memory/k8s.io/{B}", 20)
    for pid, token in ((10, "one"), (11, "one"), (20, "two")):
        machine.process(pid, token)
    tree = machine.tree()
    assert (tree.find(UID, token="one"), tree.find(OTHER, token="two")) == (a, b)
    assert tree.find(UID, token="one", container_id=A) == a
    assert tree.find(UID, token="one", container_id=B) is None  # claimed, and another's
    assert tree.find(UID, token="nobody") is None


def test_a_node_that_runs_in_a_container_is_not_taken_for_one_of_its_own(machine: Machine) -> None:
    machine.cgroup(f"docker/{A}", 1)
    machine.process(1, "")
    inner = machine.cgroup(f"docker/{A}/kubelet/kubepods/pod{UID}/{B}", 10)
    machine.process(10, "one")
    assert machine.tree().find(UID, token="one") == inner


def test_processes_below_the_container_count_and_those_of_other_namespaces_do_not(machine: Machine) -> None:
    a = machine.cgroup(f"kubepods/pod{UID}/{A}", 10, 0)
    machine.cgroup(f"kubepods/pod{UID}/{A}/nested/deeper", 12)
    assert machine.tree().pids(a) == (10, 12)


def test_a_cgroup_that_is_gone_has_no_processes_and_an_empty_one_has_none_of_them(machine: Machine) -> None:
    a = machine.cgroup(f"kubepods/pod{UID}/{A}")
    assert machine.tree().pids(a) == ()
    assert machine.tree().pids(a.parent / B) is None


def test_a_cgroup_that_a_container_makes_in_its_own_is_never_taken_for_another_one(machine: Machine) -> None:
    machine.cgroup(f"kubepods/pod{OTHER}/{B}/pod{UID}/{A}", 10)
    machine.process(10, "one")
    assert machine.tree().find(UID, token="one") is None
    assert machine.tree().find(UID, token="", container_id=A) is None


def test_a_container_with_very_many_cgroups_takes_no_long_time(machine: Machine) -> None:
    a = machine.cgroup(f"kubepods/pod{UID}/{A}", 10)
    for n in range(1000):
        (a / f"c{n}").mkdir()
        (a / f"c{n}" / "cgroup.procs").write_text(f"{1000 + n}\n")
    began = time.monotonic()
    found = machine.tree().pids(a)
    assert found is not None
    assert len(found) <= 64
    assert machine.tree().find(UID, token="", container_id=A) == a
    assert time.monotonic() - began < 3


def test_a_link_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    a = machine.cgroup(f"kubepods/pod{UID}/{A}", 10)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "cgroup.procs").write_text("66\n")
    (a / "link").symlink_to(tmp_path / "elsewhere")
    assert machine.tree().pids(a) == (10,)


def test_a_machine_without_cgroups_finds_nothing(machine: Machine) -> None:
    assert machine.tree().find(UID, token="one") is None


@pytest.mark.parametrize("form", FORMS)
def test_who_sees_which_directory_is_found_for_all_of_them_by_one_walk(machine: Machine, form: str) -> None:
    for uid, container, pid, token in ((UID, A, 10, "one"), (UID, B, 20, "two"), (OTHER, A, 30, "three")):
        machine.cgroup(form.format(uid=uid, under=uid.replace("-", "_"), id=container), pid)
        machine.process(pid, token)
    walks = list[Path]()

    def walk(hierarchy: Path) -> Iterator[Path]:
        walks.append(hierarchy)
        return down_to_containers(hierarchy)

    waiting = {f"waits-{n}": UID for n in range(50)}
    found = machine.tree(walk).viewers({"one": UID, "two": UID, "three": UID, "four": OTHER} | waiting)
    assert {token: process.pid for token, process in found.items()} == {"one": 10, "two": 20}
    assert len(walks) == 1
