"""The usage of nodes as plain text: a line per card, a line per container and card, then use outside the ledger."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.wire.fractile.departed import label
from fractile.wire.output.node_usage import (
    CardUsage,
    ClusterUsage,
    ContainerUsage,
    DepartedUsage,
    Kind,
    NodeUsage,
    Outside,
    SliceUsage,
)

_MIB = 2**20
_KINDS: dict[Kind, str] = {
    "no-slice": "uses a card it was not given",
    "no-library": "uses the card without Fractile's library",
    "not-in-ledger": "uses the card and does not account for it",
    "over-ledger": "holds more than it accounts for",
    "over-quota": "holds more than its quota",
    "not-a-pod": "uses the card from outside all pods",
}
_CARDS = (
    Column("NODE"),
    Column("CARD", number=True),
    Column("MODEL"),
    Column("BUSY", number=True),
    Column("USED/TOTAL MiB", number=True),
    Column("PROMISED MiB", number=True),
    Column("CORES", number=True),
    Column("CONTAINERS", number=True),
    Column("PROCESSES", number=True),
)
_CONTAINERS = (
    Column("NODE"),
    Column("CARD", number=True),
    Column("NAMESPACE"),
    Column("POD"),
    Column("CONTAINER"),
    Column("BUSY", number=True),
    Column("SHARE/CORES", number=True),
    Column("USED/QUOTA MiB", number=True),
    Column("PEAK MiB", number=True),
    Column("REFUSED", number=True),
    Column("WAITED s", number=True),
    Column("THROTTLED s", number=True),
)


_DROPPED_FIRST = ("PROCESSES", "THROTTLED s", "WAITED s", "PEAK MiB", "REFUSED", "CONTAINERS", "MODEL", "CONTAINER")
_DROPPED_THEN = ("CORES", "SHARE/CORES", "NAMESPACE", "PROMISED MiB", "NODE")
_GAP = 2
_LEAST_ROWS = 3  # of the cards, even if there are many containers


def table(usage: ClusterUsage) -> str:
    """All nodes that answered, then those that did not."""
    parts = [plain(_CARDS, _card_rows(usage))]
    slices = _slice_rows(usage)
    if slices:
        parts.append(plain(_CONTAINERS, slices))
    notes = list(_notes(usage))
    return "\n".join([*parts, *(["".join(f"{printable(note)}\n" for note in notes)] if notes else [])])


def screen(usage: ClusterUsage, width: int, height: int) -> str:
    """As much as fits on a terminal of ``width`` x ``height`` characters. The notes come first, since they matter most;
    the rows and columns that do not fit are counted."""
    said = _wrapped([printable(note) for note in _notes(usage)], width, max(1, height // 2))
    cards, hidden = _narrowed(_CARDS, _card_rows(usage), width)
    containers, more = _narrowed(_CONTAINERS, _slice_rows(usage), width)
    if hidden or more:
        count = hidden + more
        wide = f"{count} column{'s' * (count != 1)} hidden: widen the terminal, or use --once"
        said.append(wide)
    left = height - len(said) - (1 if said else 0)
    if len(containers) > 1:
        most = max(_LEAST_ROWS + 1, left // 2, left - 1 - len(containers))
        shown = _cut(cards, min(most, left))
        room = left - len(shown) - 1
        parts = [shown, _cut(containers, room)] if room > 1 else [_cut([*cards, *containers[1:]], left)]
    else:
        parts = [_cut(cards, left)]
    text = "\n".join("".join(f"{line}\n" for line in part) for part in (said, *parts) if part)
    return "".join(f"{line[:width]}\n" for line in text.splitlines()[:height])


def _card_rows(usage: ClusterUsage) -> list[tuple[str, ...]]:
    return [_card(node, card) for node in usage.nodes for card in node.cards]


def _slice_rows(usage: ClusterUsage) -> list[tuple[str, ...]]:
    return [
        _slice(node, container, one)
        for node in usage.nodes
        for container in node.containers
        for one in sorted(container.cards, key=lambda c: -1 if c.index is None else c.index)
    ]


def _wrapped(notes: Sequence[str], width: int, most: int) -> list[str]:
    """The notes, wrapped to ``width``; if they exceed ``most`` lines, the first ones and how many more there are."""
    lines: list[str] = []
    for number, note in enumerate(notes):
        wrapped = wrap(note, width, subsequent_indent="  ")
        last = number == len(notes) - 1
        if lines and len(lines) + len(wrapped) > most - (not last):
            return [*lines, f"{len(notes) - number} more notes: --once"]
        lines += wrapped
    return lines[:most]


def _narrowed(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], int]:
    """The lines of the table, without its least important columns if it is too wide; and how many were dropped."""
    kept = list(range(len(columns)))
    widths = [max(map(len, (c.heading, *(r[i] or "-" for r in rows)))) for i, c in enumerate(columns)]
    for heading in (*_DROPPED_FIRST, *_DROPPED_THEN):
        if sum(widths[i] + _GAP for i in kept) - _GAP <= width:
            break
        kept = [i for i in kept if columns[i].heading != heading]
    text = plain([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    return [line[:width] for line in text.splitlines()], len(columns) - len(kept) if rows else 0


def _cut(lines: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines; if there are more, the last of these says how many do not fit."""
    if len(lines) <= most:
        return list(lines)
    shown = max(most - 1, 0)
    hidden = len(lines) - max(shown, 1)
    return [*lines[:shown], f"{hidden} more row{'s' * (hidden != 1)}: use a taller terminal, or --once"][: max(most, 0)]


