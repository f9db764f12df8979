"""The quotas in force are kept in the API, for the program that starts next."""

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest

from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.quota import NamespaceQuota, QuotaLimit
from fractile.reconcile.kept_quotas import QuotaKeeper
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT, KEY
from tests.fakes.apiserver import FakeApiServer, Fault

PATH = paths.config_map(*KEPT.split("/"))
GOOD = '{"a": {"quota": {"M40": 2}}}'
TWO_M40 = {"a": NamespaceQuota(limits=(QuotaLimit("M40", 200),))}


class Scene:
    """A keeper, with what it should keep and what it recalled."""

    def __init__(self, server: FakeApiServer, client: KubeClient) -> None:
        self.server = server
        self.text: str | None = None
        self.recalled: list[dict[str, NamespaceQuota]] = []
        self.keeper = QuotaKeeper(
            client,
            location=KEPT,
            source=DEFAULT_SOURCE,
            current=lambda: self.text,
            recall=self.recalled.append,
            rng=random.Random(1),
        )

    def put(self, **data: str) -> None:
        namespace, name = KEPT.split("/")
        meta = {"name": name, "namespace": namespace}
        self.server.create(paths.config_maps(namespace), {"metadata": meta, **({"data": data} if data else {})})

    @property
    def data(self) -> dict[str, str]:
        return self.server.get(PATH).get("data", {})

    @property
    def writes(self) -> int:
        return sum(r.method == "PATCH" for r in self.server.requests)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        yield Scene(server, client)


async def test_what_is_in_force_is_written_once_and_cleared_when_there_is_none(scene: Scene) -> None:
    scene.put()
    scene.text = GOOD
    assert await scene.keeper.look()
    assert await scene.keeper.look()
    assert (scene.data, scene.writes) == ({KEY: GOOD}, 1)
    scene.text = ""
    assert await scene.keeper.look()
    assert (scene.data, scene.writes) == ({}, 2)


async def test_what_somebody_else_wrote_there_is_set_right(scene: Scene) -> None:
    scene.put(**{KEY: "{}", "note": "mine"})
    scene.text = GOOD
    assert await scene.keeper.look()
    assert scene.data == {KEY: GOOD}


async def test_while_nothing_better_is_known_it_is_recalled_and_left_as_it_is(scene: Scene) -> None:
    scene.put(**{KEY: GOOD})
    await scene.keeper.first()
    assert scene.recalled == [TWO_M40]
    assert scene.writes == 0


@pytest.mark.parametrize("data", [{}, {KEY: "{"}, {"other": "x"}], ids=["nothing", "no JSON", "another key"])
async def test_what_makes_no_sense_there_is_not_recalled(scene: Scene, data: dict[str, str]) -> None:
    scene.put(**data)
    assert await scene.keeper.look()
    assert scene.recalled == []
    assert scene.writes == 0


async def test_what_may_not_be_read_is_tried_again_and_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert not await scene.keeper.look()  # it is not there
    assert len([r for r in caplog.records if "quotas not kept" in r.message]) == 1
    scene.put()
    scene.text = GOOD
    scene.server.inject(Fault(method="PATCH", status=403))
    assert not await scene.keeper.look()
    assert await scene.keeper.look()
    assert scene.data == {KEY: GOOD}


async def test_a_change_is_written_without_waiting_for_the_next_look(scene: Scene) -> None:
    scene.put()
    running = asyncio.create_task(scene.keeper.run())
    for text in (GOOD, "{}"):
        scene.text = text
        scene.keeper.changed()
        async with asyncio.timeout(10):
            while scene.data != {KEY: text}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    running.cancel()
