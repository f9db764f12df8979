"""The verbs over HTTP, with the bodies that kube-scheduler sends and with those that it never would."""

import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import msgspec
import pytest

from fractile.extender import app as module
from fractile.extender.app import application
from fractile.ledger.precedence import Rank
from fractile.model.units import PodUID
from fractile.wire.kubernetes.extender import FilterResult
from fractile.wire.kubernetes.objects import Pod
from tests.builders import CARD_MEMORY, card_uuid, cards, container, given, in_use, piece, placement, pod
from tests.fakes.apiserver import Fault
from tests.main.plane import Plane, plane
from tests.wire.golden_files import golden

FULL = CARD_MEMORY
NOT_READY = "Fractile is rebuilding its ledger; it will be ready in a moment"


class Scheduler:
    """kube-scheduler's side of the wire: raw bodies, status and JSON."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def post(self, verb: str, body: bytes) -> Any:
        answer = await self._http.post(f"/scheduler/{verb}", content=body)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    async def filter(self, asked: Pod, *names: str) -> Any:
        return await self.post("filter", args(asked, *names))

    async def prioritize(self, asked: Pod, *names: str) -> Any:
        return await self.post("prioritize", args(asked, *names))

    async def bind(self, asked: Pod, node: str) -> str:
        meta = asked.metadata
        body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        return (await self.post("bind", json.dumps(body).encode()))["Error"]


def args(asked: Pod, *names: str) -> bytes:
    return msgspec.json.encode({"Pod": asked, "Nodes": None, "NodeNames": list(names)})


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    """The three nodes of the worked example."""
    async with plane(nodes=("n1", "n2", "n3")) as made:
        in_use(made.ledger, "n1", 16276, 12207)
        in_use(made.ledger, "n2", 12207, 12207)
        in_use(made.ledger, "n3", 8138, 16276)
        yield made


@pytest.fixture
async def http(p: Plane) -> AsyncGenerator[httpx2.AsyncClient, None]:
    transport = httpx2.ASGITransport(app=application(p.extender))
    async with httpx2.AsyncClient(transport=transport, base_url="http://extender") as client:
        yield client


@pytest.fixture
def scheduler(http: httpx2.AsyncClient) -> Scheduler:
    return Scheduler(http)


async def test_the_worked_example_from_filter_to_bind(p: Plane, scheduler: Scheduler) -> None:
    asked = p.submit("p", container(memory=8138))
    assert await scheduler.filter(asked, "n2", "n3") == {
        "NodeNames": ["n3"],
        "FailedNodes": {
            "n2": "8138 MiB requested on one card, the most free on one is 4069 MiB "
            "(card 0; 8138 MiB free on 2 cards together)"
        },
        "FailedAndUnresolvableNodes": {},
        "Error": "",
        "Nodes": None,
    }
    assert await scheduler.prioritize(asked, "n3") == [{"Host": "n3", "Score": 10}]
    assert await scheduler.bind(asked, "n3") == ""
    assert p.annotations()["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert p.free("n3") == [0, 0]


async def test_the_recorded_request_of_kube_scheduler_is_served(p: Plane, scheduler: Scheduler) -> None:
    answer = await scheduler.post("filter", golden("extender-args.json"))
    assert answer["NodeNames"] == ["n3"]
    assert set(answer["FailedNodes"]) == {"n1", "n2"}
    scores = await scheduler.post("prioritize", golden("extender-args.json"))
    assert [s["Host"] for s in scores] == ["n1", "n2", "n3"]
    assert await scheduler.post("bind", golden("extender-bind.json")) == {
        "Error": "there is no pod default/binpack-1: it was deleted, or it never existed"
    }


async def test_a_scheduler_that_sends_node_objects_gets_them_back_as_they_came(scheduler: Scheduler) -> None:
    sent = json.loads(golden("extender-args-nodes.json"))
    answer = await scheduler.post("filter", golden("extender-args-nodes.json"))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [n for n in sent["Nodes"]["items"] if n["metadata"]["name"] == "n3"]
    assert set(answer["FailedNodes"]) == {"n1", "n2"}


async def test_keys_of_older_schedulers_in_lower_case_are_understood(scheduler: Scheduler) -> None:
    sent = json.loads(golden("extender-args.json"))
    body = json.dumps({key.lower(): value for key, value in sent.items()}).encode()
    assert (await scheduler.post("filter", body))["NodeNames"] == ["n3"]


async def test_names_that_the_ledger_does_not_know_are_answered(p: Plane, scheduler: Scheduler) -> None:
    asked = p.submit("p")
    answer = await scheduler.filter(asked, "cpu-only", "n3")
    assert answer["FailedNodes"] == {"cpu-only": "no usable cards reported by the node's fractile agent"}
    assert await scheduler.prioritize(asked, "cpu-only") == [{"Host": "cpu-only", "Score": 0}]
    assert await scheduler.bind(asked, "cpu-only") == "no usable cards reported by the node's fractile agent"


async def test_no_nodes_are_answered_with_none(scheduler: Scheduler) -> None:
    answer = await scheduler.filter(pod())
    assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == ([], {}, "")
    assert await scheduler.prioritize(pod()) == []


async def test_a_malformed_request_of_a_pod_is_a_reason_and_no_error(scheduler: Scheduler) -> None:
    both = pod("p", container(memory=1, limits={"nvidia.com/gpu": "1"}))
    answer = await scheduler.filter(both, "n1")
    assert answer["Error"] == ""
    assert "aliyun.com/gpu-mem and nvidia.com/gpu" in answer["FailedAndUnresolvableNodes"]["n1"]
    assert await scheduler.prioritize(both, "n1") == [{"Host": "n1", "Score": 0}]


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        pytest.param({"tencent.com/vcuda-core": "90", "tencent.com/vcuda-memory": "4"}, {}, id="no cores left"),
        pytest.param({"tencent.com/vcuda-core": "90", "tencent.com/vcuda-memory": "70"}, {}, id="neither is left"),
        pytest.param({"nvidia.com/gpu": "1"}, {"nvidia.com/use-gputype": "A%d 100%s"}, id="a model of the user's"),
        pytest.param({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"}, {}, id="more than a card"),
    ],
)
async def test_no_sentence_of_the_filter_holds_a_percent_sign(
    p: Plane, http: httpx2.AsyncClient, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    """kube-scheduler takes it for a format: "90 % of" becomes "90 %!o(MISSING)f" in the pod's event."""
    for index in (0, 1):
        half = placement(given("main", piece(card_uuid("n2", index), 100, 50)), node="n2")
        assert p.ledger.observe(PodUID(f"half-{index}"), half, rank=Rank(0)) is None
    asking = msgspec.convert(
        {
            "metadata": {"namespace": "ns", "name": "p", "uid": "u-p", "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        },
        Pod,
    )
    answer = await http.post("/scheduler/filter", content=args(asking, "n2"))
    assert answer.json()["NodeNames"] == []
    assert b"%" not in answer.content


async def test_errors_of_the_verbs_hold_no_percent_sign(p: Plane, http: httpx2.AsyncClient) -> None:
    for verb in ("filter", "bind"):
        answer = await http.post(f"/scheduler/{verb}", content=b'{"%s": %d}')
        assert b"%" not in answer.content


async def test_before_the_ledger_is_rebuilt_every_verb_asks_to_be_asked_again(p: Plane, scheduler: Scheduler) -> None:
    p.is_ready = False
    asked = p.submit("p")
    assert (await scheduler.filter(asked, "n3"))["Error"] == NOT_READY
    assert await scheduler.prioritize(asked, "n3") == []
    assert await scheduler.bind(asked, "n3") == NOT_READY
    assert p.writes() == []


async def test_the_probes_tell_alive_from_ready(p: Plane, http: httpx2.AsyncClient) -> None:
    for ready, status in ((True, 200), (False, 503)):
        p.is_ready = ready
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == status


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"7", b"{}", b"\xff\xfe", b'{"Pod":' * 5000], ids=repr)
async def test_a_body_that_is_none_is_answered_and_survived(
    p: Plane, scheduler: Scheduler, verb: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = p.ledger.statistics()
    answer = await scheduler.post(verb, body)
    assert answer == [] if verb == "prioritize" else answer["Error"]
    assert p.ledger.statistics() == before
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("name", ["../../secrets/x", "a/b", "", "A", "x" * 300, "p?watch=1", "p%2f", "\n"])
async def test_a_name_cannot_leave_its_place_in_a_path(p: Plane, scheduler: Scheduler, name: str) -> None:
    body = json.dumps({"PodName": name, "PodNamespace": "default", "PodUID": "u", "Node": "n3"}).encode()
    assert (await scheduler.post("bind", body))["Error"]
    assert p.server.requests == []


@pytest.mark.parametrize("verb", ["filter", "bind"])
async def test_a_body_in_pieces_that_is_larger_than_usual_is_answered_without_being_read(
    http: httpx2.AsyncClient, verb: str
) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            yield b" " * 2**20

    answer = await http.post(f"/scheduler/{verb}", content=pieces())
    assert "larger than" in answer.json()["Error"]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(b'"NodeNames":["n"%b]' % (b',"n"' * 20_000), id="names"),
        pytest.param(b'"Nodes":{"items":[{}%b]}' % (b",{}" * 100_000), id="objects"),
    ],
)
async def test_more_nodes_than_any_cluster_has_are_refused(scheduler: Scheduler, nodes: bytes) -> None:
    asked = b'{"Pod":%b,%b}' % (msgspec.json.encode(pod()), nodes)
    assert "more than" in (await scheduler.post("filter", asked))["Error"]
    assert await scheduler.post("prioritize", asked) == []