def _card(node: NodeUsage, card: CardUsage) -> tuple[str, ...]:
    return (
        node.node,
        str(card.index),
        card.model if card.healthy else f"{card.model} (unhealthy)",
        _percent(card.utilization_percent),
        f"{_mib(card.used_bytes) or '?'}/{_mib(card.memory_bytes)}",
        _mib(card.promised_bytes),
        _percent(card.promised_cores),
        str(card.containers),
        "" if card.processes is None else str(card.processes),
    )


def _slice(node: NodeUsage, container: ContainerUsage, card: SliceUsage) -> tuple[str, ...]:
    share = "-" if card.share_percent is None else f"{card.share_percent:.0f}"
    return (
        node.node,
        "?" if card.index is None else str(card.index),
        container.namespace,
        container.pod,
        container.container,
        _percent(card.utilization_percent),
        f"{share}/{card.cores or '-'}",
        f"{_mib(card.held_bytes) or '?'}/{_mib(card.limit_bytes)}",
        _mib(card.peak_bytes),
        "" if card.refusals is None else str(card.refusals),
        _seconds(card.waited_seconds),
        _seconds(card.throttled_seconds),
    )


def _notes(usage: ClusterUsage) -> Iterator[str]:
    for node in usage.nodes:
        yield from (_outside(node, one) for one in node.outside)
        yield from (_departed(node, one) for one in node.departed)
        for container in node.containers:
            who = f"{node.node}: {container.namespace}/{container.pod} {container.container}"
            if container.problem:
                yield f"{who}: its ledger cannot be read: {container.problem}"
            if not container.enforced:
                yield f"{who}: isolation is off"
        if not node.audited:
            yield f"{node.node}: NVML does not list processes, so use outside the ledger is not detected"
    for missing in usage.unanswered:
        yield f"{missing.node}: {missing.reason}"


def _outside(node: NodeUsage, one: Outside) -> str:
    index = _index(node, one.card)
    pod = f"{one.namespace}/{one.pod} {one.container}".strip() if one.pod else "no pod"
    process = f", {one.command or 'process'} (pid {one.pid} on the node)" if one.pid else ""
    held = "an unknown amount" if one.bytes is None else f"{_mib(one.bytes)} MiB"
    return f"{node.node}: outside the ledger: {held} of card {index}, {pod}{process}: {_KINDS[one.kind]} ({one.kind})"


def _departed(node: NodeUsage, one: DepartedUsage) -> str:
    """A container that no table shows: its pod is gone, but what it was promised is not given to other pods."""
    who = f"{label(one.namespace, one.pod)} {one.container}"
    held = f"{_mib(one.limit_bytes)} MiB of card {_index(node, one.card)}"
    return f"{node.node}: {held} held by {who}, until its processes have ended"


def _index(node: NodeUsage, card: str) -> str:
    return next((str(c.index) for c in node.cards if c.uuid == card), card)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def _mib(size: int | None) -> str:
    """In MiB, rounded up, since every byte counts."""
    return "" if size is None else str(-(-size // _MIB))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
