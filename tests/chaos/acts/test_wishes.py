"""Asking an API server that fails for pods: once each, again when it failed, again when kubelet refused."""

from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random

import msgspec
import pytest

from fractile.errors import FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from tests.chaos.acts.pods import Step
from tests.chaos.acts.wishes import NAMESPACE, Wishes
from tests.chaos.judging.journal import Journal
from tests.chaos.judging.snapshot import SeenPod
from tests.fakes.apiserver import FakeApiServer, Fault

KIND = "aliyun-part"
PODS = paths.pods(NAMESPACE)


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer]:
    async with FakeApiServer() as found:
        yield found


@pytest.fixture
async def wishes(server: FakeApiServer, tmp_path: Path) -> AsyncGenerator[Wishes]:
    async with KubeClient(server.credentials(), rng=Random(0)) as client:
        yield Wishes(client, 1, Journal(tmp_path))


def names(server: FakeApiServer) -> list[str]:
    return [pod["metadata"]["name"] for pod in server.all(PODS)]


def seen(server: FakeApiServer) -> list[SeenPod]:
    return [msgspec.convert(pod, SeenPod) for pod in server.all(PODS)]


async def test_a_pod_whose_creation_failed_is_created_later(server: FakeApiServer, wishes: Wishes) -> None:
    server.inject(Fault(method="POST", status=500))
    with pytest.raises(FractileError):
        await wishes.follow(Step(0, "a", KIND))
    wishes.only({"a": KIND})
    await wishes.bring_about(seen(server), ())
    await wishes.bring_about(seen(server), ())
    assert (names(server), wishes.created) == (["a"], 1)


async def test_a_pod_that_was_made_although_no_answer_came_counts_once(server: FakeApiServer, wishes: Wishes) -> None:
    server.inject(Fault(method="POST", drop="after"))
    with pytest.raises(FractileError):
        await wishes.follow(Step(0, "a", KIND))
    await wishes.follow(Step(0, "a", KIND))
    assert (names(server), wishes.created) == (["a"], 1)


async def test_what_is_not_wanted_any_more_is_deleted_and_may_end(server: FakeApiServer, wishes: Wishes) -> None:
    await wishes.follow(Step(0, "a", KIND))
    await wishes.follow(Step(0, "b", KIND))
    wishes.only({"b": KIND})
    await wishes.bring_about(seen(server), ())
    assert names(server) == ["b"]
    assert wishes.deleted == {"a"}


async def test_a_pod_that_kubelet_refused_is_made_anew_and_one_that_ran_is_not(
    server: FakeApiServer, wishes: Wishes
) -> None:
    await wishes.follow(Step(0, "a", KIND))
    first = server.get(f"{PODS}/a")["metadata"]["uid"]
    server.merge(f"{PODS}/a/status", {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
    wishes.only({"a": KIND})

    await wishes.bring_about(seen(server), ran={first})
    assert (names(server), wishes.refused) == (["a"], 0), "that is a violation, and must stay to be seen"

    await wishes.bring_about(seen(server), ())
    assert (names(server), wishes.refused) == ([], 1)
    await wishes.bring_about(seen(server), ())
    assert server.get(f"{PODS}/a")["metadata"]["uid"] != first
    assert (wishes.created, wishes.deleted) == (2, set[str]())


async def test_a_lost_pod_is_made_anew_and_told_apart_from_a_refused_one(server: FakeApiServer, wishes: Wishes) -> None:
    await wishes.follow(Step(0, "a", KIND))
    first = server.get(f"{PODS}/a")["metadata"]["uid"]
    server.merge(f"{PODS}/a/status", {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
    wishes.only({"a": KIND})
    wishes.lost.add(first)
    await wishes.bring_about(seen(server), ())
    await wishes.bring_about(seen(server), ())
    assert server.get(f"{PODS}/a")["metadata"]["uid"] != first
    assert (wishes.created, wishes.refused, len(wishes.lost)) == (2, 0, 1)
