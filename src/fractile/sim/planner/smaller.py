"""The largest part of a card that is left for a pod that requests more.

If the units of the pod's family are known, the amounts can be written into its manifest: whole units, rounded down.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from fractile.dialects.units import FamilyUnits
from fractile.policy.nodes.view import WHOLE_GPU, Flags
from fractile.sim.planner.stock import KEPT, PlannerStock
from fractile.sim.snapshot.cluster_snapshot import DemandPart
from fractile.sim.snapshot.rows import asked

_PERCENT = 10  # thousandths


class SmallerPart(msgspec.Struct, frozen=True):
    """A part to try: ``wanted`` and ``to`` are the MiB or thousandths that are reduced. ``amounts``: what to write, by
    resource, if one container asks; 0 for a resource to remove."""

    part: DemandPart
    sentence: str
    wanted: int
    to: int
    amounts: dict[str, int] = {}


def smaller(stock: PlannerStock, part: DemandPart, cards: Flags, units: FamilyUnits | None) -> Iterator[SmallerPart]:
    """Smaller parts for a pod that asks for one card; ``cards`` are those that it may be on. Their fit is not
    checked."""
    found = _instead_of_whole(stock, part, cards, units) if part.exclusive else _less(stock, part, cards, units)
    for other, wanted, to in found:
        if 0 < to < wanted:
            yield SmallerPart(other, _sentence(part, other, units), wanted, to, _amounts(part, other, units))


def _instead_of_whole(
    stock: PlannerStock, part: DemandPart, cards: Flags, units: FamilyUnits | None
) -> Iterator[tuple[DemandPart, int, int]]:
    """A part of the card with most left, instead of a whole card."""
    shares = np.where(cards, np.minimum(stock.view.gpu_left, stock.time_open()), 0)
    card = np.unravel_index(int(np.argmax(shares)), shares.shape)
    left, memory = int(shares[card]), int(stock.card_left[card])
    one = msgspec.structs.replace(part, count=1, exclusive=False)
    if units is None or not stock.card_memory[card]:
        yield msgspec.structs.replace(one, share=left, compute=left), WHOLE_GPU, left
        return
    time = _floor(int(stock.time_open()[card]), _PERCENT) if units.cores else 0
    memory = _floor(memory, units.mebibytes)
    if memory and (time or not units.cores):
        yield msgspec.structs.replace(one, memory=memory, compute=time), WHOLE_GPU, left


def _less(
    stock: PlannerStock, part: DemandPart, cards: Flags, units: FamilyUnits | None
) -> Iterator[tuple[DemandPart, int, int]]:
    """Parts with less memory, and with less time; and with less of both if they are one amount or both are short."""
    replace = msgspec.structs.replace
    if part.memory and part.share:  # of several containers, which give it in two ways
        return
    open_time = stock.time_open()
    timely = cards & (open_time >= part.compute if part.compute else stock.time_left >= KEPT)
    roomy = cards & (part.memory + stock.card_memory * part.share // WHOLE_GPU <= stock.card_left)
    one_amount = units is None and part.share == part.compute and part.share > 0
    percent, block = (_PERCENT, units.mebibytes) if units else (1, 1)
    if not one_amount and part.memory:
        memory = _floor(_most(stock.card_left, timely), block)
        yield replace(part, memory=memory), part.memory, memory
    if not one_amount and part.share:
        share = _floor(_most(stock.memory_share(), timely), percent)
        yield replace(part, share=share), part.share, share
    if not one_amount and part.compute:
        time = _floor(_most(open_time, roomy), percent)
        yield replace(part, compute=time), part.compute, time
    if part.compute and (one_amount or not (timely.any() or roomy.any())):
        yield from _less_of_both(stock, part, cards, percent, block)


def _less_of_both(
    stock: PlannerStock, part: DemandPart, cards: Flags, percent: int, block: int
) -> Iterator[tuple[DemandPart, int, int]]:
    """Less of both, on the card with most of the scarcer one."""
    open_time = stock.time_open()
    shares = np.where(cards, np.minimum(stock.memory_share(), open_time), 0)
    card = np.unravel_index(int(np.argmax(shares)), shares.shape)
    time = min(part.compute, _floor(int(open_time[card]), percent))
    if part.share:
        share = min(part.share, _floor(int(stock.memory_share()[card]), percent))
        if part.share == part.compute:
            share = time = min(share, time)
        yield msgspec.structs.replace(part, share=share, compute=time), part.share, share
    elif part.memory:
        memory = min(part.memory, _floor(int(stock.card_left[card]), block))
        yield msgspec.structs.replace(part, memory=memory, compute=time), part.memory, memory


def _most(amounts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], where: Flags) -> int:
    return int(np.max(amounts, where=where, initial=0))


def _floor(amount: int, step: int) -> int:
    return amount // step * step


# ── in words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sentence(part: DemandPart, other: DemandPart, units: FamilyUnits | None) -> str:
    if units is None or (part.exclusive and not other.memory):
        less = f"{other.share / 10:g} % of a GPU" if part.exclusive else asked(other)
        return f"take {less} instead of {'a whole one' if part.exclusive else asked(part)}"
    new, old = _written(other, units), _written(part, units)
    if part.exclusive:
        new = ({units.cards: units.per_card} if units.beside else {}) | new
        was = "a whole card" if units.beside else f"{units.cards}: {units.per_card}"
    else:
        new = {resource: amount for resource, amount in new.items() if amount != old[resource]}
        was = _listed([str(old[resource]) for resource in new])
    said = _listed([f"{resource}: {amount}" for resource, amount in new.items()])
    return f"ask for {said} instead of {was}{' in its containers together' if units.together else ''}"


def _listed(said: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))


def _amounts(part: DemandPart, other: DemandPart, units: FamilyUnits | None) -> dict[str, int]:
    if units is None or units.together or (part.exclusive and not other.memory):
        return {}
    gone = {units.cards: units.per_card if units.beside else 0} if part.exclusive else {}
    return gone | _written(other, units)


def _written(part: DemandPart, units: FamilyUnits) -> dict[str, int]:
    """The requested amounts of a part, by resource."""
    found = {
        units.memory: part.memory // units.mebibytes,
        units.percent: part.share // _PERCENT,
        units.cores: part.compute // _PERCENT,
    }
    return {resource: amount for resource, amount in found.items() if resource and amount}
