"""The class controllers against a fake API server. The watches are the test's own hand: ``see`` shows what there is."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from fractile.classes.controllers import ClassControllers
from fractile.classes.nodes import NodeWithTaints
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.watch.event_handlers import CardHandlers
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import RESOURCE_PREFIX, ResourceClass
from fractile.wire.kubernetes.objects import Pod
from tests.builders import Clock
from tests.classes.class_world import resource
from tests.fakes.apiserver import FakeApiServer

T = TypeVar("T")

NOW = 1_795_000_000.0  # 2026-11-18


class Controllers:
    """One replica."""

    def __init__(self, server: FakeApiServer, client: KubeClient, clock: Clock, *, template: str = "") -> None:
        self.server = server
        self.client = client
        self.clock = clock
        self.ledger = Ledger(clock)
        self.control = ClassControllers(
            self.ledger, client, template=template, clock=clock, sleep=_at_once, wall=lambda: NOW + clock.now
        )
        self.handlers = CardHandlers(self.ledger, freed=lambda node: None, shown=self.control.card_shown)
        self._seen: dict[str, dict[str, dict[str, Any]]] = {}

    # ── what the API server has ──────────────────────────────────────────────────────────────────────────────────

    def card(self, card: Card, **status: Any) -> None:
        """Store a device's object, with that status."""
        made = resource(card, **status)
        path = paths.extended_resources()
        if f"{path}/{made.metadata.name}" not in self._paths():
            self.server.create(path, made)
        body: dict[str, Any] = msgspec.to_builtins(made)
        self.server.merge(f"{path}/{made.metadata.name}", {"spec": body["spec"]})
        self.server.merge(f"{path}/{made.metadata.name}/status", {"status": {"phase": "Available", **body["status"]}})

    def make_class(self, made: ResourceClass) -> None:
        body: dict[str, Any] = msgspec.to_builtins(made)
        body["metadata"] = {"name": made.metadata.name, "generation": 1}
        self.server.create(paths.resource_classes(), body)

    def make_node(self, made: NodeWithTaints) -> None:
        self.server.create(paths.nodes(), made)

    def status(self, name: str) -> dict[str, Any]:
        return self.server.get(paths.resource_class(name)).get("status", {})

    def phase(self, card: Card) -> tuple[str, str]:
        status = self.server.get(paths.extended_resource(card.uuid.lower())).get("status", {})
        return status.get("phase", ""), status.get("reason", "")

    def units(self, node: str) -> dict[str, str]:
        """The classes that the node says it has; capacity and allocatable say the same."""
        status = self.server.get(paths.node(node))["status"]
        found = [
            {k.removeprefix(RESOURCE_PREFIX): v for k, v in status[of].items() if k.startswith(RESOURCE_PREFIX)}
            for of in ("capacity", "allocatable")
        ]
        assert found[0] == found[1]
        return found[0]

    def classes(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._paths() if path.startswith(f"{paths.resource_classes()}/")]

    def _paths(self) -> list[str]:
        return [f"{group}/{plural}/{name}" for group, plural, _, name in sorted(self.server.store.objects)]

    # ── what the watches show ────────────────────────────────────────────────────────────────────────────────────

    def see(self) -> None:
        """The watches show everything that changed since the last time."""
        control = self.control
        for plural, gone in self._vanished():
            match plural:
                case "nodes":
                    control.node_gone(gone)
                case "extendedresources":
                    self.handlers.gone(gone.name)
                    control.card_gone(gone)
                case "resourceclasses":
                    control.class_gone(gone)
                case _:
                    control.pod_gone(gone)
        for o in self._news(paths.nodes()):
            control.node_changed(_decoded(o, NodeWithTaints))
        for o in self._news(paths.extended_resources()):
            self.handlers.changed(_decoded(o, ExtendedResource))
        for o in self._news(paths.resource_classes()):
            control.class_changed(_decoded(o, ResourceClass))
        for o in self._news(paths.pods()):
            control.pod_changed(_decoded(o, Pod))

    async def settle(self) -> int:
        """See and act until nothing is left to do; how many writes that took."""
        before = len(self.server.writes())
        for _ in range(20):
            written = len(self.server.writes())
            self.see()
            await self.act()
            if len(self.server.writes()) == written:
                return written - before
        raise AssertionError(f"it never comes to rest: {self.server.writes()[-5:]}")

    async def act(self) -> None:
        """Look at everything once, as it has been seen."""
        control = self.control
        control.look()
        for rounds in (control.lost, control.capacities, control.statuses, control.defaults):
            await rounds.once()

    def _news(self, path: str) -> list[dict[str, Any]]:
        plural = path.rpartition("/")[2]
        seen = self._seen.setdefault(plural, {})
        found: list[dict[str, Any]] = []
        for (_, of, _, _), o in sorted(self.server.store.objects.items()):
            if of == plural and seen.get(o["metadata"]["uid"]) != o:
                seen[o["metadata"]["uid"]] = o
                found.append(o)
        return found

    def _vanished(self) -> list[tuple[str, Gone]]:
        there = {o["metadata"]["uid"] for o in self.server.store.objects.values()}
        found: list[tuple[str, Gone]] = []
        for plural, seen in self._seen.items():
            for uid in [uid for uid in seen if uid not in there]:
                meta = seen.pop(uid)["metadata"]
                found.append((plural, Gone(meta.get("namespace", ""), meta["name"], uid)))
        return found


@asynccontextmanager
async def controllers(count: int = 1, *, template: str = "") -> AsyncGenerator[list[Controllers], None]:
    """So many replicas at one server, on one clock."""
    async with FakeApiServer() as server, KubeClient(server.credentials(), sleep=_at_once) as client:
        clock = Clock()
        yield [Controllers(server, client, clock, template=template) for _ in range(count)]


def _decoded(o: dict[str, Any], type: type[T]) -> T:
    """As a watch decodes it: words that are equal are not the same objects."""
    return msgspec.json.decode(msgspec.json.encode(o), type=type)


async def _at_once(_: float) -> None:
    await asyncio.sleep(0)
