"""The program ``fractile control-plane``, whole: its process against a fake API server."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from fractile.kube import paths
from fractile.lab.cluster.interrupted import interrupted
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT, KEY
from fractile.wire.fractile import extended_resource, placement
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.output import debug_state
from tests.builders import cards, container, on_card, pod, resource
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.main.plane import until
from tests.main.process import Running, control_plane


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    """An API server that knows the two cards of n1."""
    async with FakeApiServer() as made:
        for card in cards("n1"):
            made.create(paths.extended_resources(), resource(card, "n1"))
        yield made


def submit(server: FakeApiServer, name: str, memory: int = 8138, **fields: Any) -> Pod:
    body: dict[str, Any] = msgspec.to_builtins(pod(name, container(memory=memory), **fields))
    body["metadata"].pop("uid")
    return msgspec.convert(server.create(paths.pods("default"), body), Pod)


def stored(server: FakeApiServer, name: str) -> Pod:
    return msgspec.convert(server.get(paths.pod("default", name)), Pod)


def kubeconfig(server: FakeApiServer, folder: Path) -> Path:
    return server.write_kubeconfig(folder / "kubeconfig")


async def ask(running: Running, verb: str, body: object) -> Any:
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=10) as http:
        answer = await http.post(f"/scheduler/{verb}", content=msgspec.json.encode(body))
        assert answer.status_code == 200
        return answer.json()


async def fitting(running: Running, asked: Pod, nodes: Sequence[str] = ("n1",)) -> list[str]:
    answer = await ask(running, "filter", {"Pod": asked, "NodeNames": list(nodes)})
    assert answer["Error"] == ""
    return answer["NodeNames"]


async def bind(running: Running, asked: Pod) -> str:
    meta = asked.metadata
    body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": "n1"}
    return (await ask(running, "bind", body))["Error"]


async def test_it_rebuilds_serves_and_ends_when_told_to(server: FakeApiServer, tmp_path: Path) -> None:
    annotations = {placement.ANNOTATION: placement.encode(on_card(0, 12_000))}
    submit(server, "old", 12_000, node="n1", annotations=annotations)
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        asked = submit(server, "p")
        assert await fitting(running, asked) == ["n1"]
        assert await bind(running, asked) == ""
        assert stored(server, "p").spec.node_name == "n1"
        assert await fitting(running, submit(server, "q", 8139)) == []
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert "Traceback" not in running.log.read_text()


async def test_an_open_extender_says_so_in_log_readiness_metrics_and_state(
    server: FakeApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    async with control_plane(kubeconfig(server, tmp_path), tmp_path, f"--debug-token-file={token}") as running:
        await running.ready()
        async with httpx2.AsyncClient(base_url=running.url, trust_env=False) as http:
            ready = (await http.get("/readyz")).text
            metrics = (await http.get("/metrics")).text
            state = (await http.get(debug_state.PATH, headers={"Authorization": f"Bearer {'t' * 32}"})).json()
        assert "insecure: the extender is open (--insecure-open-extender)" in ready
        assert "fractile_control_plane_insecure_open 1" in metrics
        assert "--insecure-open-extender" in state["options"]["extender"]
        assert "insecure: the extender is open (--insecure-open-extender)" in running.log.read_text()


async def test_it_is_not_ready_before_it_has_seen_every_pod(server: FakeApiServer, tmp_path: Path) -> None:
    server.inject(Fault(method="GET", path="/api/v1/pods", watch=False, delay=5.0))
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        async with httpx2.AsyncClient(base_url=running.url, trust_env=False) as http:
            await until(lambda: any(r.path.endswith("extendedresources") for r in server.requests))
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/readyz")).status_code == 503
            answer = await http.post("/scheduler/filter", content=b"{}")
            assert "rebuilding" in answer.json()["Error"]
        await running.ready()


async def test_room_made_by_a_deletion_is_seen_and_the_waiting_pod_is_touched(
    server: FakeApiServer, tmp_path: Path
) -> None:
    for i in range(2):
        annotations = {placement.ANNOTATION: placement.encode(on_card(i, 16_000))}
        submit(server, f"old-{i}", 16_000, node="n1", annotations=annotations)
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        asked = submit(server, "p")
        assert await fitting(running, asked) == []
        server.delete(paths.pod("default", "old-1"))
        await until(lambda: "fractile.dev/retry" in (stored(server, "p").metadata.annotations or {}))
        assert await fitting(running, asked) == ["n1"]


async def test_who_waits_and_fits_is_touched_when_it_starts(server: FakeApiServer, tmp_path: Path) -> None:
    submit(server, "fits")
    submit(server, "large", 20_000)
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        await until(lambda: "fractile.dev/retry" in (stored(server, "fits").metadata.annotations or {}))
        assert "fractile.dev/retry" not in (stored(server, "large").metadata.annotations or {})


async def test_a_placement_that_a_user_wrote_is_an_event(server: FakeApiServer, tmp_path: Path) -> None:
    submit(server, "forged", node="n1", annotations={placement.ANNOTATION: '{"version":99}'})
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        await until(lambda: server.all(paths.events("default")))
        (event,) = server.all(paths.events("default"))
        assert (event["reason"], event["involvedObject"]["name"]) == ("PlacementIgnored", "forged")
        assert await fitting(running, submit(server, "p", 16_276)) == ["n1"]


@pytest.mark.parametrize("step", ["assumed", "bound"])
async def test_a_kill_in_the_middle_of_a_bind_charges_nothing_twice_and_leaks_nothing(
    server: FakeApiServer, tmp_path: Path, step: str
) -> None:
    asked = submit(server, "p", 16_000)
    async with control_plane(kubeconfig(server, tmp_path), tmp_path, program=interrupted("kill", step)) as running:
        await running.ready()
        with pytest.raises(httpx2.TransportError):
            await bind(running, asked)
        assert await running.ended() == -signal.SIGKILL
    assert stored(server, "p").spec.node_name == ("n1" if step == "bound" else "")
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        assert await bind(running, asked) == ""  # kube-scheduler repeats the call
        assert stored(server, "p").spec.node_name == "n1"
        assert await bind(running, submit(server, "q", 16_000)) == ""
        assert await fitting(running, submit(server, "r", 300)) == []
        server.delete(paths.pod("default", "p"))
        server.delete(paths.pod("default", "q"))
        await asyncio.sleep(0.3)
        assert await fitting(running, submit(server, "s", 16_276)) == ["n1"]
    held = [r for r in server.writes(path="/binding") if "/pods/p/" in r]
    assert len(held) == 1


async def test_a_malformed_object_does_not_end_it(server: FakeApiServer, tmp_path: Path) -> None:
    good: dict[str, Any] = msgspec.to_builtins(resource(cards("n2")[0], "n2"))
    for i, fields in enumerate(({"memory": "lots"}, {"index": -1}, {"index": 2**62}, {"memory": 7}, {"model": None})):
        spec = {**good["spec"], **fields}
        server.create(paths.extended_resources(), {**good, "metadata": {"name": f"bad-{i}"}, "spec": spec})
    server.create(paths.pods("default"), {"metadata": {"name": "bad"}, "spec": {"containers": [{"name": 7}]}})
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        assert await fitting(running, submit(server, "p"), ["n1", "n2"]) == ["n1"]
        server.create(paths.extended_resources(), resource(cards("n2")[0], "n2"))
        await asyncio.sleep(0.3)
        assert sorted(await fitting(running, submit(server, "q"), ["n1", "n2"])) == ["n1", "n2"]
    assert extended_resource.PLURAL == "extendedresources"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"metadata":{},"items":[{"metadata":{"name":"\xff"}}]}', id="no UTF-8"),
        pytest.param(b'{"metadata":{},"items":[{"metadata":null}]}', id="an object without metadata"),
        pytest.param(b'{"metadata":{},"items":[7]}', id="a number"),
        pytest.param(b"<html>\xe9</html>", id="no JSON"),
    ],
)
async def test_a_damaged_list_is_asked_for_again(server: FakeApiServer, tmp_path: Path, body: bytes) -> None:
    server.inject(Fault(method="GET", path="/api/v1/pods", watch=False, status=200, body=body))
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        assert await fitting(running, submit(server, "p")) == ["n1"]


async def test_quotas_are_followed_while_it_runs_and_metrics_show_them(server: FakeApiServer, tmp_path: Path) -> None:
    quota = {KEY: '{"default": {"quota": {"V100": 0.5}}}'}
    meta = {"name": "fractile-quota", "namespace": "fractile-system"}
    server.create(paths.config_maps("fractile-system"), {"metadata": meta, "data": quota})
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        first, second = submit(server, "first"), submit(server, "second")
        assert await bind(running, first) == ""
        answer = await ask(running, "filter", {"Pod": second, "NodeNames": ["n1"]})
        said = "namespace default may hold 0.5 V100, holds 0.5, and this pod takes 0.5"
        assert answer["FailedAndUnresolvableNodes"] == {"n1": said}
        assert await bind(running, second) == said
        async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=10) as http:
            text = (await http.get("/metrics")).text
        assert 'fractile_quota_used_cards{namespace="default",model="V100"} 0.5' in text
        server.merge(
            paths.config_map("fractile-system", "fractile-quota"),
            {"data": {KEY: '{"default": {"quota": {"V100": 1}}}'}},
        )
        for _ in range(100):  # the watch brings it in milliseconds
            if await fitting(running, second):
                break
            await asyncio.sleep(0.05)
        assert await bind(running, second) == ""


async def test_a_program_that_starts_with_malformed_quotas_goes_by_those_of_the_one_before(
    server: FakeApiServer, tmp_path: Path
) -> None:
    for location, data in ((DEFAULT_SOURCE, {KEY: '{"default": {"quota": {"V100": 0.5}}}'}), (KEPT, {})):
        namespace, name = location.split("/")
        server.create(paths.config_maps(namespace), {"metadata": {"name": name, "namespace": namespace}, "data": data})
    quota, kept = (paths.config_map(*location.split("/")) for location in (DEFAULT_SOURCE, KEPT))
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        async with asyncio.timeout(10):
            while not server.get(kept).get("data"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    server.merge(quota, {"data": {KEY: "{"}})
    async with control_plane(kubeconfig(server, tmp_path), tmp_path) as running:
        await running.ready()
        assert await bind(running, submit(server, "first")) == ""
        said = "namespace default may hold 0.5 V100, holds 0.5, and this pod takes 0.5"
        assert await bind(running, submit(server, "second")) == said


async def test_its_state_is_shown_to_who_may_see_it(server: FakeApiServer, tmp_path: Path) -> None:
    server.reviews = {"good": True}
    local = tmp_path / "token"
    local.write_text("a-token-of-this-machine\n")
    async with control_plane(kubeconfig(server, tmp_path), tmp_path, f"--debug-token-file={local}") as running:
        await running.ready()
        asked = submit(server, "p")
        assert await bind(running, asked) == ""
        submit(server, "waits", 99_999)
        await until(lambda: "p" in [str(p["metadata"]["name"]) for p in server.all(paths.pods("default"))])
        async with httpx2.AsyncClient(base_url=running.url, trust_env=False) as http:
            assert (await http.get("/debug/state")).status_code == 401
            for token in ("good", "a-token-of-this-machine"):
                answer = await http.get("/debug/state", headers={"authorization": f"Bearer {token}"})
                assert answer.status_code == 200
            state = debug_state.decode(answer.content)
    assert isinstance(state, debug_state.ControlPlaneState)
    assert state.ledger is not None
    assert [h.uid for h in state.ledger.holds] == [asked.metadata.uid]
    assert (state.lead.leading, state.lead.ready, state.lead.lease) == (True, True, "")
    feeds = {f.path: f for f in state.feeds}
    assert feeds["/api/v1/pods"].synced
    assert feeds["/apis/fractile.dev/v1alpha1/extendedresources"].objects == 2
    assert "a-token-of-this-machine" not in running.log.read_text()
