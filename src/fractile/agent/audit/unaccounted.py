"""Use of cards that no ledger covers: what the driver sees, compared with what containers account for. Pure.

The container's own figures count only where they exceed the driver's; identity comes from the kernel.

    driver's process ──> its container, by mount and cgroup ──> is it in the container's region?     not-in-ledger
                           │                                    do all together exceed the quota?    over-quota
                           │                                    ... or the ledger's figure?          over-ledger
                           │                                    or does it not see the library?      no-library
                           ├─ a pod without a slice of this card                                     no-slice
                           └─ no pod at all                                                          not-a-pod
"""

from collections.abc import Container, Mapping, Sequence

import msgspec

from fractile.agent.limits.slices import Granted
from fractile.agent.node.procfs import Process
from fractile.model.units import CardUUID
from fractile.nvml.meter import CardReading, GpuProcess
from fractile.region.counters import Counters
from fractile.region.page import FLAG_OFF, CardLimits
from fractile.region.usage import Unreadable
from fractile.wire.output.node_usage import Kind

_MIB = 2**20
_MARGIN = 64 * _MIB  # granules, and changes between two polls
_UNKNOWN_CONTEXT = 512 * _MIB  # assumed for an unmeasured context; real ones take 250 to 500

Ledgers = Mapping[str, Sequence[Counters | Unreadable]]  # by token; reads before and after the query to the driver


class Finding(msgspec.Struct, frozen=True):
    """``process`` is None if all processes of ``granted`` are meant. ``granted``: the container's slices, if any.
    ``beyond``: bytes that the driver sees and the ledger does not have. ``unseen``: the path at which the process does
    not see what its container was given (``sight``); ``containers``: those of its pod with a slice of the card, if its
    own container is not known. ``holders``: the processes on the card, if ``process`` is None."""

    kind: Kind
    card: CardUUID
    process: Process | None
    granted: Granted | None
    bytes: int | None
    accounted: int | None = None
    beyond: int = 0
    unseen: str = ""
    containers: frozenset[str] = frozenset()
    holders: tuple[Process, ...] = ()

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.holders if self.process is None else (self.process,)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for the same finding in another poll."""
        if self.process is not None:
            return self.kind, self.card, str(self.process.pid), str(self.process.start_time)
        return self.kind, self.card, self.granted.token if self.granted else ""


class PresentProcess(msgspec.Struct, frozen=True):
    """A process of a container on a card."""

    reading: GpuProcess
    process: Process


class Attributed(msgspec.Struct, frozen=True):
    """The owners of the driver's processes, by token and card; and the findings outside the ledger."""

    by_slice: dict[tuple[str, CardUUID], tuple[PresentProcess, ...]]
    findings: tuple[Finding, ...]


def attribute(
    readings: Sequence[CardReading],
    processes: Mapping[int, Process],
    granted: Sequence[Granted],
    ledgers: Ledgers,
    *,
    enforced: bool = True,
) -> Attributed:
    """Attribute every process on every card. A process that the kernel no longer knows has ended and is skipped.

    ``enforced`` False: no library is in the containers of this node, so nothing accounts and only quotas are compared;
    the same applies to containers that hold a directory which the node has lost.
    """
    by_token = {g.token: g for g in granted}
    pods = {(g.limits.pod_uid, c.uuid) for g in granted for c in g.limits.cards}
    trusted = {(g.limits.pod_uid, c.uuid) for g in granted if g.limits.flags & FLAG_OFF for c in g.limits.cards}
    by_slice: dict[tuple[str, CardUUID], list[PresentProcess]] = {}
    findings: list[Finding] = []
    for reading in readings:
        for on_card in reading.processes or ():
            process = processes.get(on_card.pid)
            if process is None:
                continue
            owner = by_token.get(process.token)
            owner = owner if owner is not None and _may_be(owner, process) else None
            index = _index(owner, reading.uuid) if owner else None
            if owner is None or index is None:
                if any((place.pod_uid, reading.uuid) in trusted for place in process.places):
                    continue
                kind = _stranger(process, reading.uuid, pods)
                findings.append(Finding(kind, reading.uuid, process, owner, on_card.bytes))
                continue
            by_slice.setdefault((owner.token, reading.uuid), []).append(PresentProcess(on_card, process))
    for (token, card), present in by_slice.items():
        findings += _compare(by_token[token], card, present, ledgers.get(token, ()), enforced=enforced)
    return Attributed({key: tuple(present) for key, present in by_slice.items()}, tuple(findings))


def margin(limits: CardLimits, *, processes: int) -> int:
    """Bytes by which the driver's figure may exceed the ledger's without a finding."""
    return _MARGIN if limits.context else _MARGIN + _UNKNOWN_CONTEXT * processes


def _may_be(granted: Granted, process: Process) -> bool:
    """Whether its cgroup agrees with its mounts, which a process can change in its own mount namespace."""
    pods = {place.pod_uid for place in process.places if place.pod_uid}
    return not pods or granted.limits.pod_uid in pods


def _stranger(process: Process, card: CardUUID, pods: Container[tuple[str, CardUUID]]) -> Kind:
    if not process.places:
        return "not-a-pod"
    return "not-in-ledger" if any((p.pod_uid, card) in pods for p in process.places) else "no-slice"


def _compare(
    granted: Granted,
    card: CardUUID,
    present: Sequence[PresentProcess],
    looks: Sequence[Counters | Unreadable],
    *,
    enforced: bool,
) -> list[Finding]:
    if granted.limits.flags & FLAG_OFF:
        return []  # trusted: nothing is accounted for
    index = _index(granted, card)
    assert index is not None
    enforced = enforced and not granted.lost  # its own ledger is out of reach
    counted = [look for look in looks if isinstance(look, Counters)]
    missing = [p for p in present if not any(knows(look, p.process) for look in counted)]
    if missing and enforced:
        return [
            Finding("not-in-ledger", card, p.process, granted, p.reading.bytes, beyond=p.reading.bytes or 0)
            for p in missing
        ]
    limits = granted.limits.cards[index]
    held = sum(p.reading.bytes or 0 for p in present)
    accounted = max((look.cards[index].used for look in counted), default=0)
    allowed = margin(limits, processes=len(present))
    holders = tuple(p.process for p in present)
    if held > limits.memory + allowed:
        beyond = max(0, held - accounted) if enforced else 0
        return [Finding("over-quota", card, None, granted, held, limits.memory, beyond, holders=holders)]
    if held > accounted + allowed and enforced:
        return [Finding("over-ledger", card, None, granted, held, accounted, held - accounted, holders=holders)]
    return []


def knows(look: Counters, process: Process) -> bool:
    """Whether the process accounts for what it holds in that region."""
    return any(
        m.pid == process.inner_pid
        and m.start_time == process.start_time
        and (m.pid_namespace == process.pid_namespace or not process.pid_namespace)
        for m in look.members
    )


def _index(granted: Granted, card: CardUUID) -> int | None:
    return next((i for i, c in enumerate(granted.limits.cards) if c.uuid == card), None)
