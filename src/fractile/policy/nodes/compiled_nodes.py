"""The policies that score nodes as a whole, compiled: ``bestfit`` to ``requested-to-capacity-ratio-1.20``.

One pass over the rows computes what fits, what is left, which device, then the formula. Every number equals that of the
policy's own module, which a test checks; the formulae are explained there.
"""

import numpy as np

from fractile.policy.nodes.jit import jit
from fractile.policy.nodes.policy import Rescore, ScoringContext
from fractile.policy.nodes.view import NEVER, NO_DEVICE, PAPER_LARGEST, WHOLE_GPU, Flags, Ints, Scores, TaskDemand, View

_FIRST, _RANDOM, _BESTFIT, _PACKING, _CLUSTERING, _DOT, _MOST, _LEAST, _RATIO = range(9)
_CPU, _GPU = PAPER_LARGEST.cpu, PAPER_LARGEST.gpu
_NO_CPU, _NO_MEMORY = 100, 200  # what kube-scheduler counts for a pod that requests none
_GOLDEN, _ONE, _TWO = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _2 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(2)
_DEVICES_FROM = 1 << 40


@jit
def _mixed(x: np.uint64) -> np.uint64:
    """``noise``'s finish of splitmix64."""
    x = x + _GOLDEN
    x = (x ^ (x >> _30)) * _ONE
    x = (x ^ (x >> _27)) * _TWO
    return x ^ (x >> _31)


@jit
def _lot(start: np.uint64, who: int) -> int:
    return int(_mixed(np.uint64(who) + start) >> _2)


@jit
def _device(which: int, gpu: Ints, milli: int, start: np.uint64, number: int) -> int:
    """The device for a part of a GPU: the tightest, except for the two policies that choose otherwise."""
    best = NEVER
    chosen = NO_DEVICE
    for d in range(len(gpu)):
        g = gpu[d]
        if g < milli:
            continue
        if which == _FIRST:
            return d
        key = -g
        if which == _RANDOM:
            key = -_lot(start, number * 64 + d + _DEVICES_FROM)
        if key > best:
            best = key
            chosen = d
    return chosen


