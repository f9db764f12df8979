"""Classes as they come and go on the path of a pod: who waits is looked at again, who runs is left alone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.placement import Placement
from fractile.model.units import MiB, NodeName
from fractile.reconcile import repair, requeue
from fractile.reconcile.requeue import ANNOTATION
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import (
    GPU_SLOT,
    ClassMeta,
    DeviceSelector,
    MatchExpression,
    ResourceClass,
    ResourceClassSpec,
)
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Container
from tests.builders import CARD_MEMORY, card, card_uuid, container, given, on_card, piece
from tests.builders import placement as placed
from tests.main.plane import Plane, plane, until

FULL = CARD_MEMORY


@pytest.fixture
async def p(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Plane, None]:
    monkeypatch.setattr(requeue, "_GATHER", 0.01)
    monkeypatch.setattr(requeue, "_AGAIN", 0.05)
    monkeypatch.setattr(repair, "_RETRY", 0.02)
    async with plane() as made:
        yield made


def cls(name: str, *, memory: str = "", operator: str = "Gt", value: str = "1Gi") -> ResourceClass:
    chosen = DeviceSelector(match_expressions=[MatchExpression("memory", operator, [value])])
    return ResourceClass(metadata=ClassMeta(name=name), spec=ResourceClassSpec(selector=chosen, memory=memory))


def asks(name: str) -> Container:
    return container("main", limits={f"class.fractile.dev/{name}": 1, GPU_SLOT: 1})


async def bind(p: Plane, name: str, asked: Container) -> None:
    pod = p.submit(name, asked)
    assert await p.binder.bind(BindingArgs(name, "default", pod.metadata.uid, "n1")) is None
    p.see(name)


@asynccontextmanager
async def running(p: Plane) -> AsyncGenerator[None, None]:
    tasks = [asyncio.create_task(work) for work in (p.wakeup.run(), p.repair.run())]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_objects_become_classes_and_nonsense_becomes_a_reason(p: Plane) -> None:
    p.classes.changed(cls("large", value="10GiB"))
    assert p.index.find("large") == DeviceClass(
        "large", requirements=(PropertyRequirement("memory", Operator.GT, ("10GiB",)),)
    )
    p.classes.changed(cls("large", operator="About"))
    assert p.index.find("large") is None
    assert "the operator 'About' of memory is unknown" in (p.index.spoiled("large") or "")
    p.classes.gone("large")
    assert p.index.spoiled("large") is None


async def test_who_waits_for_a_class_is_looked_at_when_it_comes_and_nobody_else(p: Plane) -> None:
    for n in range(12):
        p.submit(f"w{n}", asks("large"))
    p.submit("other", asks("small"))
    async with running(p):
        p.classes.changed(cls("large"))
        await until(lambda: all(ANNOTATION in p.annotations(f"w{n}") for n in range(12)))
        assert ANNOTATION not in p.annotations("other")
        before = len(p.writes())
        p.classes.changed(cls("large"))  # the same again, as after a new list
        await asyncio.sleep(0.1)
        assert len(p.writes()) == before


def test_ten_thousand_classes_that_come_at_once_are_looked_through_once(p: Plane) -> None:
    for n in range(200):
        p.submit(f"w{n}", asks(f"c{n}"))
    looks: list[int] = []
    oldest_first = p.waiting.oldest_first
    p.waiting.oldest_first = lambda: looks.append(1) or oldest_first()
    for n in range(10_000):
        p.classes.changed(cls(f"c{n}"))
    rounds = [p.wakeup.of_changed_classes() for _ in range(5)]
    assert [len(some) for some in rounds] == [50, 50, 50, 50, 0]
    assert len({pod.uid for some in rounds for pod in some}) == 200
    assert len(looks) == 1


async def test_room_wakes_who_waits_by_class(p: Plane) -> None:
    p.index.put(DeviceClass("whole"))
    p.submit("w", asks("whole"))
    p.submit("lost", asks("gone"))
    found = [pod.name for pod in await p.wakeup.candidates([NodeName("n1")])]
    assert found == ["w"]


def choose(p: Plane, wanted: Placement) -> None:
    p.annotate({placement.CHOICE_ANNOTATION: placement.encode(wanted)})
    p.see()


def recorded(p: Plane) -> Placement:
    return placement.decode(p.annotations()[placement.ANNOTATION])


async def test_kubelets_choice_of_another_card_of_the_class_moves_the_pod_with_its_amounts(p: Plane) -> None:
    p.index.put(DeviceClass("small", memory=MiB(4096)))
    await bind(p, "p", asks("small"))
    p.index.put(DeviceClass("small", memory=MiB(9999)))  # what was given stays given
    choose(p, on_card(1, 4096))
    async with running(p):
        await until(lambda: p.free() == [FULL, FULL - 4096])  # both cards are held until the write is answered
    assert placement.CHOICE_ANNOTATION not in p.annotations()
    assert recorded(p) == on_card(1, 4096)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        pytest.param(on_card(1, 9999), "other amounts than it was given", id="more memory"),
        pytest.param(on_card(1, 1), "other amounts than it was given", id="less memory"),
        pytest.param(placed(given("main", piece(card_uuid("n1", 2), 4096))), "may not use", id="no card of the class"),
    ],
)
async def test_a_choice_that_the_class_does_not_give_is_refused_with_an_event(
    p: Plane, choice: Placement, said: str
) -> None:
    p.node("n1", [card("n1", 2, model="Tesla T4")])
    v100 = PropertyRequirement("model", Operator.IN, ("Tesla-V100",))
    p.index.put(DeviceClass("small", requirements=(v100,), memory=MiB(4096)))
    await bind(p, "p", asks("small"))
    choose(p, choice)
    async with running(p):
        await until(lambda: p.events)
    assert [(name, reason) for name, reason, _ in p.events] == [("p", "CardTaken")]
    assert said in p.events[0][2]
    assert recorded(p) == on_card(0, 4096)
    assert p.free() == [FULL - 4096, FULL, FULL]


async def test_a_whole_card_may_become_another_whole_card(p: Plane) -> None:
    p.node("n1", [msgspec.structs.replace(card("n1", 2), memory=MiB(32510))])
    p.index.put(DeviceClass("whole"))
    await bind(p, "p", asks("whole"))
    choose(p, placed(given("main", piece(card_uuid("n1", 2), 32510, 100))))
    async with running(p):
        await until(lambda: p.free() == [FULL, FULL, 0])
    assert placement.CHOICE_ANNOTATION not in p.annotations()
