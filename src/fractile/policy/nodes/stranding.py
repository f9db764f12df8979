"""Estimate the GPUs that will be left over for lack of CPU, long before the CPU has run out.

F only covers whether one more pod of each class would fit. A node that gives away more CPU than its share scores as
well as any other until the last pods, and then strands whole GPUs. So a node with ``g`` thousandths of GPUs and ``c``
CPU left is assumed to strand

    g x (lacking / wanted)^2        wanted: twice the CPU that the mix requests with that much GPU
                                    lacking: what is missing of that

That is nothing where CPU is plentiful, a quarter of ``g`` where there is just as much as the mix requests on average,
and all of ``g`` where none is left. The whole curve matters, not only its end: pods with much CPU go where it is
plentiful, pods without GPUs avoid nodes whose GPUs still need it, and nodes that are short of CPU get pods that request
little.

Pods without GPUs need a place too: the CPU that nodes have beyond what the mix requests with their GPUs. If such pods
request more than that, CPU is short everywhere, no node suits them better than another, and reserving it on all nodes
only leaves too little on each. So the term fades out as they request 90 to 100 % of it.
"""

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import WHOLE_GPU, Ints, View

UNIT = 1_000_000
_TIMES = 2  # of the mean
_MOST = 10**13  # of ``wanted``, so that no product is too large for 64 bits
_FADES = 90  # percent from which the term fades


class Beside(msgspec.Struct, frozen=True):
    """The CPU requested with GPUs. ``wanted``: for each thousandth of a GPU, in millionths of thousandths of a CPU.
    ``weight``: of the term, in percent."""

    wanted: int = 0
    weight: int = 0


def beside(mix: Mix, view: View) -> Beside:
    """The CPU that the mix requests with GPUs, on these nodes; nothing for a mix without GPUs."""
    pods = list(zip(mix.asks, mix.counts, strict=True))
    gpus = sum(a.total * n for a, n in pods)
    if not gpus:
        return Beside()
    cpu = sum(a.cpu * n for a, n in pods if a.gpus)
    others = sum(a.cpu * n for a, n in pods if not a.gpus)
    weight = _weight(others * int(view.gpus.sum()) * WHOLE_GPU, _over(view, cpu, gpus))
    return Beside(min(_TIMES * UNIT * cpu // gpus, _MOST), weight)


def _over(view: View, cpu: int, gpus: int) -> int:
    """The CPU that nodes have beyond what their GPUs need, times ``gpus``."""
    nodes = zip(view.cpu.tolist(), view.gpus.tolist(), strict=True)
    return sum(max(0, has * gpus - devices * WHOLE_GPU * cpu) for has, devices in nodes)


def _weight(asked: int, over: int) -> int:
    """The weight by what pods without GPUs request once all GPUs are requested, in percent of the spare CPU: full up to
    ``_FADES``, none from 100 on."""
    if not asked:
        return 100
    share = 100 * asked // over if over else 100
    return min(100, max(0, 100 * (100 - share) // (100 - _FADES)))


def stranded(cpu_left: Ints, gpu_left: Ints, wanted: int) -> Ints:
    """The GPUs that each node will strand, in millionths of a thousandth of a GPU. ``gpu_left``: sums over devices."""
    needed = gpu_left * wanted // UNIT
    lacking = UNIT * np.maximum(np.minimum(needed - cpu_left, needed), 0) // np.maximum(needed, 1)
    return gpu_left * lacking * lacking // UNIT
