"""A Why as text: the verdict first, then the facts behind it."""

from collections.abc import Iterator, Sequence

import msgspec

from fractile.cli.text.inspect import one_ask
from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.policy.quota import in_cards
from fractile.reports.why.times import span
from fractile.wire.output.why import ClassState, Holding, PodEvent, QuotaState, RefusingNodes, Why

_NAMED = 5  # nodes in a line
_GROUPS = 10
_NONE = "-"


def text(why: Why) -> str:
    """The whole report, without colours; only long lists are cut."""
    return "".join(f"{printable(line)}\n" for line in _lines(why))


def _lines(why: Why) -> Iterator[str]:
    yield f"{why.namespace}/{why.pod}: {_state(why)}"
    yield f"  {why.verdict}"
    yield from _asked(why)
    yield from _scheduled(why)
    yield from (f"  {line}" for line in why.containers)
    yield from _groups(why)
    yield from (f"  would fit: {c.sentence}{_where(c.change, c.node)}" for c in why.changes)
    yield from _quota(why.quota)
    yield from map(_class, why.classes)
    yield from _held(why.holds)
    yield from _events(why.events)
    yield from (f"note: {note}" for note in why.notes)


def _state(why: Why) -> str:
    """The pod's state. Only a pending pod has been in its state since its creation."""
    return f"pending for {span(why.age)}" if why.state == "pending" else f"{why.state} (created {span(why.age)} ago)"


def _asked(why: Why) -> Iterator[str]:
    for asked in why.asks:
        yield f"  asks: {one_ask(asked)} in {asked.container} ({asked.resource})"


def _scheduled(why: Why) -> Iterator[str]:
    told = why.scheduling
    if why.state != "pending":
        return
    message = f": {told.message}" if told.message else ""
    yield f"  scheduler {told.scheduler}, {'which has tried' if told.seen else 'which has not tried yet'}{message}"
    if told.nominated:
        yield f"  nominated to {told.nominated}"


def _groups(why: Why) -> Iterator[str]:
    if why.fits:
        yield f"  {_many(len(why.fits), 'node')} would take it, as far as Fractile can tell: {_names(why.fits)}"
    for group in why.groups[:_GROUPS]:
        yield f"  {_many(len(group.nodes), 'node')} ({_names(group.nodes)}): {_reasons(group)}"
    more = len(why.groups) - _GROUPS
    if more > 0:
        yield f"  and nodes with {_many(more, 'other combination')} of reasons: -o json"


def _reasons(group: RefusingNodes) -> str:
    return "; ".join(group.reasons)


def _where(change: str, node: str) -> str:
    return f" (on {node})" if node and change not in ("one-more-node", "change-pool", "correct-quota") else ""


def _quota(quota: QuotaState) -> Iterator[str]:
    if quota.state not in ("absent", "read"):
        yield f"  quota: the ConfigMap is {quota.state}"
    for limit in quota.limits:
        what = "cards" if limit.model == "*" else limit.model
        yield f"  quota: {what}: holds {in_cards(limit.held_percent)} of {in_cards(limit.limit_percent)}"
    if quota.pools:
        yield f"  quota: only nodes of pool {' or '.join(quota.pools)}"
    for each in quota.resources:
        yield f"  ResourceQuota {each.name}: {each.resource}: {each.used} of {each.hard}"


def _class(found: ClassState) -> str:
    said = f": {found.message}" if found.message else ""
    if not found.exists:
        return f"  class {found.name} does not exist"
    return f"  class {found.name}: {found.free_units} of {found.units} units free, {found.devices} devices{said}"


def _held(holds: Sequence[Holding]) -> Iterator[str]:
    if not holds:
        return
    yield ""
    columns = (
        Column("CONTAINER"),
        Column("CARD", number=True),
        Column("MODEL"),
        Column("HOLDS MiB", number=True),
        Column("CORES", number=True),
        Column("USES MiB", number=True),
        Column("PEAK MiB", number=True),
        Column("BUSY", number=True),
        Column("REFUSED", number=True),
        Column("UUID"),
    )
    yield from plain(columns, [_row(h) for h in holds]).splitlines()


def _row(held: Holding) -> list[str]:
    amount = f"{held.shares} share{'s' * (held.shares != 1)}" if held.shares else str(held.memory_mib)
    index = _NONE if held.index is None else str(held.index)
    return [held.container, index, held.model, amount, f"{held.cores_percent}%", *_use(held), held.card]


def _use(held: Holding) -> list[str]:
    use = held.use
    if use is None:
        return [_NONE] * 4
    busy = _NONE if use.busy_percent is None else f"{use.busy_percent:g}%"
    return [_number(use.used_mib), _number(use.peak_mib), busy, _number(use.refusals)]


def _number(value: int | None) -> str:
    return _NONE if value is None else str(value)


def _events(events: Sequence[PodEvent]) -> Iterator[str]:
    if not events:
        return
    yield ""
    columns = (Column("LAST", number=True), Column("TIMES", number=True), Column("REASON"), Column("FROM"))
    told = _merged(events)
    rows = [[span(e.age), str(e.count), e.reason, e.source] for e in told]
    head, *lines = plain((*columns, Column("MESSAGE")), [[*r, ""] for r in rows]).splitlines()
    yield head
    for line, event in zip(lines, told, strict=True):
        yield f"{line.removesuffix(_NONE)}{' '.join(event.message.split())}"


def _merged(events: Sequence[PodEvent]) -> list[PodEvent]:
    """Merge events with the same message: newest age, sum of their counts. kube-scheduler writes another Event with the
    same message when the pod has changed, or after some minutes."""
    found: dict[tuple[str, ...], PodEvent] = {}
    for event in events:
        key = (event.type, event.reason, event.source, event.message)
        first = found.get(key)
        found[key] = msgspec.structs.replace(first, count=first.count + event.count) if first else event
    return list(found.values())


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
