"""The pods that are to be expected: classes of requests and how often each occurs (the FGD paper's typical pods, M)."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from fractile.policy.score.view import Ask


class Mix(msgspec.Struct, frozen=True):
    """``asks[i]`` is expected ``counts[i]`` times of ``total``. Memory is left out of it, as in the paper."""

    asks: tuple[Ask, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)


def mix_of(asks: Iterable[Ask], *, cover: int = 95) -> Mix:
    """The commonest classes, until they cover so many percent of the pods; the paper's threshold is 95.

    Equally common ones: more CPU first, then more of a GPU, more GPUs, and the later name of models.
    """
    counted = Counter(_class(a) for a in asks)
    ordered = sorted(counted.items(), key=lambda kv: (kv[1], _order(kv[0])), reverse=True)
    needed = -(-sum(counted.values()) * cover // 100)
    kept: list[tuple[Ask, int]] = []
    covered = 0
    for ask, count in ordered:
        if covered >= needed:
            break
        kept.append((ask, count))
        covered += count
    return Mix(tuple(a for a, _ in kept), tuple(c for _, c in kept))


def _class(ask: Ask) -> Ask:
    return msgspec.structs.replace(ask, memory=0, models=ask.models if ask.gpus else ())


def _order(ask: Ask) -> tuple[int, int, int, str]:
    return ask.cpu, ask.milli, ask.gpus, "|".join(ask.models)
