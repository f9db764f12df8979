"""The metrics page of one node: its usage as series. Pure.

Cards come first, then use outside the ledger, then containers, then the same under gpu-manager's names: if there are
too many series, the last are left out, and the page says how many.
"""

from collections import defaultdict

import msgspec

from fractile.metrics import families as f
from fractile.metrics.exposition import MetricsPage
from fractile.wire.output.node_usage import KINDS, CardUsage, ContainerUsage, Kind, NodeUsage, SliceUsage

LIMIT = 20_000  # series; a container on a card takes 20, so 64 slices take 1,300

KILLS = ("killed", "failed")
# Outcomes of a registration with the virtual manager: accepted, or which part of the claim was rejected.
OUTCOMES = ("registered", "peer", "pod", "container", "card")

_MIB = 2**20


class AgentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own figures; times in seconds."""

    version: str
    looks: int
    late: int
    spent: float
    found: dict[Kind, int]
    evictions: int
    kills: dict[str, int] = {}  # processes that an eviction did not end, by outcome
    cpu: float
    resident: int | None  # bytes
    descriptors: int | None = None
    tasks: int | None = None  # of the event loop
    registrations: dict[str, int] = {}  # with the virtual manager, by outcome
    runtime: tuple[str, str, str, str] = (
        "unknown",
        "unknown",
        "unknown",
        "unknown",
    )  # container runtime: see ``families.RUNTIME``


def page(usage: NodeUsage, agent: AgentFigures, *, limit: int = LIMIT) -> MetricsPage:
    """All series of the node."""
    made = MetricsPage(limit=limit)
    _agent(made, usage, agent)
    for card in usage.cards:
        _card(made, usage.node, card)
    _outside(made, usage)
    for container in usage.containers:
        _container(made, usage.node, container)
    for container in usage.containers:
        _gpu_manager(made, usage.node, container)
    made.always(f.DROPPED, made.dropped, usage.node)
    return made


def _agent(made: MetricsPage, usage: NodeUsage, agent: AgentFigures) -> None:
    node = usage.node
    made.always(f.AGENT, 1, node, agent.version)
    made.always(f.RUNTIME, 1, node, *agent.runtime)
    made.always(f.AUDIT_UP, int(usage.audited), node)
    made.always(f.ARBITER_UP, int(usage.arbiter), node)
    made.always(f.LOOK_TIME, usage.time, node)
    made.always(f.LOOK_SPENT, agent.spent, node)
    made.always(f.LOOKS, agent.looks, node)
    made.always(f.LOOKS_LATE, agent.late, node)
    made.always(f.EVICTIONS, agent.evictions, node)
    for outcome in KILLS:
        made.always(f.KILLS, agent.kills.get(outcome, 0), node, outcome)
    made.always(f.CPU, agent.cpu)
    for outcome in OUTCOMES:
        made.always(f.VCUDA, agent.registrations.get(outcome, 0), node, outcome)
    for kind in KINDS:
        made.always(f.OUTSIDE_FOUND, agent.found.get(kind, 0), node, kind)
    if agent.resident is not None:
        made.always(f.RSS, agent.resident)
    if agent.descriptors is not None:
        made.always(f.FDS, agent.descriptors)
    if agent.tasks is not None:
        made.always(f.TASKS, agent.tasks, node)


def _card(made: MetricsPage, node: str, card: CardUsage) -> None:
    labels = node, card.uuid
    made.add(f.CARD, 1, *labels, str(card.index), card.model)
    made.add(f.CARD_HEALTHY, int(card.healthy), *labels)
    made.add(f.CARD_MEMORY, card.memory_bytes, *labels)
    made.add(f.CARD_USED, card.used_bytes, *labels)
    made.add(f.CARD_PROMISED, card.promised_bytes, *labels)
    made.add(f.CARD_CORES, card.promised_cores / 100, *labels)
    made.add(f.CARD_BUSY, _ratio(card.utilization_percent), *labels)
    made.add(f.CARD_PROCESSES, card.processes, *labels)
    made.add(f.CARD_CONTAINERS, card.containers, *labels)


def _outside(made: MetricsPage, usage: NodeUsage) -> None:
    """One series for each container, card and kind, however many processes; all processes of the host share one."""
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for o in usage.outside:
        sums[usage.node, o.namespace, o.pod, o.container, o.pod_uid, o.card, o.kind] += o.bytes or 0
    for labels, size in sums.items():
        made.add(f.OUTSIDE, size, *labels)


def _container(made: MetricsPage, node: str, container: ContainerUsage) -> None:
    labels = node, container.namespace, container.pod, container.container, container.pod_uid
    made.add(f.PROCESSES, container.processes, *labels)
    made.add(f.ISOLATED, int(container.enforced), *labels)
    made.add(f.READABLE, int(not container.problem), *labels)
    for card in container.cards:
        _slice(made, card, (*labels, card.uuid))


def _slice(made: MetricsPage, card: SliceUsage, labels: tuple[str, ...]) -> None:
    made.add(f.LIMIT, card.limit_bytes, *labels)
    made.add(f.USED, card.used_bytes, *labels)
    made.add(f.PEAK, card.peak_bytes, *labels)
    made.add(f.DRIVER, card.driver_bytes, *labels)
    made.add(f.REFUSALS, card.refusals, *labels)
    made.add(f.CORES, card.cores / 100, *labels)
    made.add(f.CORES_LIMIT, card.cores_limit / 100, *labels)
    made.add(f.BUSY, _ratio(card.utilization_percent), *labels)
    made.add(f.SHARE, _ratio(card.share_percent), *labels)
    made.add(f.HELD, card.held_seconds, *labels)
    made.add(f.WAITED, card.waited_seconds, *labels)
    made.add(f.THROTTLED, card.throttled_seconds, *labels)
    made.add(f.GPU_TIME, card.gpu_seconds, *labels)
    made.add(f.LAUNCHES, card.launches, *labels)


def _gpu_manager(made: MetricsPage, node: str, container: ContainerUsage) -> None:
    labels = container.pod, container.namespace, node, container.container
    total_busy = total_memory = 0.0
    for card in container.cards:
        gpu = f"gpu{card.uuid if card.index is None else card.index}"
        busy, memory = utilization(card), memory_used(card) / _MIB
        made.add(f.GM_BUSY, busy, *labels, gpu)
        made.add(f.GM_MEMORY, memory, *labels, gpu)
        total_busy, total_memory = total_busy + busy, total_memory + memory
    made.add(f.GM_BUSY, total_busy, *labels, "total")
    made.add(f.GM_MEMORY, total_memory, *labels, "total")
    made.add(f.GM_REQUEST_CORES, sum(c.cores for c in container.cards) / 100, *labels, "total")
    made.add(f.GM_REQUEST_MEMORY, sum(c.limit_bytes for c in container.cards) / _MIB, *labels, "total")


def utilization(card: SliceUsage) -> float:
    """Percent of the card: the driver's figure, as in gpu-manager, else the arbiter's."""
    if card.utilization_percent is not None:
        return float(card.utilization_percent)
    return card.share_percent or 0.0


def memory_used(card: SliceUsage) -> int:
    """Bytes: the driver's figure, as in gpu-manager, else the ledger's of the container."""
    return card.held_bytes or 0


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
