"""The class controllers: what they write, when they write nothing, and what they set right."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from fractile.classes.controllers import ClassControllers
from fractile.classes.count import MOST
from fractile.classes.lost import GONE_GRACE, GRACE
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.ledger.ledger import Ledger
from fractile.model.units import PodUID
from fractile.watch.event_handlers import CardHandlers
from fractile.wire.fractile.resource_class import RESOURCE_PREFIX
from tests.builders import Clock, container, on_card, pod
from tests.classes.class_plane import Controllers, controllers
from tests.classes.class_world import class_object, device, gpu, labels, node, resource, where
from tests.fakes.apiserver import Fault

CARDS = "/apis/fractile.dev/v1alpha1/extendedresources"
CLASSES = "/apis/fractile.dev/v1alpha1/resourceclasses"


@pytest.fixture
async def one() -> AsyncGenerator[Controllers, None]:
    """A node with two V100 and a T4, and a class of V100."""
    async with controllers() as (made,):
        made.make_node(node("n1"))
        for card in (gpu("n1", 0), gpu("n1", 1), gpu("n1", 2, model="Tesla T4")):
            made.card(card)
        made.make_class(class_object("v100", labels(model="Tesla V100")))
        yield made


def ask(name: str, node: str, **units: int) -> dict[str, Any]:
    """A bound pod that asks for units of classes."""
    limits = {f"{RESOURCE_PREFIX}{name}": str(n) for name, n in units.items()}
    body: dict[str, Any] = msgspec.to_builtins(pod(name, container(limits=limits), node=node, phase="Running"))
    body["metadata"].pop("uid")
    return body


def run(one: Controllers, name: str, node: str = "n1", **units: int) -> None:
    one.server.create(paths.pods("default"), ask(name, node, **units))


# ── status and capacity ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_class_gets_its_status_and_its_nodes_their_capacity(one: Controllers) -> None:
    await one.settle()
    status = one.status("v100")
    assert status.pop("lastTransitionTime")
    assert status == {
        "devices": {"total": 2, "free": 2, "unhealthy": 0},
        "units": {"total": 2, "free": 2},
        "reason": "",
        "message": "",
        "observedGeneration": 1,
    }
    assert one.units("n1") == {"v100": "2"}


async def test_at_rest_nothing_is_written(one: Controllers) -> None:
    assert await one.settle() == 2
    assert await one.settle() == 0


async def test_what_somebody_writes_into_status_or_capacity_is_set_right(one: Controllers) -> None:
    await one.settle()
    wanted = one.status("v100")
    one.server.merge(f"{CLASSES}/v100/status", {"status": {"devices": {"total": 99}, "reason": "Forged", "x": 1}})
    one.server.merge(
        f"{paths.node('n1')}/status",
        {"status": {"capacity": {f"{RESOURCE_PREFIX}v100": "0", f"{RESOURCE_PREFIX}none": "7"}}},
    )
    await one.settle()
    assert one.status("v100") == {**wanted, "x": 1, "lastTransitionTime": one.status("v100")["lastTransitionTime"]}
    assert one.units("n1") == {"v100": "2"}


async def test_a_kubelet_that_zeroes_the_capacity_gets_it_back(one: Controllers) -> None:
    await one.settle()
    zero = {f"{RESOURCE_PREFIX}v100": "0"}
    one.server.merge(f"{paths.node('n1')}/status", {"status": {"capacity": zero, "allocatable": zero}})
    assert await one.settle() == 1
    assert one.units("n1") == {"v100": "2"}


async def test_two_replicas_write_once_what_one_would(one: Controllers) -> None:
    await one.settle()
    async with controllers(2) as (first, second):
        first.make_node(node("n1"))
        first.card(gpu("n1", 0))
        first.make_class(class_object("v100", labels(model="Tesla V100")))
        assert await first.settle() == 2
        assert await second.settle() == 0


async def test_two_replicas_that_act_at_once_write_the_same_and_come_to_rest() -> None:
    async with controllers(2) as (first, second):
        first.make_node(node("n1"))
        first.card(gpu("n1", 0))
        first.make_class(class_object("v100", labels(model="Tesla V100")))
        for replica in (first, second):
            replica.see()
        await asyncio.gather(first.act(), second.act())
        status = first.status("v100")
        assert await first.settle() == 0
        assert await second.settle() == 0
        assert first.status("v100") == status
        assert first.units("n1") == {"v100": "1"}


async def test_a_status_changes_its_time_only_with_its_reason(one: Controllers) -> None:
    await one.settle()
    before = one.status("v100")["lastTransitionTime"]
    one.clock.now += 60
    one.card(gpu("n1", 3))
    await one.settle()
    assert one.status("v100")["devices"]["total"] == 3
    assert one.status("v100")["lastTransitionTime"] == before
    one.clock.now += 60
    one.server.merge(f"{CLASSES}/v100", {"spec": {"memory": "99Gi"}})
    await one.settle()
    assert one.status("v100")["reason"] == "TooLarge"
    assert one.status("v100")["lastTransitionTime"] > before


async def test_a_sick_card_gives_no_units_until_it_is_well(one: Controllers) -> None:
    await one.settle()
    one.card(gpu("n1", 0), phase="Unhealthy", reason="CardLost")
    await one.settle()
    assert one.status("v100")["devices"] == {"total": 2, "free": 1, "unhealthy": 1}
    assert one.units("n1") == {"v100": "1"}
    one.card(gpu("n1", 0))
    await one.settle()
    assert one.units("n1") == {"v100": "2"}


async def test_a_device_that_is_gone_leaves_status_and_capacity(one: Controllers) -> None:
    await one.settle()
    one.server.delete(f"{CARDS}/gpu-n1-0")
    await one.settle()
    assert one.status("v100")["devices"] == {"total": 1, "free": 1, "unhealthy": 0}
    assert one.units("n1") == {"v100": "1"}


async def test_what_pods_hold_leaves_the_status_and_not_the_capacity(one: Controllers) -> None:
    await one.settle()
    one.ledger.observe(PodUID("uid-p"), on_card(0, 4096))
    assert await one.settle() == 1
    assert one.status("v100")["devices"]["free"] == 1
    assert one.units("n1") == {"v100": "2"}


async def test_overlapping_classes_are_each_counted_whole(one: Controllers) -> None:
    one.make_class(class_object("big", where("memory", "Gt", "10GiB"), memory="4Gi"))
    one.make_class(class_object("pairs", labels(model="Tesla V100"), count=2))
    await one.settle()
    assert one.units("n1") == {"v100": "2", "big": "12", "pairs": "1"}


async def test_devices_that_are_no_cards_have_capacity_too(one: Controllers) -> None:
    one.card(device("n1", 0, shares=4))
    one.make_class(class_object("hca", None, device_type="hca"))
    await one.settle()
    assert one.units("n1") == {"v100": "2", "hca": "4"}


async def test_a_deleted_class_leaves_the_nodes(one: Controllers) -> None:
    await one.settle()
    one.server.delete(f"{CLASSES}/v100")
    await one.settle()
    assert one.units("n1") == {}


async def test_a_class_that_makes_no_sense_says_so_and_has_no_units(one: Controllers) -> None:
    await one.settle()
    one.server.merge(f"{CLASSES}/v100", {"spec": {"count": 0}})
    await one.settle()
    assert one.status("v100")["reason"] == "Invalid"
    assert "count" in one.status("v100")["message"]
    assert one.units("n1") == {}


async def test_a_selector_that_becomes_empty_takes_all_and_is_remarked(one: Controllers) -> None:
    await one.settle()
    one.server.merge(f"{CLASSES}/v100", {"spec": {"selector": None}})
    await one.settle()
    assert "every device of type gpu" in one.status("v100")["message"]
    assert one.units("n1") == {"v100": "3"}


async def test_a_class_without_devices_keeps_telling_which_there_are(one: Controllers) -> None:
    one.make_class(class_object("k80", labels(model="Tesla K80")))
    await one.settle()
    assert "Tesla T4, Tesla V100" in one.status("k80")["message"]
    one.card(gpu("n1", 3, model="A100"))
    await one.settle()
    assert "A100, Tesla T4, Tesla V100" in one.status("k80")["message"]


async def test_a_class_that_is_made_anew_under_its_name_gets_its_own_status(one: Controllers) -> None:
    await one.settle()
    one.server.delete(f"{CLASSES}/v100")
    one.make_class(class_object("v100", labels(model="Tesla T4")))
    await one.settle()
    assert one.status("v100")["devices"]["total"] == 1


async def test_a_status_for_a_class_that_was_replaced_meanwhile_is_not_written(one: Controllers) -> None:
    one.see()
    one.server.delete(f"{CLASSES}/v100")
    one.make_class(class_object("v100", labels(model="Tesla T4")))
    await one.act()
    assert one.status("v100") == {}


async def test_a_write_that_fails_is_tried_again(one: Controllers) -> None:
    one.server.inject(Fault(method="PATCH", path="/status", status=500, times=20))
    one.see()
    assert not await one.control.statuses.once()
    one.server.heal()
    assert await one.control.statuses.once()
    assert one.status("v100")["devices"]["total"] == 2


# ── what pods hold is never taken from a node ────────────────────────────────────────────────────────────────────────


async def test_a_class_that_grows_costs_nobody_who_runs(one: Controllers) -> None:
    one.make_class(class_object("part", labels(model="Tesla T4"), memory="2Gi"))
    for i in range(5):
        run(one, f"p{i}", part=1)
    await one.settle()
    assert one.units("n1")["part"] == "8"
    one.server.merge(f"{CLASSES}/part", {"spec": {"memory": "8Gi"}})
    await one.settle()
    assert one.units("n1")["part"] == "5"
    assert one.status("part")["units"]["total"] == 2
    for i in range(5):
        one.server.delete(paths.pod("default", f"p{i}"))
    await one.settle()
    assert one.units("n1")["part"] == "2"


async def test_a_finished_pod_holds_nothing(one: Controllers) -> None:
    run(one, "p", v100=2)
    one.card(gpu("n1", 0), phase="Unhealthy")
    await one.settle()
    assert one.units("n1") == {"v100": "2"}
    one.server.merge(f"{paths.pod('default', 'p')}/status", {"status": {"phase": "Succeeded"}})
    await one.settle()
    assert one.units("n1") == {"v100": "1"}


async def test_a_deleted_class_is_taken_away_whole_though_pods_run(one: Controllers) -> None:
    run(one, "p", v100=1)
    await one.settle()
    one.server.delete(f"{CLASSES}/v100")
    await one.settle()
    assert one.units("n1") == {}


# ── many classes ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_names_the_first_classes_by_name_and_the_others_say_so(one: Controllers) -> None:
    for i in range(MOST + 5):
        one.make_class(class_object(f"c{i:04}", labels(model="Tesla T4")))
    await one.settle()
    assert len(one.units("n1")) == MOST
    assert "c0000" in one.units("n1")
    assert f"c{MOST:04}" not in one.units("n1")
    assert one.status("c0000")["reason"] == ""
    assert one.status(f"c{MOST + 1:04}")["reason"] == "TooManyClasses"


def test_ten_thousand_classes_are_looked_at_in_seconds_and_fill_no_node() -> None:
    ledger = Ledger(Clock())
    control = ClassControllers(ledger, KubeClient(Credentials("http://127.0.0.1:1")))
    handlers = CardHandlers(ledger, freed=lambda node: None, shown=control.card_shown)
    for i in range(400):
        handlers.changed(resource(gpu(f"n{i // 8}", i % 8, model=f"Model {i // 100}")))
    for i in range(10_000):
        selector = where("nodeName", "In", f"n{i % 50}") if i % 100 == 0 else labels(model=f"Model {i % 4}")
        control.class_changed(class_object(f"c{i:05}", selector, memory=f"{1 + i % 16}Gi"))
    control.look()
    began = time.process_time()
    assert all(len(control.capacity.wanted(name)) <= MOST for name in control.table.nodes())
    names = list(control.touched())
    assert len(names) == 10_000
    assert sum(len(control.plan_status(name)) for name in names) == 10_000
    assert list(control.touched()) == []
    assert time.process_time() - began < 30


# ── nodes that are away ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_devices_of_a_node_that_is_not_ready_are_lost_and_come_back(one: Controllers) -> None:
    await one.settle()
    one.server.merge(f"{paths.node('n1')}/status", {"status": msgspec.to_builtins(node(ready="Unknown").status)})
    await one.settle()
    assert one.phase(gpu("n1", 0)) == ("Available", "")
    one.clock.now += GRACE + 1
    await one.settle()
    assert {one.phase(gpu("n1", i)) for i in range(3)} == {("Lost", "NodeLost")}
    assert one.status("v100")["reason"] == "NoneHealthy"
    assert one.units("n1") == {}
    one.server.merge(f"{paths.node('n1')}/status", {"status": msgspec.to_builtins(node(ready="True").status)})
    await one.settle()
    assert {one.phase(gpu("n1", i)) for i in range(3)} == {("Available", "")}
    assert one.units("n1") == {"v100": "2"}
    assert await one.settle() == 0


async def test_a_node_that_is_away_for_a_moment_loses_nothing(one: Controllers) -> None:
    await one.settle()
    for ready in ("False", "True"):
        one.server.merge(f"{paths.node('n1')}/status", {"status": msgspec.to_builtins(node(ready=ready).status)})
        one.clock.now += GRACE / 2
        await one.settle()
    one.clock.now += GRACE
    await one.settle()
    assert one.phase(gpu("n1", 0)) == ("Available", "")


async def test_devices_of_a_node_that_is_gone_are_lost(one: Controllers) -> None:
    await one.settle()
    one.server.delete(paths.node("n1"))
    await one.settle()
    one.clock.now += GRACE + 1
    await one.settle()
    assert one.phase(gpu("n1", 0)) == ("Available", "")
    one.clock.now += GONE_GRACE
    await one.settle()
    assert one.phase(gpu("n1", 0)) == ("Lost", "NodeLost")


async def test_a_sick_card_of_a_lost_node_stays_sick(one: Controllers) -> None:
    one.card(gpu("n1", 0), phase="Unhealthy", reason="CardLost")
    one.server.delete(paths.node("n1"))
    await one.settle()
    one.clock.now += GONE_GRACE + 1
    await one.settle()
    assert one.phase(gpu("n1", 0)) == ("Unhealthy", "CardLost")


async def test_an_agent_that_spoke_meanwhile_has_the_last_word(one: Controllers) -> None:
    one.card(gpu("n1", 0), phase="Lost", reason="NodeLost")
    one.see()
    one.card(gpu("n1", 0), phase="Unhealthy", reason="CardLost")  # not seen yet
    await one.act()
    assert one.phase(gpu("n1", 0)) == ("Unhealthy", "CardLost")


async def test_a_card_that_is_lost_itself_does_not_come_back_with_the_node(one: Controllers) -> None:
    one.card(gpu("n1", 0), phase="Lost", reason="CardLost")
    await one.settle()
    assert one.phase(gpu("n1", 0)) == ("Lost", "CardLost")


@pytest.mark.parametrize(
    ("used", "phase"),
    [
        pytest.param(None, "Available", id="unused"),
        pytest.param({"memory": "4Gi", "cores": 0, "slices": 1}, "PartlyBound", id="a part"),
        pytest.param({"memory": "16Gi", "cores": 0, "slices": 2}, "Bound", id="all memory"),
        pytest.param({"memory": "4Gi", "cores": 100, "slices": 1}, "Bound", id="all cores"),
    ],
)
async def test_a_device_comes_back_as_its_agent_last_said_that_it_is_used(
    one: Controllers, used: dict[str, Any] | None, phase: str
) -> None:
    one.card(gpu("n1", 0), phase="Lost", reason="NodeLost")
    if used:
        one.server.merge(f"{CARDS}/gpu-n1-0/status", {"status": {"used": used}})
    await one.settle()
    assert one.phase(gpu("n1", 0)) == (phase, "")
