"""The class controllers: they combine devices, classes, nodes and pods, and write the results to the API.

    devices ─┐              ┌──> statuses   of ResourceClasses: devices, units, what is wrong
    classes ─┼──> table,  ──┼──> capacity   of nodes: units of each class
    nodes   ─┤    book      ├──> lost       devices whose node is away, and their return
    pods    ─┘              └──> defaults   a class per model, where a template says so

Each of the four compares wanted with seen for one key at a time (``classes.rounds``), so a change by another client is
seen in a watch and corrected, and two replicas write the same or nothing. At rest nothing is computed: only the
ledger's generation and the nodes that are away are checked, every two seconds.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from fractile.classes import defaults
from fractile.classes import lost as classes_lost
from fractile.classes import status as classes_status
from fractile.classes.book import DEFAULT_ANNOTATION, ClassBook, digest
from fractile.classes.capacity import ClassCapacity, difference
from fractile.classes.count import CountedDevices, Remark, count, remark
from fractile.classes.defaults import WantedClass
from fractile.classes.held import HeldUnits
from fractile.classes.nodes import Nodes, NodeWithTaints
from fractile.classes.rounds import Rounds, Write
from fractile.classes.table import Table
from fractile.kube import paths
from fractile.kube.backoff import Backoff
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock, Pacer, Sleep
from fractile.kube.reflector import Gone
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.units import NodeName, PodUID
from fractile.reconcile.faults import Faults
from fractile.wire.fractile.extended_resource import LOST, NODE_LOST, ExtendedResource
from fractile.wire.fractile.resource_class import API_VERSION, KIND, Invalid, ResourceClass, ResourceClassStatus
from fractile.wire.kubernetes.objects import Pod

_QPS, _BURST = 25, 50  # writes; a quarter of what the client may send, so that binds have the rest
_LOOK = 2.0  # seconds between two checks of the ledger's generation and of the nodes that are away
_SETTLE = 2.0  # seconds for which changes of a class are gathered: what is free changes with every pod
_LINGER = 30.0  # seconds before a default class goes with its last device: a replaced node brings the next one
_ALL = ""  # the one key of the default classes

Plan = Callable[[str], Sequence[Write]]

_NOTHING = CountedDevices()


class ClassControllers:
    """Fed by the watches, after the ledger; ``run`` writes. ``template`` names default classes, "" for none.

    ``classes`` False: classes are not served here, so only lost devices are handled.
    """

    def __init__(
        self,
        ledger: Ledger,
        client: KubeClient,
        *,
        template: str = "",
        classes: bool = True,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._ledger = ledger
        self._client = client
        self._template = template
        self._serves = classes
        self._clock = clock
        self._sleep = sleep
        self._wall = wall
        self.table = Table(ledger)
        self.book = ClassBook()
        self.nodes = Nodes(clock)
        self.held = HeldUnits()
        self.capacity = ClassCapacity(self.table, self.book, self.held.on)
        self._generation = -1
        self._stale: dict[str, float] = {}  # default classes without a device, since when
        pacer = Pacer(_QPS, _BURST, clock=clock, sleep=sleep)
        rng = rng or random.Random()

        def rounds(
            plan: Plan, everything: Callable[[], Iterable[str]] = lambda: (), gather: float = 1.0
        ) -> Rounds[str]:
            return Rounds(
                plan,
                everything=everything,
                pacer=pacer,
                backoff=Backoff(base=1.0, cap=60.0, rng=rng),
                gather=gather,
                sleep=sleep,
                clock=clock,
                faults=faults,
            )

        self.statuses = rounds(self.plan_status, self.touched, _SETTLE)
        self.capacities = rounds(self.plan_capacity, self.table.nodes)
        self.lost = rounds(self.plan_lost)
        self.defaults = rounds(self.plan_defaults)

    # ── what the watches show ────────────────────────────────────────────────────────────────────────────────────

    def card_shown(self, resource: ExtendedResource, card: Card) -> None:
        """Handle a card that appeared or changed, after the ledger has."""
        status = resource.status
        phase = NODE_LOST if status.phase == LOST and status.reason == NODE_LOST else status.phase
        if self.table.put(resource.metadata.name, card, phase):
            self._moved(card.node)

    def card_gone(self, gone: Gone) -> None:
        node = self.table.remove(gone.name)
        if node is not None:
            self._moved(node)

    def class_changed(self, resource: ResourceClass) -> None:
        if self.book.put(resource):
            self.capacity.forget(resource.metadata.name)
            self.capacities.add_everything()
        self.statuses.add(resource.metadata.name)
        self.defaults.add(_ALL)

    def class_gone(self, gone: Gone) -> None:
        if self.book.remove(gone.name):
            self.capacity.forget(gone.name)
            self.capacities.add_everything()
            self.defaults.add(_ALL)

    def node_changed(self, node: NodeWithTaints) -> None:
        if self.nodes.changed(node):
            self.capacities.add(node.metadata.name)
            self.lost.add(node.metadata.name)

    def node_gone(self, gone: Gone) -> None:
        self.nodes.gone(NodeName(gone.name))
        self.lost.add(gone.name)

    def pod_changed(self, pod: Pod) -> None:
        self._holds(self.held.changed(pod))

    def pod_gone(self, gone: Gone) -> None:
        self._holds(self.held.gone(PodUID(gone.uid)))

    def _moved(self, node: NodeName) -> None:
        """Handle a node whose devices, or their phases, changed."""
        self.capacities.add(node)
        self.lost.add(node)
        self.statuses.add_everything()
        self.defaults.add(_ALL)

    def touched(self) -> Iterator[str]:
        """The classes that changed devices may belong to. An empty class is included: its message lists the others."""
        kinds = [c for kind in self.table.take_changed() if (c := self.table.kinds[kind]) is not None]
        types = {c.type for c in kinds}
        for cls in self.book.classes():
            empty = cls.device_type in types and not self.book.entries[cls.name].status.devices.total
            if empty or any(self.table.is_of(cls, c) for c in kinds):
                yield cls.name

    def _holds(self, node: NodeName | None) -> None:
        if node is not None:
            self.capacities.add(node)

    # ── the loops ────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, synced: Sequence[asyncio.Event]) -> None:
        """Work until cancelled, once all watches have shown what exists."""
        for event in synced:
            await event.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.lost.run())
            tasks.create_task(self._watch())
            if self._serves:
                tasks.create_task(self.statuses.run())
                tasks.create_task(self.capacities.run())
            if self._serves and self._template:
                tasks.create_task(self.defaults.run())

    async def _watch(self) -> None:
        while True:
            self.look()
            await self._sleep(_LOOK)

    def look(self) -> None:
        """Check what no watch shows: what is free, and how long nodes have been away."""
        if self._generation != self._ledger.generation:
            self._generation = self._ledger.generation
            if self.table.refresh():
                self.statuses.add_everything()
        self.lost.add(*self.nodes.away())
        if self._stale:
            self.defaults.add(_ALL)

    # ── wanted against seen ──────────────────────────────────────────────────────────────────────────────────────

    def plan_status(self, name: str) -> Sequence[Write]:
        entry = self.book.find(name)
        if entry is None:
            return ()
        if isinstance(entry.meaning, Invalid):
            figures, said = _NOTHING, Remark(entry.meaning.reason, entry.meaning.message)
        else:
            figures = count(entry.meaning, self.table)
            unsaid = bool(self.capacity.first_unsaid) and name >= self.capacity.first_unsaid
            said = remark(entry.meaning, self.table, figures, unsaid=unsaid)
        status = classes_status.wanted(entry, figures, said, stamp=self._stamp())
        return () if status is None else (self._tell(name, entry.uid, status),)

    def plan_capacity(self, name: str) -> Sequence[Write]:
        node = NodeName(name)
        seen = self.nodes.find(node)
        change = None if seen is None else difference(self.capacity.wanted(node), seen)
        if change is None:
            return ()
        path = f"{paths.node(node)}/status"
        what = f"capacity of node {name}: {len(change.capacity)} classes"
        return (Write(what, lambda: self._client.merge_patch(path, change.body())),)

    def plan_lost(self, name: str) -> Sequence[Write]:
        node = NodeName(name)
        devices = self.table.on_node(node)
        if not devices:
            self.nodes.forget_absent(node)
            return ()
        away = self.nodes.away_for(node)
        known = self.nodes.find(node)
        stamp = (known.stamp if known else "") or self._stamp()
        grace = classes_lost.GRACE if known else classes_lost.GONE_GRACE
        found: list[Write] = []
        for device in devices:
            lost = classes_lost.is_lost(device.phase, away=away, grace=grace)
            if lost is not None:
                found.append(self._lose(device.name, node, stamp) if lost else self._find(device.name, node))
        return found

    def plan_defaults(self, _key: str) -> Sequence[Write]:
        population = self.table.population()
        kinds = [c for i, c in enumerate(self.table.kinds) if c is not None and population[i]]
        wishes = defaults.wanted(self._template, kinds)
        return (
            *(self._make(wish) for wish in defaults.missing(wishes, self.book.entries)),
            *(self._change(wish) for wish in defaults.outdated(wishes, self.book.entries)),
            *(self._unmake(name) for name in self._long_stale(defaults.stale(wishes, self.book.entries))),
        )

    # ── writes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, name: str, uid: str, status: ResourceClassStatus) -> Write:
        what = f"status of class {name}: {status.devices.total} devices {status.reason}".rstrip()
        return Write(what, lambda: classes_status.write(self._client, name, uid, status))

    def _lose(self, name: str, node: NodeName, stamp: str) -> Write:
        return Write(
            f"{name} lost with {node}", lambda: classes_lost.say_lost(self._client, name, node=node, stamp=stamp)
        )

    def _find(self, name: str, node: NodeName) -> Write:
        stamp = self._stamp()
        return Write(f"{name} back with {node}", lambda: classes_lost.say_back(self._client, name, stamp=stamp))

    def _make(self, wish: WantedClass) -> Write:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": wish.name, "annotations": {DEFAULT_ANNOTATION: digest(wish.spec())}},
            "spec": wish.spec(),
        }
        return Write(f"default class {wish.name}", lambda: self._client.create(paths.resource_classes(), body))

    def _change(self, wish: WantedClass) -> Write:
        entry = self.book.entries[wish.name]
        body = {
            "metadata": {"resourceVersion": entry.version, "annotations": {DEFAULT_ANNOTATION: digest(wish.spec())}},
            "spec": wish.spec(),
        }
        path = paths.resource_class(wish.name)
        return Write(f"models of default class {wish.name}", lambda: self._client.merge_patch(path, body))

    def _unmake(self, name: str) -> Write:
        entry = self.book.entries[name]
        path = paths.resource_class(name)
        return Write(
            f"end of default class {name}",
            lambda: self._client.delete(path, uid=entry.uid, resource_version=entry.version),
        )

    def _long_stale(self, names: Sequence[str]) -> list[str]:
        now = self._clock()
        self._stale = {name: self._stale.get(name, now) for name in names}
        return [name for name, since in self._stale.items() if now - since >= _LINGER]

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
