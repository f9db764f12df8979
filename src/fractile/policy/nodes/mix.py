"""The expected pods: classes of requests and how often each occurs (the FGD paper's typical pods, M)."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from fractile.policy.nodes.view import TaskDemand


class Mix(msgspec.Struct, frozen=True):
    """``asks[i]`` is expected ``counts[i]`` times in ``total``, the commonest first. Memory is left out, as in the
    paper."""

    asks: tuple[TaskDemand, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def commonest(self, cover: int = 95) -> "Mix":
        """The first classes that together cover ``cover`` percent of the pods; the paper's threshold is 95."""
        needed = -(-self.total * cover // 100)
        before = itertools.accumulate(self.counts, initial=0)
        kept = sum(1 for _ in itertools.takewhile(lambda covered: covered < needed, before))
        return Mix(self.asks[:kept], self.counts[:kept])


def mix_of(asks: Iterable[TaskDemand]) -> Mix:
    """The mix of all classes. Ties: more CPU first, then more of a GPU, more GPUs, and later model names."""
    return mix_of_counts(Counter(asks))


def mix_of_counts(asks: Mapping[TaskDemand, int]) -> Mix:
    """The same from requests with their numbers."""
    counted: Counter[TaskDemand] = Counter()
    for ask, count in asks.items():
        counted[_class(ask)] += count
    ordered = sorted(counted.items(), key=lambda kv: (kv[1], _order(kv[0])), reverse=True)
    return Mix(tuple(a for a, _ in ordered), tuple(c for _, c in ordered))


def _class(ask: TaskDemand) -> TaskDemand:
    return msgspec.structs.replace(ask, memory=0, models=ask.models if ask.gpus else ())


def _order(ask: TaskDemand) -> tuple[int, int, int, str]:
    return ask.cpu, ask.milli, ask.gpus, "|".join(ask.models)
