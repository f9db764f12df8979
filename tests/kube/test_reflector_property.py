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
WRITES = st.tuples(st.sampled_from(["create", "touch", "delete", "recreate"]), NAMES)
ACTIONS = st.one_of(
    WRITES,
    WRITES,
    st.tuples(st.sampled_from(["compact", "cut", "bookmark"]), st.none()),
    st.tuples(st.just("away"), st.lists(WRITES, max_size=5)),
    st.tuples(st.just("fault"), FAULTS),
)
# After an action the reflector has no time to notice it, a little, or enough.
STEPS = st.tuples(ACTIONS, st.sampled_from([0.0, 0.0, 0.003, 0.015]))
Action = tuple[str, str | Fault | list[tuple[str, str]] | None]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=30), streaming=st.booleans(), page_size=st.integers(1, 3))
def test_after_quiet_the_view_is_the_servers_and_each_deletion_was_told_once(
    steps: list[tuple[Action, float]], streaming: bool, page_size: int
) -> None:
    asyncio.run(scenario(steps, streaming=streaming, page_size=page_size))


async def scenario(steps: list[tuple[Action, float]], *, streaming: bool, page_size: int) -> None:
    view = View()
    async with (
        FakeApiServer() as server,
        KubeClient(
            server.credentials(), timeout=0.5, page_size=page_size, rng=random.Random(1), sleep=Sleeps()
        ) as client,
    ):
        for name in "abc":
            create(server, name)
        reflector = make_reflector(client, view, streaming=streaming, silence=0.1)
        async with running(reflector):
            await asyncio.wait_for(reflector.synced.wait(), 10)
            for action, pause in steps:
                await act(server, *action)
                await asyncio.sleep(pause)
            server.heal()
            await view.agrees(server, seconds=20)
            assert view.dead == view.reported - {uid for uid, _ in view.pods.values()}


async def act(server: FakeApiServer, action: str, argument: str | Fault | list[tuple[str, str]] | None) -> None:
    match action, argument:
        case "fault", Fault():
            server.inject(Fault(**vars(argument)))
        case "compact", _:
            server.compact()
        case "bookmark", _:
            server.bookmark()
        case "cut", _:
            await server.cut_connections()
        case "away", list(writes):
            await server.stop()
            for kind, name in writes:
                write(server, kind, name)
            server.compact()
            await server.restart()
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