@jit
def _packing(left_on: int, free: int, gpus: int, ask_gpus: int, shares: bool) -> int:
    """``left_on``: on the device that is shared."""
    if ask_gpus == 0:
        return 0
    if free == gpus:
        return max(33 - free, free)
    opens = ask_gpus
    if shares:
        opens = 1 if left_on == WHOLE_GPU else 0
    if opens > 0:
        return max(50 - opens, 33)
    return max(100 - left_on // 10 // 10, 50)


@jit
def _clustering(kinds: Ints, kind: int, left: int) -> int:
    if kind < 0:
        return 0
    different = 0
    for pods in kinds:
        if pods > 0:
            different += 1
    used = 25 * max(_GPU - left, 0) // _GPU
    if kinds[kind] > 0:
        return used + (75 if different == 1 else 50)
    return used + (25 if different == 0 else 0)


@jit
def _resource(which: int, old: bool, requested: int, capacity: int) -> int:
    """0..100 for one resource, as in ``kubernetes``; bin packing's shape is a straight line."""
    some = max(capacity, 1)
    if which == _LEAST:
        return (capacity - requested) * 100 // some if capacity >= requested else 0
    if which == _MOST:
        if requested > capacity:
            return 0 if old else min(requested, capacity) * 100 // some
        return requested * 100 // some
    if old:
        return 100 - max(capacity - requested, 0) * 100 // some
    return min(max(requested, 0) * 100 // some, 100)


@jit
def _allocation(which: int, old: bool, requested: Ints, capacity: Ints) -> int:
    """The mean over resources that count, rounded by ratio's own rule."""
    total = 0
    scores = 0
    for r in range(len(requested)):
        if capacity[r] == 0 and not old:
            continue
        score = _resource(which, old, requested[r], capacity[r])
        if which == _RATIO and score <= 0:
            continue
        total += 1
        scores += score
    if which == _RATIO:
        return (2 * scores + total) // max(2 * total, 1)
    return scores // max(total, 1)


@jit
def _rescore(
    which: int,
    old: bool,
    rows: Ints,
    number: Ints,
    cpu: Ints,
    cpu_left: Ints,
    memory: Ints,
    memory_left: Ints,
    gpus: Ints,
    gpu_left: Ints,
    kinds: Ints,
    model: Ints,
    accepted: Flags,  # [models], by the request
    ask_cpu: int,
    ask_memory: int,
    ask_gpus: int,
    ask_milli: int,
    kind: int,
    draw: np.uint64,
    value: Ints,  # written
    device: Ints,  # written
) -> None:
    shares = ask_gpus == 1 and ask_milli < WHOLE_GPU
    asked = ask_gpus * ask_milli
    start = _mixed(draw)
    requested, capacity = np.empty(3 if ask_gpus else 2, np.int64), np.empty(3 if ask_gpus else 2, np.int64)
    for row in rows:
        value[row] = NEVER
        device[row] = NO_DEVICE
        left = 0
        free = 0
        copies = 0
        for g in gpu_left[row]:
            if g > 0:
                left += g
                if ask_gpus > 0:
                    copies += g // ask_milli
            if g == WHOLE_GPU:
                free += 1
        if cpu_left[row] < ask_cpu or (ask_gpus > 0 and (copies < ask_gpus or not accepted[model[row]])):
            continue
        chosen = NO_DEVICE
        if shares:
            chosen = _device(which, gpu_left[row], ask_milli, start, int(number[row]))
        device[row] = chosen
        if which == _FIRST:
            value[row] = 0
        elif which == _RANDOM:
            value[row] = _lot(start, int(number[row]))
        elif which == _BESTFIT:
            rest = (cpu_left[row] - ask_cpu) * _GPU + (left - asked) * _CPU
            value[row] = 100 - -(-100 * rest // (2 * _CPU * _GPU))
        elif which == _PACKING:
            value[row] = _packing(gpu_left[row, chosen] if shares else 0, free, int(gpus[row]), ask_gpus, shares)
        elif which == _CLUSTERING:
            value[row] = _clustering(kinds[row], kind, left)
        elif which == _DOT:
            product = cpu_left[row] * ask_cpu + left * asked * (_CPU**2 // _GPU**2)
            value[row] = 100 - -(-100 * product // (2 * _CPU**2))
        else:
            requested[0], capacity[0] = cpu[row] - cpu_left[row] + (ask_cpu or _NO_CPU), cpu[row]
            requested[1], capacity[1] = memory[row] - memory_left[row] + (ask_memory or _NO_MEMORY), memory[row]
            if ask_gpus:
                requested[2], capacity[2] = gpus[row] * WHOLE_GPU - left + asked, gpus[row] * WHOLE_GPU
            value[row] = _allocation(which, old, requested, capacity)


def _rescorer(which: int, *, old: bool = False) -> Rescore:
    def rescore(view: View, rows: Ints, ask: TaskDemand, scoring: ScoringContext, scores: Scores) -> None:
        _rescore(
            which, old, rows, view.number, view.cpu, view.cpu_left, view.memory, view.memory_left, view.gpus,
            view.gpu_left, view.kinds, view.model,
            np.array([not ask.models or m in ask.models for m in view.models], np.bool_),
            ask.cpu, ask.memory, ask.gpus, ask.milli, -1 if ask.kind is None else ask.kind,
            np.uint64(scoring.draw % 2**64), scores.value, scores.device,
        )  # fmt: skip

    return rescore


RESCORE: dict[str, Rescore] = {
    "bestfit": _rescorer(_BESTFIT),
    "gpu-packing": _rescorer(_PACKING),
    "gpu-clustering": _rescorer(_CLUSTERING),
    "dot-product": _rescorer(_DOT),
    "random": _rescorer(_RANDOM),
    "first-fit": _rescorer(_FIRST),
    "most-allocated": _rescorer(_MOST),
    "most-allocated-1.20": _rescorer(_MOST, old=True),
    "least-allocated": _rescorer(_LEAST),
    "least-allocated-1.20": _rescorer(_LEAST, old=True),
    "requested-to-capacity-ratio": _rescorer(_RATIO),
    "requested-to-capacity-ratio-1.20": _rescorer(_RATIO, old=True),
}
