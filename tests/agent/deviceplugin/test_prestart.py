"""What is checked before a container starts, in which order, and what is written then."""

import errno
import logging
import os
import shutil
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fractile.agent.deviceplugin import prestart
from fractile.agent.deviceplugin.runtime_class import RuntimeClasses
from fractile.agent.kubelet.owner import Denied
from fractile.agent.limits import library
from fractile.agent.limits.isolation import ISOLATION, Isolation
from fractile.kube import paths
from fractile.model.units import PodUID
from fractile.region import directory
from fractile.region.page import FLAG_OFF
from fractile.wire.fractile import placement
from tests.agent.deviceplugin.start import Start, ids, start
from tests.agent.limits.test_library import source
from tests.agent.world import CARDS, CORE, MEM, NODE, Asks, share
from tests.fakes.apiserver import Fault

A, B = CARDS
FOUR = ids(A, 4)
BAD_MOUNT: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": "/etc/ld.so.preload"}]}


@pytest.fixture
async def s() -> AsyncGenerator[Start]:
    async with start() as made:
        yield made


# ── granted ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_limits_are_written_for_a_container_that_holds_what_its_placement_says(s: Start) -> None:
    pod, token = s.four()
    assert await s.check(FOUR) is None
    limits = s.limits(token)
    assert limits is not None
    assert (limits.pod_uid, limits.namespace, limits.pod, limits.container, limits.flags) == (
        pod.metadata.uid,
        "default",
        pod.metadata.name,
        "main",
        0,
    )
    assert s.allowed(token) == {A.uuid: 4096}
    assert s.slept == []


async def test_the_neighbours_are_told_once_and_the_dialects_tools_by_an_annotation(s: Start) -> None:
    pod, _ = s.four()
    assert s.world.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
    assert await s.check(FOUR) is None
    assert s.granted == 1
    await s.assigned.round()
    assert s.world.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


async def test_a_container_of_gpu_managers_world_is_made_ready_and_no_other(s: Start) -> None:
    pod = s.bind(share("main", 20, 8), on={"main": [A]})
    s.holds(pod, "main", ids(A, 20), CORE)
    assert await s.check(ids(A, 20), CORE) is None
    assert s.ready == [PodUID(pod.metadata.uid)]
    s.four()
    assert await s.check(FOUR) is None
    assert len(s.ready) == 1


async def test_nobody_need_be_told(s: Start) -> None:
    """As where neither traces nor gpu-manager's containers are asked for."""
    pod = s.bind(share("main", 20, 8), on={"main": [A]})
    token = s.holds(pod, "main", ids(A, 20), CORE)
    assert await s.prestart().check(CORE, ids(A, 20)) is None
    assert s.allowed(token) == {A.uuid: 2048}


async def test_the_step_of_a_granted_container_is_traced_with_its_time(s: Start) -> None:
    """Two looks of a quarter of a second, until the control plane has moved the placement to what kubelet chose."""
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    s.holds(pod, "main", FOUR)
    s.moves(pod, after=2)
    before = time.time_ns()
    assert await s.check(FOUR) is None
    (step,) = s.steps
    assert (step.name, step.uid, step.pod) == ("prestart", pod.metadata.uid, f"default/{pod.metadata.name}")
    assert (step.error, step.attributes) == ("", {"fractile.resource": MEM, "fractile.ids": 4})
    assert before <= step.ended <= time.time_ns()
    assert step.ended - step.began == 500_000_000


async def test_the_step_of_a_denied_container_is_traced_with_the_reason(s: Start) -> None:
    s.four(BAD_MOUNT)
    denied = await s.check(FOUR)
    assert denied is not None
    assert [(step.error, step.ended - step.began) for step in s.steps] == [(denied.reason, 0)]


async def test_there_is_no_step_of_a_pod_that_is_not_known(s: Start) -> None:
    assert await s.check(FOUR) is not None
    assert s.steps == []


