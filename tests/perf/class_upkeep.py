"""What the class controllers cost: a control plane at rest with 40,000 devices and 50 classes, and its passes."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fractile.classes.controllers import ClassControllers
from fractile.classes.count import count
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.properties import shared
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.watch.event_handlers import CardHandlers
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import (
    ClassMeta,
    DeviceSelector,
    MatchExpression,
    ResourceClass,
    ResourceClassSpec,
    resource_name,
)
from tests.main.process import control_plane
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import CARDS, NAMES, NODES, node_object, pod_objects
from tests.perf.memory import ListServer, memory_of
from tests.perf.usage import processor_time

CLASSES = 50
PODS = 20_000
WINDOW = 60.0  # seconds
CPU = 1.0  # percent of a core
RSS = 300.0  # MB

_MODELS = (("Tesla V100-SXM2-16GB", 16_276), ("Tesla T4", 15_109), ("NVIDIA A100-SXM4-40GB", 40_536))
_SAID = {
    "architecture": "Volta",
    "brand": "Tesla",
    "clock": "1530MHz",
    "computeCapability": "7.0",
    "cores": "100",
    "cudaVersion": "12.2",
    "driver": "535.104.05",
    "driverBranch": "535",
    "ecc": "on",
    "interconnectGroup": "0",
    "memoryBusWidth": "4096",
    "memoryClock": "877MHz",
    "mig": "off",
    "multiprocessors": "80",
    "nvlinkGeneration": "2",
    "pcieGeneration": "3",
    "pcieLanes": "16",
    "powerLimit": "300W",
}


def card_of(node: int, slot: int) -> Card:
    model, memory = _MODELS[node % len(_MODELS)]
    return Card(
        uuid=CardUUID(f"GPU-{node:08x}-{slot:04x}-4000-8000-000000000000"),
        index=slot,
        model=model,
        memory=MiB(memory),
        pci_bus_id=f"00000000:{slot:02X}:00.0",
        properties=shared(_SAID | {"numaNode": str(slot // 4)}),
        node=NAMES[node],
    )


def card_objects() -> Iterator[bytes]:
    """All ExtendedResources as the API server lists them, with properties and a status."""
    status = b',"status":{"phase":"Available","isolation":"Enforced","lastTransitionTime":"2026-11-21T04:31:03Z"}}'
    for n, name in enumerate(NAMES):
        for slot in range(CARDS):
            yield msgspec.json.encode(extended_resource.from_card(card_of(n, slot), name))[:-1] + status


def classes(count: int = CLASSES) -> Iterator[ResourceClass]:
    """Whole cards and parts, by model, memory and clock; each card is in half of them or so."""
    for i in range(count):
        model, _ = _MODELS[i % len(_MODELS)]
        by_model = MatchExpression("model", "In", [model])
        by_memory = MatchExpression("memory", "Gt", [f"{i % 20}GiB"])
        by_clock = MatchExpression("clock", "Ge", ["1.5GHz"])
        selector = DeviceSelector(match_expressions=[by_model if i % 2 else by_memory, by_clock])
        size = f"{1 + i % 16}Gi" if i % 3 else ""
        yield ResourceClass(
            metadata=ClassMeta(name=f"class-{i:05}", uid=f"uid-{i}", generation=1),
            spec=ResourceClassSpec(selector=selector, memory=size, cores=10 if i % 5 == 1 and size else 0),
        )


async def measure() -> list[Row]:
    rows = _passes()
    with tempfile.TemporaryDirectory(prefix="fractile-bench-") as folder:
        return rows + await _at_rest(Path(folder))


async def _at_rest(folder: Path) -> list[Row]:
    """All classes are named by all nodes, so that none has anything to be written; their statuses are written once."""
    world = _World()
    capacities = [world.capacity(name) for name in NAMES]
    server = ListServer(
        {
            "extendedresources": card_objects,
            "pods": lambda: pod_objects(PODS),
            "nodes": lambda: map(_node, NAMES, capacities),
            "resourceclasses": lambda: map(msgspec.json.encode, classes()),
        }
    )
    async with server.running(folder) as kubeconfig, control_plane(kubeconfig, folder) as running:
        await running.ready(seconds=180)
        await asyncio.sleep(20)  # the statuses of the classes
        written = len(server.writes)
        before, began = processor_time(running.pid), time.monotonic()
        await asyncio.sleep(WINDOW)
        seconds = time.monotonic() - began
        percent = 100 * (processor_time(running.pid) - before) / seconds
        resident, peak = memory_of(running.pid)
        assert not [w for w in server.writes if "/nodes/" in w], server.writes[:3]
        note = f"{NODES * CARDS:,} devices, {CLASSES} classes, {PODS:,} pods, {seconds:.0f} s"
        return [
            Row("control plane with classes at rest: processor time", percent, "% of a core", CPU, note),
            Row("control plane with classes at rest: RSS", resident, "MB", RSS, note),
            Row("control plane with classes: peak RSS", peak, "MB"),
            Row("control plane with classes at rest: writes", len(server.writes) - written, "", 0, note),
        ]


def _node(name: NodeName, capacity: dict[str, int]) -> bytes:
    return node_object(name, msgspec.json.encode({resource_name(c): str(units) for c, units in capacity.items()}))


class _World:
    """The controllers, fed by hand, without a server."""

    def __init__(self, count: int = CLASSES) -> None:
        self.ledger = Ledger(time.monotonic)
        self.control = ClassControllers(self.ledger, KubeClient(Credentials("http://127.0.0.1:1")))
        self._handlers = CardHandlers(self.ledger, freed=lambda node: None, shown=self.control.card_shown)
        decoder = msgspec.json.Decoder(ExtendedResource)
        self.objects = [decoder.decode(raw) for raw in card_objects()]
        began = time.perf_counter()
        for resource in self.objects:
            self._handlers.changed(resource)
        self.filled = time.perf_counter() - began
        for each in classes(count):
            self.control.class_changed(each)
        self.control.look()

    def capacity(self, node: NodeName) -> dict[str, int]:
        return self.control.capacity.wanted(node)

    def statuses(self) -> int:
        """Look at every class that may have changed, as a round does; how many."""
        names = list(self.control.touched())
        for name in names:
            self.control.plan_status(name)
        return len(names)

    def everything(self) -> None:
        """What is free is read, and every class counted."""
        self.control.table.refresh()
        for cls in self.control.book.classes():
            count(cls, self.control.table)

    def fall_sick(self, number: int) -> None:
        resource = self.objects[number]
        sick = msgspec.structs.replace(resource.status, phase="Unhealthy")
        self._handlers.changed(msgspec.structs.replace(resource, status=sick))
        self.statuses()

    def all_capacities(self) -> None:
        for name in NAMES:
            self.capacity(name)


def _passes() -> list[Row]:
    world = _World()
    first = _timed(world.statuses)
    again = [_timed(world.everything) for _ in range(20)]
    one = [_timed(lambda i=i: world.fall_sick(700 * i)) for i in range(50)]
    capacities = _timed(world.all_capacities)
    many = _World(10_000)
    bad = _timed(many.all_capacities)
    note = f"{NODES * CARDS:,} devices, {CLASSES} classes"
    return [
        Row("classes: all devices shown for the first time, ledger included", 1000 * world.filled, "ms", None, note),
        Row("classes: first pass over all classes", 1000 * first, "ms", None, note),
        Row("classes: everything counted again", 1000 * min(again), "ms", None, note),
        Row("classes: one card falls sick", 1000 * min(one), "ms", None, "only the classes that it may be in"),
        Row("classes: capacity of all nodes", 1000 * capacities, "ms", None, note),
        Row(
            "classes: the same with 10,000 classes",
            1000 * bad,
            "ms",
            None,
            f"{NODES:,} nodes, a make-up at a time between other work",
        ),
    ]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
