"""What one container may use and what it uses, as plain text: its cards, then its processes."""

from collections.abc import Iterator

from fractile.cli.text.table import Column, plain
from fractile.wire.output.slice_use import CardUse, ProcessUse, SliceUse

_MIB = 2**20
_CARDS = (
    Column("CARD"),
    Column("QUOTA MiB", number=True),
    Column("USED MiB", number=True),
    Column("PEAK MiB", number=True),
    Column("CORES", number=True),
    Column("REFUSED", number=True),
)
_PROCESSES = (
    Column("PID", number=True),
    Column("COMMAND"),
    Column("CARD"),
    Column("USED MiB", number=True),
    Column("CONTEXTS", number=True),
    Column("GPU s", number=True),
)


def table(use: SliceUse) -> str:
    """The container, a line per card, what bypasses the library, a line per process and card, and what is wrong."""
    lines = [f"{use.namespace}/{use.pod} {use.container}" + ("" if use.enforced else " (isolation is off)") + "\n"]
    lines.append(plain(_CARDS, [_card(card) for card in use.cards]))
    lines += [_around(card) for card in use.cards if card.unaccounted_bytes]
    if use.processes:
        lines += ["\n", plain(_PROCESSES, [row for process in use.processes for row in _process(process)])]
    if use.problem:
        lines.append(f"\nwhat is used is unknown: {use.problem}\n")
    return "".join(lines)


def mib(bytes: int | None) -> str:
    """In MiB, with one decimal unless it is a whole number; rounded up, since every byte counts."""
    if bytes is None:
        return ""
    tenths = -(-bytes * 10 // _MIB)
    return str(bytes // _MIB) if bytes % _MIB == 0 else f"{tenths // 10}.{tenths % 10}"


def _card(card: CardUse) -> tuple[str, ...]:
    refused = "" if card.refusals is None else str(card.refusals)
    amounts = mib(card.memory_bytes), mib(card.used_bytes), mib(card.peak_bytes)
    return card.uuid, *amounts, f"{card.cores}%" if card.cores else "", refused


def _around(card: CardUse) -> str:
    """The memory that is missing from USED, which is the library's own count."""
    more = f"{mib(card.unaccounted_bytes)} MiB more of card {card.uuid}"
    return f"{more} are used around the library; they count toward the quota\n"


def _process(process: ProcessUse) -> Iterator[tuple[str, ...]]:
    if not process.cards:
        yield str(process.pid), process.command, "", "0", "0", "0.0"
    for held in process.cards:
        seconds = f"{held.gpu_ns / 1e9:.1f}"
        yield str(process.pid), process.command, held.uuid, mib(held.bytes), str(held.contexts), seconds
