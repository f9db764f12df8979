"""Any interleaving of writes and failures: once it is quiet, the reflector's view is the server's."""

import asyncio
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractile.kube import paths
from fractile.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.kube.conftest import Sleeps
from tests.kube.views import View, create, delete, make_reflector, running, touch

NAMES = st.sampled_from("abcd")
FAULTS = st.one_of(
    st.builds(Fault, watch=st.booleans(), status=st.sampled_from([410, 429, 500, 503, 504]), times=st.integers(1, 3)),
    st.builds(Fault, watch=st.just(True), cut_after=st.integers(0, 900)),
    st.builds(Fault, watch=st.just(False), cut_after=st.integers(0, 300)),
    st.builds(Fault, watch=st.booleans(), drop=st.sampled_from(["before", "after"])),
    st.builds(Fault, watch=st.just(True), line=st.sampled_from([b"<html>", b'{"type":"ADDED"', b"{}"])),
    st.builds(Fault, watch=st.just(True), silent=st.just(True)),
    st.builds(Fault, watch=st.booleans(), delay=st.floats(0, 0.03)),
)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["create", "touch", "delete", "recreate"]), NAMES),
    st.tuples(st.sampled_from(["compact", "cut", "bookmark"]), st.none()),
    st.tuples(st.just("pause"), st.floats(0, 0.02)),
    st.tuples(st.just("fault"), FAULTS),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, max_size=30), streaming=st.booleans(), page_size=st.integers(1, 3))
def test_after_quiet_the_view_is_the_servers_and_each_deletion_was_told_once(
    actions: list[tuple[str, str | float | Fault | None]], streaming: bool, page_size: int
) -> None:
    asyncio.run(scenario(actions, streaming=streaming, page_size=page_size))


async def scenario(actions: list[tuple[str, str | float | Fault | None]], *, streaming: bool, page_size: int) -> None:
    view = View()
    async with (
        FakeApiServer() as server,
        KubeClient(
            server.credentials(), timeout=0.5, page_size=page_size, rng=random.Random(1), sleep=Sleeps()
        ) as client,
        running(make_reflector(client, view, streaming=streaming, silence=0.1)),
    ):
        for action, argument in actions:
            await act(server, action, argument)
            await asyncio.sleep(0)
        server.heal()
        await view.agrees(server, seconds=20)
        assert view.dead == view.reported - {uid for uid, _ in view.pods.values()}


async def act(server: FakeApiServer, action: str, argument: str | float | Fault | None) -> None:
    match action, argument:
        case "pause", float(seconds):
            await asyncio.sleep(seconds)
        case "fault", Fault():
            server.inject(Fault(**vars(argument)))
        case "compact", _:
            server.compact()
        case "bookmark", _:
            server.bookmark()
        case "cut", _:
            await server.cut_connections()
        case _, str(name):
            write(server, action, name)
        case _:
            raise AssertionError(f"unknown action {action}")


def write(server: FakeApiServer, action: str, name: str) -> None:
    exists = any(o["metadata"]["name"] == name for o in server.all(paths.pods()))
    if exists and action in ("delete", "recreate"):
        delete(server, name)
    if exists and action == "touch":
        touch(server, name)
    if action == "recreate" or (action == "create" and not exists):
        create(server, name)