async def test_a_bug_is_logged_and_answered(
    p: Plane, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> FilterResult:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "filter_nodes", broken)
    answer = await scheduler.filter(pod(), "n3")
    assert answer == {"Error": "internal error in Fractile; see its log"}
    assert "ZeroDivisionError" in caplog.text
    assert msgspec.json.decode(json.dumps(answer), type=FilterResult).error


async def test_a_get_of_a_verb_is_not_served(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/scheduler/filter")).status_code == 405


async def test_a_thousand_filters_and_scores_change_nothing(p: Plane, http: httpx2.AsyncClient) -> None:
    before = (p.ledger.statistics(), [p.ledger.node(n) for n in ("n1", "n2", "n3")])
    for i in range(1000):
        body = args(pod(f"p{i}", container(memory=8138)), "n1", "n2", "n3", "n4")
        p.extender.filter(body)
        p.extender.prioritize(body)
    assert (p.ledger.statistics(), [p.ledger.node(n) for n in ("n1", "n2", "n3")]) == before
    assert p.server.requests == []


async def test_an_error_of_the_api_server_is_the_answer_of_bind(p: Plane, scheduler: Scheduler) -> None:
    p.server.inject(Fault(method="POST", path="/binding", status=500))
    assert await scheduler.bind(p.submit("p"), "n3") == ("the API server answered 500 Injected: injected by the test")


async def test_an_api_server_that_is_away_is_the_answer_of_bind(p: Plane, scheduler: Scheduler) -> None:
    asked = p.submit("p")
    await p.server.stop()
    assert "no answer from" in await scheduler.bind(asked, "n3")
    await p.server.restart()
    assert await scheduler.bind(asked, "n3") == ""
    assert p.free("n3") == [0, 0]


async def test_a_burst_of_equal_pods_is_ranked_as_if_each_were_already_there(p: Plane, scheduler: Scheduler) -> None:
    for n in ("a", "b"):
        p.node(n, cards(n, 2))
    first = await scheduler.prioritize(p.create("p1", container(memory=16_276)), "a", "b")
    second = await scheduler.prioritize(p.create("p2", container(memory=16_276)), "a", "b")
    assert [s["Score"] for s in first] == [5, 5]
    assert [s["Score"] for s in second] == [10, 5]


async def test_the_hint_of_a_pod_ends_with_its_bind(p: Plane, scheduler: Scheduler) -> None:
    asked = p.submit("p")
    await scheduler.prioritize(asked, "n3")
    assert list(p.expected.others(PodUID("another"))) == [("n3", 8138)]
    await scheduler.bind(asked, "n3")
    assert list(p.expected.others(PodUID("another"))) == []


async def test_one_line_is_logged_for_each_decision(
    p: Plane, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fractile.extender.app")
    hostile = msgspec.structs.replace(pod(), metadata=msgspec.structs.replace(pod().metadata, name="p\nlevel=ERROR"))
    await scheduler.filter(hostile, "n2", "n3")
    await scheduler.bind(p.submit("q"), "n3")
    lines = [r.getMessage() for r in caplog.records]
    assert [line.split(" ms=")[0] for line in lines] == [
        "filter pod='default/p\\nlevel=ERROR' asked=2 fit=1 reason=''",
        "bind pod='default/q' node='n3' error=''",
    ]
