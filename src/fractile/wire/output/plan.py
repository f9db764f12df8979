"""What ``fractile plan -o json`` prints. Fields are only ever added while the version stays.

CPU in thousandths, memory in MiB, GPUs as numbers (a part of one as a fraction). Lists are in the order in which things
were tried, so equal inputs give equal documents.
"""

import msgspec

SCHEMA = "fractile.dev/plan/v1"


class PlannedPlacement(msgspec.Struct, frozen=True):
    """A pod that waits, and where it would go; ``cards``: places of its cards on the node, from 0."""

    pod: str
    node: str
    cards: tuple[int, ...]


class PodResources(msgspec.Struct, frozen=True):
    cpu_milli: int
    memory_mib: int
    gpus: int
    each: str  # of a GPU, in words; "" without one


class Reason(msgspec.Struct, frozen=True):
    """So many nodes lack all of these and nothing else: taint, label, no_gpu, model, size, gpu, cpu, memory, places."""

    lacks: tuple[str, ...]
    nodes: int


class PodChange(msgspec.Struct, frozen=True):
    """One change, alone, after which the pod would fit: it was tried. ``node``: where; ``wanted`` and ``to``: amounts,
    in the unit of the name; null where there is none. ``amounts``: what to write into the container that asks, by
    resource, 0 for one that goes; empty where the change is no amount, or one of several containers."""

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
    """What fits as things are. Acceptance is in percent of the pods, and of the GPUs that they ask for."""

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
    """How many nodes of one shape reach the target in every order of the pods that was tried. ``nodes`` is null when no
    number does; ``acceptance`` is then the best that can be reached, else what so many nodes reach; ``before``: what
    none reaches."""

    shape: NodeShape
    nodes: int | None
    gpus: int | None
    acceptance: float
    before: float
    why_not: str = ""


class Emptied(msgspec.Struct, frozen=True):
    """A node whose pods would all fit on others that are in use."""

    node: str
    gpus: int
    pods: int


class Consolidation(msgspec.Struct, frozen=True):
    """``empty``: nodes with GPUs that nothing runs on already; ``tried``: nodes that were looked at."""

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
    """Moves that may be made side by side: every target is free before any source is released, and every disruption
    budget bears them all at once. ``admits``: pods that fit when the stage is done."""

    number: int
    moves: tuple[Move, ...]
    admits: tuple[PlannedPlacement, ...]


class Defragmentation(msgspec.Struct, frozen=True):
    """``goal``: waiting, the pods that wait; or mix, one more of each kind of pod that runs. GPUs in use before and
    after, of those that are there."""

    goal: str
    moves: int
    pods: int
    gpus: float
    allocation_before: float
    allocation_after: float
    stages: tuple[PlanStage, ...]
    still_waiting: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """All of it. ``nodes``, ``gpus``, ``running``: of the cluster. Null: what was not asked for."""

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
    """Indented, schema first."""
    body = {"schema": plan.schema, **msgspec.to_builtins(plan)}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def decode(text: str | bytes) -> Plan:
    """For those who read it back. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=Plan)
