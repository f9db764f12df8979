"""Bodies with whole nodes and pods: the answer is the one by names, and nothing that is sent stalls the loop."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

import msgspec
import pytest

from fractile.errors import WireError
from fractile.extender.app import Extender
from fractile.extender.expected import Expected
from fractile.extender.large import made_small
from fractile.extender.verbs import MAX_BODY
from fractile.model.units import MemoryUnit
from tests.builders import in_use, pod
from tests.main.plane import Plane, plane

pytestmark = pytest.mark.slow

LONG = 0.2  # seconds without a turn of the loop
FULL = 16276


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane(nodes=("n1", "n2", "n3")) as made:
        in_use(made.ledger, "n1", FULL, FULL)
        yield made


def extender(p: Plane) -> Extender:
    return Extender(
        ledger=p.ledger, binder=p.binder, expected=Expected(time.monotonic), unit=MemoryUnit.MiB, ready=lambda: True
    )


def node(name: str, size: int = 9_000) -> dict[str, Any]:
    """About as large as a real one, with labels, images and brackets in its text."""
    images = [
        {"names": [f"registry.example/{i}@sha256:{'0' * 64}"], "sizeBytes": 10**8 + i} for i in range(size // 130)
    ]
    labels = {"a/b": 'x"}]{[,:', "ü": "ß"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"images": images, "capacity": {"cpu": "8"}}}


def body_of(asked: object, *names: str) -> bytearray:
    nodes: dict[str, Any] = {"metadata": {}, "items": [node(name) for name in names]}
    return bytearray(msgspec.json.encode({"Pod": asked, "Nodes": nodes, "NodeNames": None}))


async def test_the_fitting_nodes_come_back_whole(p: Plane) -> None:
    body = body_of(pod(), "n1", "n2", "n3")
    large = msgspec.json.decode(await extender(p).filter_large(body))
    assert large == msgspec.json.decode(extender(p).filter(bytes(body)))
    assert [n["metadata"]["name"] for n in large["Nodes"]["items"]] == ["n2", "n3"]


async def test_names_alone_are_answered_by_names(p: Plane) -> None:
    body = bytearray(msgspec.json.encode({"Pod": pod(), "Nodes": None, "NodeNames": ["n1", "n2"]}))
    assert await extender(p).filter_large(body) == extender(p).filter(bytes(body))


async def test_scores_are_the_same(p: Plane) -> None:
    body = body_of(pod(), "n2", "n3")
    assert await extender(p).prioritize_large(body) == extender(p).prioritize(bytes(body))


@pytest.mark.parametrize("lower", [False, True], ids=["as Go writes it", "in lower case"])
async def test_victims_become_their_uids(lower: bool) -> None:
    pods: list[Any] = [{"metadata": {"name": "v", "uid": "u-1"}, "spec": {"containers": []}}]
    sent: dict[str, Any] = {
        "Pod": pod(),
        "NodeNameToVictims": {"n1": {"Pods": pods, "NumPDBViolations": 2}, "n2": None},
    }
    text = msgspec.json.encode(sent)
    small = await made_small(
        bytearray(text.replace(b"NodeNameTo", b"nodeNameTo").replace(b"Pods", b"pods") if lower else text)
    )
    assert msgspec.json.decode(small.body)["NodeNameToMetaVictims"] == {
        "n1": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 2},
        "n2": {"Pods": [], "NumPDBViolations": 0},
    }


async def test_blanks_between_everything_change_nothing() -> None:
    asked = {"Pod": {"a": [1, 2]}, "Nodes": {"items": [node("n1"), node("n2")]}}
    loose = msgspec.json.format(msgspec.json.encode(asked), indent=8)
    small = await made_small(bytearray(loose))
    assert list(small.nodes) == ["n1", "n2"]
    begin, end = small.nodes["n2"]
    assert msgspec.json.decode(loose[begin:end]) == node("n2")


SIZE = MAX_BODY - 1000


def _filled(start: bytes, piece: bytes, end: bytes) -> bytearray:
    return bytearray(start + piece * ((SIZE - len(start)) // len(piece)) + end)


@pytest.fixture
def settled() -> Generator[None]:
    """As in the program (main/collector.py): what was there before is not looked through again. After some thousand
    tests in one process a full collection takes half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("start", "piece", "end"),
    [
        pytest.param(b'{"Pod":{},"Nodes":{"items":[{}', b",{}", b"]}}", id="tiny nodes"),
        pytest.param(b'{"Pod":{},"NodeNames":[""', b',""', b"]}", id="tiny names"),
        pytest.param(b'{"Pod":[[]', b",[]", b"]}", id="a pod of lists"),
        pytest.param(b'{"Pod":', b"[", b"", id="nothing but depth"),
        pytest.param(b'{"a":1', b',"a":1', b"}", id="unknown fields"),
        pytest.param(b'{"Pod":{}', b" ", b"}", id="blanks"),
        pytest.param(b'{"Pod":1', b"1", b"}", id="a long number"),
        pytest.param(b'{"Pod":{},"NodeNameToVictims":{"n":{"pods":[{}', b",{}", b"]}}}", id="tiny victims"),
        pytest.param(b'{"Pod":{},"NodeNameToVictims":{"n":{}', b',"n":{}', b"}}", id="one node again and again"),
        pytest.param(b"", b"\xff", b"", id="no text at all"),
    ],
)
async def test_what_is_made_to_hurt_stalls_nothing(start: bytes, piece: bytes, end: bytes) -> None:
    body = _filled(start, piece, end)
    stalls: list[float] = []

    async def heart() -> None:
        last = time.thread_time()  # others use this machine, too
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            stalls.append(now - last)
            last = now

    beating = asyncio.create_task(heart())
    await asyncio.sleep(0)
    with pytest.raises(WireError):
        await made_small(body)
    await asyncio.sleep(0.01)
    beating.cancel()
    assert max(stalls) < LONG
