"""Random pods for a node of the tests, and the control plane that places them, played.

``Planner`` places pods as the ledger would (peak use per card, never more than the card has) and moves a placement when
kubelet chose otherwise and the cards have room.
"""

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from fractile.kube import paths
from fractile.model.card import Card
from fractile.model.placement import Charge, Placement, charges
from fractile.model.request import Role
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CORE, COUNT, GIB, Asks, World, adapter, card, of_class, share

CARDS = [card(0, 8 * GIB), card(1, 8 * GIB), card(2, 12 * GIB)]
OTHERS = (adapter(0), adapter(1, shares=2))


@dataclass
class Planner:
    """Places pods at random where they fit, and confirms what kubelet chose where that fits."""

    w: World
    rng: random.Random
    pods: list[Pod] = field(default_factory=list[Pod])

    def fits(self, given: Placement, *, besides: Pod | None = None) -> bool:
        others = [self.w.placement(p) for p in self.pods if besides is None or p.metadata.uid != besides.metadata.uid]
        held = [c for placement in (*others, given) for c in charges(placement)]
        devices = [*self.w.cards, *(o.device for o in self.w.others)]
        return all(self.bears(card, [c for c in held if c.card == card.uuid]) for card in devices)

    def bears(self, card: Card, held: list[Charge]) -> bool:
        if card.type != "gpu":
            return sum(c.shares for c in held) <= card.shares
        memory, cores = sum(c.memory for c in held), sum(c.cores for c in held)
        return memory <= card.memory and cores + any(c.coreless for c in held) <= 100

    def bind(self, asks: tuple[Asks, ...], *, name: str = "") -> Pod | None:
        pod = self.w.bind(*asks, on=None, name=name)
        for _ in range(12):
            where = {a.name: self._cards(a) for a in asks if a.amount}
            if any(a.role is Role.INIT for a in asks):  # kubelet hands an init container's devices on
                first = next(iter(where.values()))
                where = dict.fromkeys(where, first)
            if self.fits(self.w.place(pod, where)):
                pod = self.w.pod(pod)
                self.pods.append(pod)
                return pod
        self.w.delete(pod)
        return None

    def delete(self, pod: Pod) -> None:
        self.pods.remove(pod)
        self.w.delete(pod)

    def done(self, pod: Pod) -> None:
        """The pod has ended: its placement counts no more."""
        self.pods.remove(pod)
        path = paths.pod(pod.metadata.namespace, pod.metadata.name)
        self.w.server.merge(f"{path}/status", {"status": {"phase": "Succeeded"}})
        assert self.w.pod(pod).finished

    async def confirm(self) -> None:
        """Forever: what reconcile/repair.py does."""
        while True:
            for pod in list(self.pods):
                text = self.w.annotations(pod).get(placement.CHOICE_ANNOTATION)
                if text is None:
                    continue
                choice = placement.decode(text)
                if self.fits(choice, besides=pod):
                    self.w.write_placement(pod, choice)
                self.w.annotate(pod, {placement.CHOICE_ANNOTATION: None})
            await asyncio.sleep(0.02)

    def _cards(self, asks: Asks) -> list[Card]:
        others = self.rng.sample([o.device for o in self.w.others], dict(asks.more).get(DEVICE_SLOT, 0))
        return self.rng.sample(self.w.cards, asks.amount if asks.resource in (COUNT, GPU_SLOT) else 1) + others


def pods_of_memory() -> st.SearchStrategy[tuple[Asks, ...]]:
    size = st.integers(1, 4)
    role = st.sampled_from([Role.INIT, Role.SIDECAR])
    before = st.lists(st.tuples(size, role), max_size=2)
    apps = st.lists(size, min_size=1, max_size=2)

    def build(before: list[tuple[int, Role]], apps: list[int]) -> tuple[Asks, ...]:
        first = [Asks(f"i{n}", amount, role=role) for n, (amount, role) in enumerate(before)]
        return (*first, *(Asks(f"a{n}", amount) for n, amount in enumerate(apps)))

    return st.builds(build, before, apps)


def pods_of_shares() -> st.SearchStrategy[tuple[Asks, ...]]:
    """Two resources per container, with an init container before one app that takes over its ids, or without."""
    amounts = st.tuples(st.sampled_from([10, 20, 40]), st.integers(4, 12))

    def build(warm: tuple[int, int] | None, main: tuple[int, int]) -> tuple[Asks, ...]:
        first = () if warm is None else (share("warm", *warm, role=Role.INIT),)
        return (*first, share("main", *main))

    return st.builds(build, st.one_of(st.none(), amounts), amounts)


def pods_of_classes() -> st.SearchStrategy[tuple[Asks, ...]]:
    """Slots: parts of cards or whole ones by class, alone or with other devices beside, after an init container of the
    same class or without."""

    def build(cls: str, units: int, devices: int, *, warm: bool) -> tuple[Asks, ...]:
        first = (of_class("warm", cls, units, devices=devices, role=Role.INIT),) if warm else ()
        return (*first, of_class("main", cls, units, devices=devices))

    classes = st.sampled_from(["small", "small", "timed", "whole"])
    return st.builds(build, classes, st.integers(1, 2), st.integers(0, 1), warm=st.booleans())


POD = st.one_of(
    pods_of_classes(),
    pods_of_memory(),
    pods_of_shares(),
    st.just((Asks("main", 4),)),
    st.just((Asks("main", 1, COUNT),)),
    st.just((Asks("main", 100, CORE),)),
)
