"""A cluster and pods at one moment, wherever they were read: CSV, YAML or the API server.

Amounts are integers: CPU in thousandths, memory in MiB, compute time of a card in thousandths of it. A card's memory is
0 where nobody said it; then parts of it are counted by compute alone.
"""

import msgspec

from fractile.dialects.units import FamilyUnits
from fractile.model.card import Card
from fractile.model.request import Selector
from fractile.policy.nodes.where import ANYWHERE, Labels, Where
from fractile.wire.kubernetes.manifests import Taint

OF_A_DAEMON_SET = "belongs to a DaemonSet"  # of Task.fixed: these two go with their node
STATIC = "is a static pod"

POD_SLOTS = 110  # kubelet's default, where a node does not say how many pods it takes
NO_LABELS: Labels = Labels()


class Taken(msgspec.Struct, frozen=True):
    """What a pod holds of one card."""

    device: int  # place of the card on its node
    memory: int
    compute: int
    exclusive: bool = False


class Machine(msgspec.Struct, frozen=True):
    """One node: what pods can have of it, and its cards. ``withheld``: what processes of deleted pods hold of them."""

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
        """The cards' model; of several, all of them."""
        return "+".join(sorted({c.model for c in self.cards}))

    def untolerated_by(self, where: Where) -> Taint | None:
        """The taint that keeps a pod away."""
        if not (self.taints or self.cordoned):
            return None
        return where.untolerated(self.taints, cordoned=self.cordoned)


class DemandPart(msgspec.Struct, frozen=True):
    """What a pod wants of each of ``count`` cards: ``memory`` MiB and ``share`` thousandths of the card's, and
    ``compute`` thousandths of its time; or all of it, ``exclusive``. Every selector must admit the card; ``models``:
    exact names of those that will do, empty for any."""

    count: int
    memory: int = 0
    share: int = 0
    compute: int = 0
    exclusive: bool = False
    selectors: tuple[Selector, ...] = ()
    models: tuple[str, ...] = ()

    def admits(self, card: Card) -> bool:
        """Whether it may be that card, however much is left on it."""
        if self.models and card.model not in self.models:
            return False
        return all(s.admits(card.uuid, card.model) for s in self.selectors)

    @property
    def constrained(self) -> bool:
        """Whether it names cards or models."""
        return bool(self.selectors or self.models)

    def memory_on(self, card: int) -> int:
        """The MiB that it takes of a card with so many; parts are rounded down, as when they are placed."""
        if self.exclusive:
            return card
        return self.memory + card * self.share // 1000


class Demand(msgspec.Struct, frozen=True):
    """What a pod asks for, and of which nodes. Equal demands have equal answers."""

    cpu: int
    memory: int
    part: DemandPart | None = None
    where: Where = ANYWHERE

    @property
    def gpus(self) -> int:
        return self.part.count if self.part else 0


class Task(msgspec.Struct, frozen=True):
    """A pod. ``fixed``: why it cannot be moved; "" if it can. ``units``: in which one that waits asks for cards; None
    where nobody says it, as in a trace, and for classes."""

    namespace: str
    name: str
    demand: Demand
    labels: Labels = NO_LABELS
    priority: int = 0
    created: str = ""
    node: str = ""  # where it runs
    cards: tuple[tuple[str, int, int], ...] = ()  # of each card that it holds: UUID, MiB, thousandths
    fixed: str = ""
    units: FamilyUnits | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class SnapshotBudget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget: of ``pods`` (keys) at most ``allowed`` may be away at a time."""

    name: str
    pods: frozenset[str]
    allowed: int


class Snapshot(msgspec.Struct, frozen=True):
    """``notes``: what was read and could not be planned with or a person may not expect, one sentence each."""

    machines: tuple[Machine, ...]
    bound: tuple[Task, ...] = ()
    pending: tuple[Task, ...] = ()
    budgets: tuple[SnapshotBudget, ...] = ()
    notes: tuple[str, ...] = ()
