"""Convert a pod's demand into a request in thousandths, for cards of one size; scores compare these."""

from functools import lru_cache

from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.policy.nodes.view import WHOLE_GPU, TaskDemand

_PERCENT = WHOLE_GPU // 100


def part_of(amount: int, memory: int) -> int:
    """``amount`` of a card's memory in thousandths, rounded up: what fits in MiB is never too large in thousandths."""
    return -(-amount * WHOLE_GPU // memory)


@lru_cache(maxsize=8192)
def asked(wish: PodDemand, memory: int) -> TaskDemand | None:
    """The request on cards of ``memory`` MiB (more than 0); None when they are too small. Each of several parts counts
    with the size of the largest."""
    if not wish.asks:
        return TaskDemand(wish.cpu, wish.memory)
    if wish.whole:
        return TaskDemand(wish.cpu, wish.memory, wish.whole + wish.shared, WHOLE_GPU, wish.models)
    milli = max(_milli(part, memory) for part in wish.parts)
    if milli > WHOLE_GPU:
        return None
    return TaskDemand(wish.cpu, wish.memory, wish.shared, milli, wish.models)


def expressible(ask: TaskDemand) -> bool:
    """Whether scores can place the pod: a part of one GPU, or whole ones, but not parts of several."""
    return ask.shares or ask.milli == WHOLE_GPU


def _milli(part: PartOfCard, memory: int) -> int:
    mib = memory * part.memory_percent // 100 if part.memory_percent else part.memory
    return max(1, part_of(mib, memory), part.cores * _PERCENT)