async def test_each_decision_is_one_log_line(s: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, prestart.__name__)
    pod, _ = s.four()
    assert await s.check(FOUR) is None
    denied = await s.check(ids(B, 4))
    assert denied is not None
    s.world.annotate(pod, {placement.ANNOTATION: None})
    waits = await s.check(FOUR)
    assert waits is not None
    assert [r.getMessage() for r in caplog.records if r.name == prestart.__name__] == [
        f"prestart resource={MEM} size=4 pod=default/{pod.metadata.name} reason=granted ms=0.0",
        f"prestart resource={MEM} size=4 pod=- reason={denied.reason} ms=0.0",
        f"prestart resource={MEM} size=4 pod=default/{pod.metadata.name} reason={waits.reason} ms=0.0",
    ]


# ── who holds the ids ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_where_the_record_names_the_pod_kubelet_is_not_asked_for_its_list(s: Start) -> None:
    """Nobody serves the list here."""
    s.four()
    assert await s.check(FOUR) is None


async def test_where_the_record_says_nothing_and_kubelet_does_not_answer_the_container_waits(s: Start) -> None:
    denied = await s.check(FOUR)
    assert denied is not None
    assert denied.reason.startswith(f"kubelet's pod-resources API at {s.socket} does not answer")


async def test_where_the_record_cannot_be_read_the_list_says_who_starts(s: Start) -> None:
    pod, token = s.four()
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) is None
    assert s.allowed(token) == {A.uuid: 4096}


async def test_ids_that_nobody_holds_are_denied_with_the_reason_of_the_books(s: Start) -> None:
    s.four()
    async with s.listing():
        assert await s.check(ids(B, 4)) == Denied(
            "kubelet's records name no pod of the API server that holds these devices"
        )


# ── what keeps a container from starting ─────────────────────────────────────────────────────────────────────────────


async def test_a_denied_container_gets_no_limits_and_nobody_is_told(s: Start) -> None:
    _, token = s.four(BAD_MOUNT)
    denied = await s.check(FOUR)
    assert denied is not None
    assert "nothing may be mounted there" in denied.reason
    assert (s.limits(token), s.granted, s.ready) == (None, 0, [])


@pytest.mark.parametrize(
    ("handler", "mount", "said"),
    [
        pytest.param("runc", False, "", id="a runtime that loads the library"),
        pytest.param("kata", False, "has runtimeClassName secure", id="one that does not"),
        pytest.param("runc", True, "nothing may be mounted there", id="a mount over the library"),
    ],
)
async def test_the_runtime_must_load_the_library_and_the_mounts_leave_it_alone(
    s: Start, handler: str, mount: bool, said: str
) -> None:
    s.world.server.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "secure"}, "handler": handler})
    pod, token = s.four(BAD_MOUNT if mount else None)
    s.alter(pod, runtimeClassName="secure")
    denied = await s.prestart(runtimes=RuntimeClasses(s.client)).check(MEM, FOUR)
    assert said in denied.reason if denied is not None else not said
    assert bool(s.allowed(token)) is (not said)


async def test_without_a_placement_a_container_waits_for_one(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on=None)
    s.holds(pod, "main", FOUR)
    assert await s.check(FOUR) == Denied(
        f"pod default/{pod.metadata.name} has no placement; bind it with a scheduler that calls Fractile's extender"
    )


async def test_the_placement_of_another_node_is_not_followed(s: Start) -> None:
    pod, token = s.four()
    there = s.world.annotations(pod)[placement.ANNOTATION].replace(f'"{NODE}"', f'"{"x" * 100}"')
    s.world.annotate(pod, {placement.ANNOTATION: there})
    assert await s.check(FOUR) == Denied(f"the placement of pod default/{pod.metadata.name} is for node {'x' * 80}")
    assert s.limits(token) is None


async def test_a_placement_that_cannot_be_read_is_a_reason(s: Start) -> None:
    pod, _ = s.four()
    s.world.annotate(pod, {placement.ANNOTATION: "{"})
    denied = await s.check(FOUR)
    assert denied is not None
    assert "malformed" in denied.reason


