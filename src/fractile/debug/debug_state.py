"""The state of the control plane as /debug/state shows it: a snapshot made on request. Changes nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from fractile.debug.process_state import AnyReflector, feed_state
from fractile.ledger.ledger import Entry, Ledger
from fractile.model.card import DeviceKind
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.units import PodUID
from fractile.policy.cards.state import CardState as Free
from fractile.reconcile.assumed_pods import EXPIRY
from fractile.reconcile.nominations import Nominations
from fractile.watch.waiting_pods import WaitingPod, WaitingPods
from fractile.wire.fractile import placement as placement_wire
from fractile.wire.output import debug_state as wire


class LeadParts(msgspec.Struct, frozen=True):
    """The objects of a term of leadership. ``feeds`` are its watches, ``expected`` counts hints."""

    ledger: Ledger
    waiting: WaitingPods
    nominations: Nominations
    feeds: Sequence[AnyReflector]
    expected: Callable[[], int]
    quota_problem: Callable[[], str]
    options: dict[str, str]


def believed(
    known: LeadParts, *, lead: wire.LeadState, process: wire.ProcessState, time: float, now: float
) -> wire.ControlPlaneState:
    """The state. ``time``: seconds since 1970; ``now``: on the ledger's clock."""
    return wire.ControlPlaneState(
        time=time,
        process=process,
        lead=lead,
        feeds=tuple(map(feed_state, known.feeds)),
        ledger=ledger_state(known.ledger, now=now),
        waiting=tuple(map(_waiting, known.waiting.oldest_first())),
        nominations=tuple(_nominations(known.waiting)),
        victims_for=known.nominations.remembered,
        expected=known.expected(),
        quota_namespaces=tuple(sorted(known.ledger.usage.quota.namespaces)),
        quota_problem=known.quota_problem(),
        options=known.options,
    )


def ledger_state(ledger: Ledger, *, now: float) -> wire.LedgerState:
    return wire.LedgerState(
        generation=ledger.generation,
        nodes=tuple(_nodes(ledger)),
        holds=tuple(_hold(uid, entry, now) for uid, entry in sorted(ledger.entries(), key=lambda e: e[0])),
        conflicts=tuple(
            wire.ConflictState(uid=uid, placement=_written(placed))
            for uid, placed in sorted(ledger.conflicts().items())
        ),
        inconsistent=tuple(ledger.audit()),
    )


def _nodes(ledger: Ledger) -> Iterator[wire.NodeStateReport]:
    names = {name for kind in DeviceKind for name in ledger.arrays_of(kind).names if name is not None}
    for name in sorted(names):
        state = ledger.node(name)
        if state is not None:
            yield wire.NodeStateReport(node=name, cards=tuple(_cards(state.cards)), others=tuple(_cards(state.others)))


def _cards(cards: Iterable[Free]) -> Iterator[wire.CardStateReport]:
    for card in cards:
        yield wire.CardStateReport(
            uuid=card.uuid,
            index=card.index,
            model=card.model,
            memory=card.memory,
            free_memory=card.free_memory,
            free_cores=card.free_cores,
            free_slots=card.free_slots,
            slices=card.slices,
            idle=card.idle,
        )


def _hold(uid: PodUID, entry: Entry, now: float) -> wire.HoldState:
    age = round(now - entry.since, 3)
    return wire.HoldState(
        uid=uid,
        namespace=entry.owner.namespace,
        state=entry.state.value,
        age=age,
        doubted=entry.state.value == "assumed" and age >= EXPIRY,
        placement=_written(entry.placement),
    )


def _waiting(pod: WaitingPod) -> wire.WaitingState:
    return wire.WaitingState(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        created=pod.created,
        priority=pod.priority,
        nominated=pod.nominated,
        gated=pod.gated,
        refusal=pod.request.message if isinstance(pod.request, Refusal) else "",
    )


def _nominations(waiting: WaitingPods) -> Iterator[wire.NominationState]:
    for node in sorted(waiting.nominating()):
        yield wire.NominationState(node=node, pods=tuple(sorted(p.uid for p in waiting.nominated_to(node))))


def _written(placement: Placement) -> msgspec.Raw:
    return msgspec.Raw(placement_wire.encode(placement).encode())
