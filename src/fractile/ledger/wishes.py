"""A pod's request as node scores see it: how many whole cards, which parts of cards, and of which models."""

from functools import lru_cache

import numpy as np

from fractile.ledger.arrays import CardArrays, CardLayer
from fractile.ledger.layers import KeptLayer
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.request import ANY, ContainerRequest, PodRequest, Selector
from fractile.model.units import MiB
from fractile.policy.cards.parts import SharedCard, card_numbers, parts_of, peak
from fractile.wire.fractile.placement import MAX_SLICES
from fractile.wire.kubernetes.pod_totals import PodTotals

_FEW = 8  # the most containers, or parts, that are kept individually
_MOST = 2**40  # MiB; larger amounts are capped so that sums fit in 64 bits


def wish_of(request: PodRequest | None, totals: PodTotals, arrays: CardArrays) -> PodDemand:
    """``request`` is resolved or names no class; None: it asks for no device. Non-GPU devices do not count."""
    containers = request.gpus if request is not None else ()
    if not containers or any(c.request.count > MAX_SLICES for c in containers):
        return PodDemand(totals.cpu, totals.memory)
    plain = all(c.request.selector == ANY for c in containers)
    whole, parts = _alike(containers) if plain and len(containers) <= _FEW else _cards(containers)
    models = () if plain else models_of(containers, arrays)
    kept = parts if len(parts) <= _FEW else _largest(parts)
    return PodDemand(totals.cpu, totals.memory, whole, kept, models, more=len(parts) - len(kept))


def _cards(containers: tuple[ContainerRequest, ...]) -> tuple[int, tuple[PartOfCard, ...]]:
    """The number of whole cards, and the parts."""
    parts = parts_of(containers, card_numbers(containers))
    return sum(p.whole for p in parts), tuple(_part(p) for p in parts if not p.whole)


def _largest(parts: tuple[PartOfCard, ...]) -> tuple[PartOfCard, ...]:
    """At most two parts that stand for all: the largest in MiB and the largest in percent. On cards of any size the
    larger of the two takes as much as the largest of the parts does."""
    by_size, by_percent = ([p for p in parts if bool(p.memory_percent) is said] for said in (False, True))
    cores = max(p.cores for p in parts)
    sized = (PartOfCard(max(p.memory for p in by_size), cores=cores),) if by_size else ()
    return (*sized, PartOfCard(0, max(p.memory_percent for p in by_percent), cores)) if by_percent else sized


_alike = lru_cache(maxsize=256)(_cards)  # the thousands of pods of a workload share one result


def _part(part: SharedCard) -> PartOfCard:
    percent = max(c.request.memory_percent for c in part.containers)
    need = peak(part.containers, MiB(0))
    return PartOfCard(min(need.memory, _MOST), min(percent, 100), min(need.cores, 100))


def models_of(containers: tuple[ContainerRequest, ...], arrays: CardArrays) -> tuple[str, ...]:
    """The models in the ledger that every container may have; empty when that is all of them."""
    selectors = {c.request.selector for c in containers} - {ANY}
    if not selectors:
        return ()
    admitted = [name for name in sorted(arrays.models) if all(_admits(s, name, arrays) for s in selectors)]
    return () if len(admitted) == len(arrays.models) else tuple(admitted) or ("",)


def _admits(selector: Selector, model: str, arrays: CardArrays) -> bool:
    if not selector.admits_model(model):
        return False
    if isinstance(selector.members, KeptLayer):  # it knows its models: a pass over all cards is a third of a filter
        return model in selector.members.models
    if not isinstance(selector.members, CardLayer):
        return True
    mask = selector.members.mask
    return bool(np.any(arrays.model[mask] == arrays.models.index(model)))
