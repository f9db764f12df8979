"""Builds the picture of one poll, from which /metrics, /usage and `fractile top` are made. Pure."""

from collections.abc import Container, Sequence

from fractile.agent.audit.unaccounted import PresentProcess
from fractile.agent.limits.slices import Granted
from fractile.agent.usage.look import Look
from fractile.agent.usage.tally import UsageTally
from fractile.model.card import Card
from fractile.model.request import Role
from fractile.model.units import NodeName
from fractile.nvml.meter import CardReading
from fractile.region.counters import Counters
from fractile.region.page import FLAG_OFF, CardLimits, ContainerLimits
from fractile.wire.output.node_usage import CardUsage, ContainerUsage, DepartedUsage, NodeUsage, Outside, SliceUsage

_MIB = 2**20
_NS = 1e9


def picture(
    look: Look,
    granted: Sequence[Granted],
    *,
    node: NodeName,
    time: float,
    cards: Sequence[Card],
    tally: UsageTally,
    outside: tuple[Outside, ...],
    arbiter: bool,
    departed: Sequence[Granted] = (),
    damaged: Container[str] = (),
) -> NodeUsage:
    """``granted``: the containers that may run; an init container only while its processes live. ``departed``: those
    whose pods are gone, while their processes live. ``damaged``: UIDs of pods whose library is damaged now."""
    shown = [g for g in granted if g.role is not Role.INIT or _lives(look, g)]
    readings = {r.uuid: r for r in look.readings or ()}
    return NodeUsage(
        node=node,
        time=time,
        cards=tuple(_card(card, readings.get(card.uuid), shown) for card in cards),
        containers=tuple(_container(look, g, cards, tally, damaged) for g in shown),
        outside=outside,
        audited=look.readings is not None and all(r.processes is not None for r in look.readings),
        arbiter=arbiter,
        departed=tuple(_departed(g.limits, card) for g in departed for card in g.limits.cards),
    )


def _departed(limits: ContainerLimits, card: CardLimits) -> DepartedUsage:
    return DepartedUsage(
        card=card.uuid,
        limit_bytes=card.memory,
        cores=card.cores,
        pod_uid=limits.pod_uid,
        namespace=limits.namespace,
        pod=limits.pod,
        container=limits.container,
    )


def _lives(look: Look, granted: Granted) -> bool:
    last = look.ledgers[granted.token][-1]
    return isinstance(last, Counters) and bool(last.members)


def _card(card: Card, reading: CardReading | None, granted: Sequence[Granted]) -> CardUsage:
    here = [c for g in granted for c in g.limits.cards if c.uuid == card.uuid]
    return CardUsage(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        pci_bus_id=card.pci_bus_id,
        memory_bytes=reading.total if reading else card.memory * _MIB,
        healthy=card.healthy,
        used_bytes=reading.used if reading else None,
        utilization_percent=reading.percent if reading else None,
        processes=len(reading.processes) if reading and reading.processes is not None else None,
        promised_bytes=sum(c.memory for c in here),
        promised_cores=sum(c.cores for c in here),
        containers=len(here),
    )


def _container(
    look: Look, granted: Granted, cards: Sequence[Card], tally: UsageTally, damaged: Container[str]
) -> ContainerUsage:
    limits = granted.limits
    ledger = look.ledgers[granted.token][-1]
    indexes = {c.uuid: c.index for c in cards}
    counters = ledger if isinstance(ledger, Counters) else None
    return ContainerUsage(
        pod_uid=limits.pod_uid,
        namespace=limits.namespace,
        pod=limits.pod,
        container=limits.container,
        enforced=not limits.flags & FLAG_OFF and limits.pod_uid not in damaged,
        processes=len(counters.members) if counters else 0,
        cards=tuple(
            _slice(look, granted, card, index=indexes.get(card.uuid), counters=counters, place=place, tally=tally)
            for place, card in enumerate(limits.cards)
        ),
        problem="" if counters or isinstance(ledger, Counters) else ledger.reason,
    )


def _slice(
    look: Look,
    granted: Granted,
    card: CardLimits,
    *,
    index: int | None,
    counters: Counters | None,
    place: int,
    tally: UsageTally,
) -> SliceUsage:
    key = granted.token, card.uuid
    counted = counters.cards[place] if counters else None
    present = look.attributed.by_slice.get(key, ())
    known = any(r.uuid == card.uuid and r.processes is not None for r in look.readings or ())
    totals = tally.totals(key)
    return SliceUsage(
        uuid=card.uuid,
        index=index,
        limit_bytes=card.memory,
        cores=card.cores,
        cores_limit=card.cores_limit,
        used_bytes=counted.used if counted else None,
        peak_bytes=counted.peak if counted else None,
        refusals=counted.refusals if counted else None,
        driver_bytes=_held(present) if known else None,
        utilization_percent=min(100, sum(p.reading.percent for p in present)) if known else None,
        share_percent=totals.share_percent,
        held_seconds=_seconds(totals.held_ns),
        waited_seconds=_seconds(totals.waited_ns),
        throttled_seconds=_seconds(totals.throttled_ns),
        gpu_seconds=totals.gpu_ns / _NS,
        launches=totals.launches,
        pids=tuple(p.process.pid for p in present),
    )


def _held(present: Sequence[PresentProcess]) -> int | None:
    """None if the driver does not report it for some process."""
    if any(p.reading.bytes is None for p in present):
        return None
    return sum(p.reading.bytes or 0 for p in present)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _NS
