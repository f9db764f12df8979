"""Which containers hold cards now."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.slices import Granted, Slices, running
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.model.request import Role
from fractile.model.units import ContainerName, MemoryUnit, NodeName, PodUID
from fractile.region import directory
from fractile.region.page import ContainerLimits
from fractile.wire.kubernetes.objects import Pod
from tests.fakes.apiserver import FakeApiServer
from tests.region.examples import LIMITS

IDS = frozenset({"GPU-a::0"})


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "slices", new_token=lambda: "unused")


@pytest.fixture
def slices(journal: Journal) -> Slices:
    return Slices(journal)


def grant(journal: Journal, token: str, limits: ContainerLimits = LIMITS, *, at: float = 0.0) -> None:
    journal.create(token, "aliyun.com/gpu-mem", IDS)
    journal.write_limits(token, limits)
    os.utime(journal.path(token) / "ids", (at, at))


def test_only_directories_with_limits_are_containers(journal: Journal, slices: Slices, tmp_path: Path) -> None:
    grant(journal, "a")
    journal.create("not-yet", "aliyun.com/gpu-mem", IDS)
    (tmp_path / "slices" / "junk").write_text("")
    (tmp_path / "slices" / ".leftover").mkdir()
    (found,) = slices.read()
    assert (found.token, found.folder, found.since) == ("a", tmp_path / "slices" / "a", 0.0)
    assert found.limits.pod == LIMITS.pod


def test_a_change_of_limits_is_seen_at_the_next_look(journal: Journal, slices: Slices) -> None:
    grant(journal, "a")
    before = slices.read()
    assert slices.read() == before
    journal.write_limits("a", msgspec.structs.replace(LIMITS, priority=7))
    (after,) = slices.read()
    assert after.limits.priority == 7


def test_a_page_that_is_not_touched_is_not_decoded_again(
    journal: Journal, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant(journal, "a")
    slices.read()

    def decoded_again(folder: Path) -> ContainerLimits | None:
        raise AssertionError(folder)

    monkeypatch.setattr(directory, "read", decoded_again)
    assert len(slices.read()) == 1


def test_directories_that_go_are_gone(journal: Journal, slices: Slices) -> None:
    grant(journal, "a")
    slices.read()
    journal.remove("a")
    assert slices.read() == []


def test_without_a_folder_there_are_no_containers(tmp_path: Path, journal: Journal, slices: Slices) -> None:
    grant(journal, "a")
    slices.read()
    shutil.rmtree(tmp_path / "slices")
    assert slices.read() == []


def test_a_directory_that_was_lost_and_made_anew_holds_nothing_until_it_is_granted(
    journal: Journal, slices: Slices
) -> None:
    grant(journal, "a")
    slices.read()
    shutil.rmtree(journal.path("a"))
    assert slices.read() == []
    journal.create("a", "aliyun.com/gpu-mem", IDS)
    assert slices.read() == []
    journal.write_limits("a", LIMITS)
    assert len(slices.read()) == 1


def granted(token: str, pod: Pod, container: str, since: float) -> Granted:
    limits = msgspec.structs.replace(
        LIMITS, pod_uid=PodUID(pod.metadata.uid), pod=pod.metadata.name, container=ContainerName(container)
    )
    return Granted(token, Path("/nowhere"), since, limits)


async def test_containers_of_pods_that_may_run_are_named_once_with_their_role() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        pods = NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB)
        made: dict[str, Pod] = {}
        ask = {"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}
        for name, phase in (("b", "Running"), ("a", "Running"), ("done", "Succeeded")):
            body = {
                "metadata": {"name": name},
                "spec": {
                    "nodeName": "n1",
                    "initContainers": [{"name": "init", **ask}],
                    "containers": [{"name": "main", **ask}],
                },
            }
            o = server.create("/api/v1/namespaces/default/pods", body)
            made[name] = msgspec.convert(o | {"status": {"phase": phase}}, Pod, strict=False)
            pods.changed(made[name])
        found = running(
            [
                granted("t1", made["b"], "main", 1.0),
                granted("t2", made["a"], "main", 1.0),
                granted("t3", made["a"], "main", 2.0),  # after a reboot of the node
                granted("t4", made["a"], "init", 1.0),
                granted("t5", made["done"], "main", 1.0),
                granted("t6", Pod(), "main", 1.0),
            ],
            pods,
        )
        assert [(g.token, g.role) for g in found] == [("t4", Role.INIT), ("t3", Role.APP), ("t1", Role.APP)]
