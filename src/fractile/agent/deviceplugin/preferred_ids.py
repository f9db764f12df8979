"""Which free ids to prefer, as a pure function. Equal inputs give equal answers, whatever their order."""

from collections.abc import Iterable, Mapping

from fractile.errors import WireError
from fractile.model.units import CardUUID
from fractile.wire.fractile.device_ids import MAX_PER_RESOURCE, device_id, split

Numbers = dict[CardUUID, list[int]]


def prefer(
    available: Iterable[str],
    must_include: Iterable[str],
    size: int,
    *,
    wanted: Mapping[CardUUID, int],
    distinct: bool = False,
    room: Mapping[CardUUID, int] | None = None,
) -> list[str]:
    """``size`` ids out of ``available``, with all of ``must_include``: first those of the wanted cards, in the wanted
    amounts; then of as few other cards as possible, or of as many when they should be ``distinct``; among equal cards
    of those with the most ``room``; the lowest numbers of each card, which keeps sets short as ranges.

    Ids that are not of our form are never chosen. Returns fewer than ``size`` if there are no more.
    """
    must = list(dict.fromkeys(must_include))
    free = set(available).difference(must)
    missing = max(size - len(must), 0)
    held = {card: len(numbers) for card, numbers in _numbers(must).items()}
    chosen: list[str] = []
    for card, count in wanted.items():
        chosen += _lowest(free, card, min(count - held.get(card, 0), missing - len(chosen)))
    rest = missing - len(chosen)
    if not rest:
        return must + chosen
    if not distinct:
        return must + chosen + _packed(free.difference(chosen), rest, held, room or {})
    return must + chosen + _spread(free.difference(chosen), rest, _numbers(must + chosen), room or {})


def _lowest(free: set[str], card: CardUUID, count: int) -> list[str]:
    """Probes for the wanted ids instead of parsing all: kubelet sends up to 60,000 and waits for the answer."""
    found: list[str] = []
    for k in range(MAX_PER_RESOURCE):
        if len(found) >= count:
            break
        device = device_id(card, k)
        if device in free:
            found.append(device)
    return found


def _packed(available: set[str], missing: int, held: Mapping[CardUUID, int], room: Mapping[CardUUID, int]) -> list[str]:
    """``missing`` ids of as few cards as possible."""
    free = _numbers(available)
    chosen: list[str] = []
    while len(chosen) < missing and any(free.values()):
        rest = missing - len(chosen)
        chosen += _take(free, _next_card(free, rest, held, room), rest)
    return chosen


def _spread(available: set[str], missing: int, taken: Numbers, room: Mapping[CardUUID, int]) -> list[str]:
    """``missing`` ids of as many cards as possible: always one of a card that has the fewest in the set."""
    free = _numbers(available)
    held = {card: len(taken.get(card, ())) for card in free}
    chosen: list[str] = []
    while len(chosen) < missing and any(free.values()):
        card = min((c for c, numbers in free.items() if numbers), key=lambda c: (held[c], -room.get(c, 0), c))
        chosen += _take(free, card, 1)
        held[card] += 1
    return chosen


def _next_card(free: Numbers, missing: int, held: Mapping[CardUUID, int], room: Mapping[CardUUID, int]) -> CardUUID:
    """A card that is in the set already, else one that serves all of the rest: of these the one with the most room,
    if that is known, then the tightest; else the largest."""
    return min(
        (card for card, numbers in free.items() if numbers),
        key=lambda c: (
            c not in held,
            len(free[c]) < missing,
            -room.get(c, 0),
            len(free[c]) if len(free[c]) >= missing else -len(free[c]),
            c,
        ),
    )


def _take(free: Numbers, card: CardUUID, count: int) -> list[str]:
    numbers = free.get(card, [])
    taken, free[card] = numbers[: max(count, 0)], numbers[max(count, 0) :]
    return [device_id(card, k) for k in taken]


def _numbers(devices: Iterable[str]) -> Numbers:
    numbers: Numbers = {}
    for device in devices:
        try:
            card, k = split(device)
        except WireError:
            continue
        if device == device_id(card, k):  # "::007" is not one of our ids
            numbers.setdefault(card, []).append(k)
    return {card: sorted(numbers[card]) for card in sorted(numbers)}
