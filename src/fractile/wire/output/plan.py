"""The output of ``fractile plan -o json``. Within a version, fields are only added.

CPU is in thousandths, memory in MiB, GPUs are numbers (a part of one is a fraction). Lists are in the order of the
attempts, so equal inputs give equal documents.
"""

import msgspec

SCHEMA = "fractile.dev/plan/v1"


class PlannedPlacement(msgspec.Struct, frozen=True):
    """A waiting pod, and where it would go; ``cards``: indexes of its cards on the node, from 0."""

    pod: str
    node: str
    cards: tuple[int, ...]


class PodResources(msgspec.Struct, frozen=True):
    cpu_milli: int
    memory_mib: int
    gpus: int
    each: str  # part of each GPU, in words; "" without GPUs


class Reason(msgspec.Struct, frozen=True):
    """The number of nodes that lack exactly these: taint, label, no_gpu, model, size, gpu, cpu, memory, places."""

    lacks: tuple[str, ...]
    nodes: int


class PodChange(msgspec.Struct, frozen=True):
    """One single change after which the pod would fit, as was tried. ``node``: where; ``wanted`` and ``to``: amounts in
    the unit of the name, null if there is none. ``amounts``: what to write into the requesting container, by resource,
    0 for a resource to remove; empty if the change is not an amount, or is one of several containers."""

    change: str
    sentence: str
    node: str = ""
    wanted: int | None = None
    to: int | None = None
    amounts: dict[str, int] = {}


class WaitingGroup(msgspec.Struct, frozen=True):
    """Pods with equal requests that fit nowhere."""

    pods: tuple[str, ...]
    asks: PodResources
    reasons: tuple[Reason, ...]
    changes: tuple[PodChange, ...]


class Now(msgspec.Struct, frozen=True):
    """What fits now. Acceptance is in percent of the pods, and of the GPUs that they request."""

    pods: int
    placed: int
    gpus: float
    gpus_placed: float
    placements: tuple[PlannedPlacement, ...]


class NodeShape(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str
    card_memory_mib: int


class Growth(msgspec.Struct, frozen=True):
    """How many nodes of one shape reach the target in every order of the pods that was tried. ``nodes`` is null if no
    number does. ``acceptance``: what that many nodes reach, or the best that any number can reach; ``before``: what is
    reached without new nodes."""

    shape: NodeShape
    nodes: int | None
    gpus: int | None
    acceptance: float
    before: float
    why_not: str = ""


class Emptied(msgspec.Struct, frozen=True):
    """A node whose pods would all fit on other nodes in use."""

    node: str
    gpus: int
    pods: int


class Consolidation(msgspec.Struct, frozen=True):
    """``empty``: nodes with GPUs on which nothing runs already; ``tried``: the nodes tried."""

    empty: int
    emptied: tuple[Emptied, ...]
    gpus: int
    tried: int


class Move(msgspec.Struct, frozen=True):
    pod: str
    source: str
    target: str
    cards: tuple[int, ...]  # on the target


class PlanStage(msgspec.Struct, frozen=True):
    """Moves that may be made in parallel: every target is free before any source is released, and every disruption
    budget allows all of them at the same time. ``admits``: pods that fit when the stage is done."""

    number: int
    moves: tuple[Move, ...]
    admits: tuple[PlannedPlacement, ...]


class Defragmentation(msgspec.Struct, frozen=True):
    """``goal``: ``waiting``, the waiting pods; or ``mix``, one more of each kind of running pod. GPUs in use before and
    after, and all GPUs."""

    goal: str
    moves: int
    pods: int
    gpus: float
    allocation_before: float
    allocation_after: float
    stages: tuple[PlanStage, ...]
    still_waiting: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """The whole plan. ``nodes``, ``gpus``, ``running``: of the cluster. Parts that were not requested are null."""

    policy: str
    nodes: int
    gpus: int
    running: int
    target: float
    now: Now
    waiting: tuple[WaitingGroup, ...]
    growth: tuple[Growth, ...] | None
    consolidation: Consolidation | None
    defragmentation: Defragmentation | None
    notes: tuple[str, ...]
    schema: str = SCHEMA


def encode(plan: Plan) -> str:
    """The JSON text, indented, schema first."""
    body = {"schema": plan.schema, **msgspec.to_builtins(plan)}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def decode(text: str | bytes) -> Plan:
    """The inverse of ``encode``. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=Plan)
