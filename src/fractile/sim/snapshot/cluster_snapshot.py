"""A cluster and its pods at one moment, from CSV, YAML or the API server.

Amounts are integers: CPU in thousandths, memory in MiB, compute time in thousandths of a card. A card's memory is 0 if
unknown; its parts are then counted by compute time alone.
"""

import msgspec

from fractile.dialects.units import FamilyUnits
from fractile.model.card import Card
from fractile.model.request import Selector
from fractile.policy.nodes.where import ANYWHERE, Labels, Where
from fractile.wire.kubernetes.manifests import Taint

OF_A_DAEMON_SET = "belongs to a DaemonSet"  # for Task.fixed: these two kinds go with their node
STATIC = "is a static pod"

POD_SLOTS = 110  # kubelet's default, for nodes that do not report their number of pods
NO_LABELS: Labels = Labels()


class Taken(msgspec.Struct, frozen=True):
    """What a pod holds of one card."""

    device: int  # index of the card on its node
    memory: int
    compute: int
    exclusive: bool = False


class Machine(msgspec.Struct, frozen=True):
    """One node: its capacity for pods, and its cards. ``withheld``: held by processes of deleted pods."""

    name: str
    cpu: int
    memory: int
    cards: tuple[Card, ...] = ()
    slots: int = POD_SLOTS
    labels: Labels = NO_LABELS
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    withheld: tuple[Taken, ...] = ()

    @property
    def model(self) -> str:
        """The cards' model, or all models if there are several."""
        return "+".join(sorted({c.model for c in self.cards}))

    def untolerated_by(self, where: Where) -> Taint | None:
        """The taint that keeps a pod away."""
        if not (self.taints or self.cordoned):
            return None
        return where.untolerated(self.taints, cordoned=self.cordoned)


class DemandPart(msgspec.Struct, frozen=True):
    """What a pod requests of each of ``count`` cards: ``memory`` MiB plus ``share`` thousandths of its memory, and
    ``compute`` thousandths of its time; or the whole card (``exclusive``). Every selector must admit the card;
    ``models``: exact names of accepted models, empty for any."""

    count: int
    memory: int = 0
    share: int = 0
    compute: int = 0
    exclusive: bool = False
    selectors: tuple[Selector, ...] = ()
    models: tuple[str, ...] = ()

    def admits(self, card: Card) -> bool:
        """Whether it may be on that card, regardless of how much is left there."""
        if self.models and card.model not in self.models:
            return False
        return all(s.admits(card.uuid, card.model) for s in self.selectors)

    @property
    def constrained(self) -> bool:
        """Whether it restricts cards or models."""
        return bool(self.selectors or self.models)

    def memory_on(self, card: int) -> int:
        """The MiB that it takes of a card with ``card`` MiB; parts are rounded down, as in placements."""
        if self.exclusive:
            return card
        return self.memory + card * self.share // 1000


class Demand(msgspec.Struct, frozen=True):
    """What a pod requests, and on which nodes. Equal demands have equal answers."""

    cpu: int
    memory: int
    part: DemandPart | None = None
    where: Where = ANYWHERE

    @property
    def gpus(self) -> int:
        return self.part.count if self.part else 0


class Task(msgspec.Struct, frozen=True):
    """A pod. ``fixed``: why it cannot be moved; "" if it can. ``units``: in which a waiting pod asks for cards; None if
    unknown, as in a trace, and for classes."""

    namespace: str
    name: str
    demand: Demand
    labels: Labels = NO_LABELS
    priority: int = 0
    created: str = ""
    node: str = ""  # where it runs
    cards: tuple[tuple[str, int, int], ...] = ()  # for each card that it holds: UUID, MiB, thousandths
    fixed: str = ""
    units: FamilyUnits | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class SnapshotBudget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget: at most ``allowed`` of ``pods`` (keys) may be away at a time."""

    name: str
    pods: frozenset[str]
    allowed: int


class Snapshot(msgspec.Struct, frozen=True):
    """The whole snapshot. ``notes``: one sentence for each object that cannot be used in plans or may be unexpected."""

    machines: tuple[Machine, ...]
    bound: tuple[Task, ...] = ()
    pending: tuple[Task, ...] = ()
    budgets: tuple[SnapshotBudget, ...] = ()
    notes: tuple[str, ...] = ()
