"""GPUs that will be left over for want of CPU, long before the CPU has run out.

F sees only whether one more pod of each class would fit. A node that gives away more CPU than its share looks as good
as another until the last pods, and then strands whole GPUs. So a node with ``g`` thousandths of GPUs and ``c`` CPU left
is taken to strand

    g x (lacking / wanted)^2        wanted: twice the CPU that the mix asks for beside so much GPU
                                    lacking: what is missing of that

Nothing where CPU is plenty, a quarter of ``g`` where there is just as much as the mix wants in the mean, all of it
where none is left. The curve, not only its end, is what counts: pods with much CPU go where it is plenty, pods
without GPUs keep away from GPUs that still need theirs, and nodes on which it is short get pods that ask for little.

This needs a place for the pods without GPUs: the CPU that nodes have over what the mix wants beside their GPUs. Where
such pods ask for more than that, CPU is short everywhere, no node is better for them than another, and keeping it on
all nodes alike only leaves too little on each. So the term fades out as they ask for 90 to 100 % of it.
"""

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import WHOLE_GPU, Ints, View

UNIT = 1_000_000
_TIMES = 2  # the mean
_MOST = 10**13  # of ``wanted``, so that no product is too large for 64 bits
_FADES = 90  # from so many percent on


class Beside(msgspec.Struct, frozen=True):
    """CPU beside GPUs. ``wanted``: for each thousandth of a GPU, in millionths of thousandths of a CPU. ``weight``: how
    much the term counts, in percent."""

    wanted: int = 0
    weight: int = 0


def beside(mix: Mix, view: View) -> Beside:
    """What the mix wants, on these nodes; nothing for a mix without GPUs."""
    pods = list(zip(mix.asks, mix.counts, strict=True))
    gpus = sum(a.total * n for a, n in pods)
    if not gpus:
        return Beside()
    cpu = sum(a.cpu * n for a, n in pods if a.gpus)
    others = sum(a.cpu * n for a, n in pods if not a.gpus)
    weight = _weight(others * int(view.gpus.sum()) * WHOLE_GPU, _over(view, cpu, gpus))
    return Beside(min(_TIMES * UNIT * cpu // gpus, _MOST), weight)


def _over(view: View, cpu: int, gpus: int) -> int:
    """CPU that nodes have over what their GPUs want, times ``gpus``."""
    nodes = zip(view.cpu.tolist(), view.gpus.tolist(), strict=True)
    return sum(max(0, has * gpus - devices * WHOLE_GPU * cpu) for has, devices in nodes)


def _weight(asked: int, over: int) -> int:
    """In percent of what is over, what pods without GPUs ask for once all GPUs are asked for: at ``_FADES`` everything
    counts, at 100 nothing."""
    if not asked:
        return 100
    share = 100 * asked // over if over else 100
    return min(100, max(0, 100 * (100 - share) // (100 - _FADES)))


def stranded(cpu_left: Ints, gpu_left: Ints, wanted: int) -> Ints:
    """``gpu_left``: the sum of a node's devices. In millionths of a thousandth of a GPU."""
    needed = gpu_left * wanted // UNIT
    lacking = UNIT * np.maximum(np.minimum(needed - cpu_left, needed), 0) // np.maximum(needed, 1)
    return gpu_left * lacking * lacking // UNIT