async def test_another_number_of_ids_than_asked_for_is_never_right(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    s.holds(pod, "main", ids(A, 3))
    assert await s.check(ids(A, 3)) == Denied(f"container main holds 3 {MEM}, but asks for 4")


async def test_a_container_whose_directory_is_not_known_gets_no_limits_anywhere(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    token = s.holds(pod, "main", FOUR, mounted=False)
    denied = await s.check(FOUR)
    assert denied is not None
    assert denied.reason.startswith("the token directory of container main is unknown")
    assert (s.limits(token), s.granted) == (None, 0)


async def test_a_disk_that_is_full_is_a_reason(s: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    s.four()

    def full(descriptor: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    denied = await s.check(FOUR)
    assert denied is not None
    assert "No space left on device" in denied.reason
    assert s.granted == 0


@pytest.mark.parametrize("name", ["ids", directory.LIMITS, "shared", directory.REGION])
async def test_a_folder_in_the_place_of_one_of_its_files_keeps_no_container_from_starting(s: Start, name: str) -> None:
    """As a container runtime makes them of what it does not find."""
    _, token = s.four()
    here = s.journal.path(token) / name
    if here.is_dir():
        shutil.rmtree(here)
    here.unlink(missing_ok=True)
    (here / "below").mkdir(parents=True)
    assert await s.check(FOUR) is None
    assert s.allowed(token) == {A.uuid: 4096}
    assert s.journal.exists(token)


async def test_what_cannot_be_taken_away_is_named_with_its_path_and_what_to_do(
    s: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = s.four()
    here = s.journal.path(token) / directory.LIMITS
    here.mkdir()

    def busy(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rmdir", busy)
    denied = await s.check(FOUR)
    assert denied is not None
    assert str(here) in denied.reason
    assert "remove it" in denied.reason


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(Fault(method="GET", status=403), "injected by the test", id="refused"),
        pytest.param(Fault(method="GET", status=200, body=b"<html>"), "malformed", id="not an API server"),
        pytest.param(Fault(method="GET", drop="before", times=99), "no answer", id="no answer"),
    ],
)
async def test_an_api_server_that_does_not_answer_is_a_reason(s: Start, fault: Fault, said: str) -> None:
    s.four()
    s.world.server.inject(fault)
    denied = await s.check(FOUR)
    assert denied is not None
    assert said in denied.reason


# ── isolation ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("labels", "flags"), [({ISOLATION: "off"}, FLAG_OFF), ({}, 0)], ids=["switched off on the node", "on"]
)
async def test_a_container_is_told_whether_its_limits_are_enforced(
    s: Start, labels: dict[str, str], flags: int
) -> None:
    _, token = s.four()
    s.world.server.merge(paths.node(NODE), {"metadata": {"labels": labels}})
    assert await s.prestart(isolation=Isolation(s.client, node=NODE)).check(MEM, FOUR) is None
    limits = s.limits(token)
    assert limits is not None
    assert limits.flags == flags


async def test_limits_are_enforced_where_the_labels_cannot_be_read(s: Start) -> None:
    _, token = s.four()
    s.world.server.inject(Fault(method="GET", path=paths.node(NODE), status=403))
    assert await s.prestart(isolation=Isolation(s.client, node=NODE)).check(MEM, FOUR) is None
    limits = s.limits(token)
    assert limits is not None
    assert limits.flags == 0


@pytest.mark.parametrize("removed", ["libfractile.so", "ld.so.preload"])
async def test_a_container_whose_library_was_removed_from_the_node_does_not_start(s: Start, removed: str) -> None:
    """The container runtime makes a directory where it finds nothing to mount, and every program would run without."""
    version = library.install(source(s.world.root / "from"), s.world.root)
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    token = s.holds(pod, "main", FOUR, besides=version.mounts())
    gone = version.folder / removed
    gone.unlink()
    for _ in range(2):
        denied = await s.check(FOUR)
        assert denied is not None
        assert denied.reason.startswith(f"{gone}, which holds the container to its limits, was removed or changed on")
        assert s.limits(token) is None
        gone.mkdir(exist_ok=True)  # as the container runtime does
    library.install(s.world.root / "from", s.world.root)
    assert await s.check(FOUR) is None


async def test_a_container_whose_library_was_changed_on_the_node_does_not_start(s: Start) -> None:
    version = library.install(source(s.world.root / "from"), s.world.root)
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    token = s.holds(pod, "main", FOUR, besides=version.mounts())
    os.truncate(version.folder / "ld.so.preload", 0)
    denied = await s.check(FOUR)
    assert denied is not None
    assert str(version.folder) in denied.reason
    assert s.limits(token) is None
