"""The same scores as ``fgd_paper`` and ``fgd_plus``, compiled by numba: the optional extra ``fractile[fast]``.

Imported only if numba is installed. All functions compute in integers, so every number equals that of the numpy code,
which a test checks. One call scores some nodes for one request and writes into the score cache's own arrays. The other
policies are in ``compiled_nodes``.
"""

import msgspec
import numpy as np

from fractile.policy.nodes import compiled_nodes
from fractile.policy.nodes.blocks import CPUS, Blocks
from fractile.policy.nodes.fragmentation import Forecast
from fractile.policy.nodes.jit import jit
from fractile.policy.nodes.policies.fgd_plus import UNIT, weights_for
from fractile.policy.nodes.policy import Policy, Rescore, ScoringContext
from fractile.policy.nodes.view import NEVER, WHOLE_GPU, Flags, Ints, Scores, TaskDemand, View


@jit
def _fragment(
    cpu: int,
    gpu: Ints,
    access: Flags,  # [M], of the node's model
    cpus: Ints,
    gpus: Ints,
    size: Ints,
    sizes: Ints,
    weight: Ints,
    enough: Ints,  # [sizes], scratch
    small: Ints,  # [sizes], likewise
) -> int:
    """``fragments`` for one node."""
    left = 0
    for k in range(len(sizes)):
        enough[k] = 0
        small[k] = 0
    for g in gpu:
        if g > 0:
            left += g
        for k in range(len(sizes)):
            if g >= sizes[k]:
                enough[k] += 1
            elif g > 0:
                small[k] += g
    total = 0
    for m in range(len(cpus)):
        k = size[m]
        if access[m] and enough[k] >= gpus[m] and cpu >= cpus[m]:
            total += weight[m] * small[k]
        else:
            total += weight[m] * left
    return total


@jit
def _fragments(
    cpu_left: Ints,
    gpu_left: Ints,
    model: Ints,
    access: Flags,
    cpus: Ints,
    gpus: Ints,
    size: Ints,
    sizes: Ints,
    weight: Ints,
) -> Ints:
    out = np.empty(len(cpu_left), np.int64)
    enough, small = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    for r in range(len(cpu_left)):
        out[r] = _fragment(
            int(cpu_left[r]), gpu_left[r], access[model[r]], cpus, gpus, size, sizes, weight, enough, small
        )
    return out


@jit
def _falls(
    rows: Ints,
    cpu_left: Ints,
    gpu_left: Ints,
    model: Ints,
    accepted: Flags,  # [models], by the request
    ask_cpu: int,
    ask_gpus: int,
    ask_milli: int,
    access: Flags,
    cpus: Ints,
    gpus: Ints,
    size: Ints,
    sizes: Ints,
    weight: Ints,
    fall: Ints,  # [rows, D], written: F before minus F after with that device
    after: Ints,  # [rows], written: thousandths of GPUs left after
) -> None:
    """Compute every way to place the request; NEVER where there is none. Requests without a device choice use column
    0."""
    devices = gpu_left.shape[1]
    enough, small = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    gpu = np.empty(devices, np.int64)
    shares = ask_gpus == 1 and ask_milli < WHOLE_GPU
    for i in range(len(rows)):
        row = rows[i]
        left = 0
        free = 0
        for d in range(devices):
            fall[i, d] = NEVER
            g = gpu_left[row, d]
            if g > 0:
                left += g
            if g >= WHOLE_GPU:
                free += 1
        after[i] = left - ask_gpus * ask_milli
        cpu = int(cpu_left[row]) - ask_cpu
        if cpu < 0 or (ask_gpus > 0 and not accepted[model[row]]) or (not shares and free < ask_gpus):
            continue
        can = access[model[row]]
        before = _fragment(cpu + ask_cpu, gpu_left[row], can, cpus, gpus, size, sizes, weight, enough, small)
        if shares:
            for d in range(devices):
                g = gpu_left[row, d]
                if g < ask_milli:
                    continue
                for e in range(d):
                    if gpu_left[row, e] == g:
                        break
                else:
                    for e in range(devices):
                        gpu[e] = gpu_left[row, e]
                    gpu[d] = g - ask_milli
                    fall[i, d] = before - _fragment(cpu, gpu, can, cpus, gpus, size, sizes, weight, enough, small)
        else:
            wanted = ask_gpus
            for d in range(devices):
                gpu[d] = gpu_left[row, d]
                if wanted > 0 and gpu[d] >= WHOLE_GPU:
                    gpu[d] -= WHOLE_GPU
                    wanted -= 1
            fall[i, 0] = before - _fragment(cpu, gpu, can, cpus, gpus, size, sizes, weight, enough, small)


@jit
def _paper(rows: Ints, fall: Ints, steps: Ints, shares: bool, value: Ints, device: Ints) -> None:
    """The number of steps reached; the first of equally good devices."""
    for i in range(len(rows)):
        best = NEVER
        chosen = -1
        for d in range(fall.shape[1]):
            if fall[i, d] == NEVER:
                continue
            score = int(np.searchsorted(steps, int(fall[i, d]), side="right"))
            if score > best:
                best = score
                chosen = d if shares else -1
        value[rows[i]] = best
        device[rows[i]] = chosen


@jit
def _hold(
    cpu_left: int,
    free: int,
    devices: int,
    cpu: int,
    can: Flags,  # [B], of the node's model
    gpus: Ints,
    cpus: Ints,
    worth: Ints,
    fade: Ints,
) -> int:
    """``blocks.hold`` for one node."""
    total = 0
    for b in range(len(gpus)):
        if devices < gpus[b] or cpu < cpus[b] or not can[b]:
            continue
        fit = min(free // gpus[b], cpu_left // cpus[b])
        if fit > 0:
            total += fit * 1000 * worth[b]
        else:
            lacking = max(gpus[b] - free, -((cpu_left - cpus[b]) // CPUS), 0)
            total += fade[min(lacking, len(fade) - 1)] * worth[b]
    return total


@jit
def _block(
    rows: Ints,
    cpu_left: Ints,
    gpu_left: Ints,
    devices: Ints,
    cpu: Ints,
    model: Ints,
    ask_cpu: int,
    ask_gpus: int,
    gpus: Ints,
    cpus: Ints,
    worth: Ints,
    access: Flags,
    fade: Ints,
    loss: Ints,  # [rows, 2], written: if no device is opened, and if as many as requested are
) -> None:
    for i in range(len(rows)):
        row = rows[i]
        free = 0
        for g in gpu_left[row]:
            if g >= WHOLE_GPU:
                free += 1
        has, of, can = int(devices[row]), int(cpu[row]), access[model[row]]
        left = int(cpu_left[row])
        before = _hold(left, free, has, of, can, gpus, cpus, worth, fade)
        loss[i, 0] = before - _hold(left - ask_cpu, free, has, of, can, gpus, cpus, worth, fade)
        loss[i, 1] = before - _hold(left - ask_cpu, max(free - ask_gpus, 0), has, of, can, gpus, cpus, worth, fade)


@jit
def _stranded(cpu_left: int, gpu_left: int, wanted: int) -> int:
    """``stranding.stranded`` for one node."""
    needed = gpu_left * wanted // UNIT
    lacking = UNIT * max(min(needed - cpu_left, needed), 0) // max(needed, 1)
    return gpu_left * lacking * lacking // UNIT


@jit
def _reserved(cpu_left: int, gpu_left: int, gpus: int, wanted: int) -> int:
    """``reserve.reserved`` for one node."""
    needed = gpus * wanted // UNIT
    lacking = max(needed - max(cpu_left, 0) + gpu_left * wanted // (2 * UNIT), 0)
    return lacking * (UNIT * lacking // max(needed, 1)) // UNIT


@jit
def _plus(
    rows: Ints,
    fall: Ints,
    after: Ints,
    total: int,
    cpu_left: Ints,
    gpu_left: Ints,
    devices: Ints,
    model: Ints,
    ask_cpu: int,
    ask_total: int,
    shares: bool,
    worth: Ints,
    scarcity: Ints,
    largest_cpu: int,
    largest_gpu: int,
    full: int,
    cut: int,
    scarce: int,
    block: int,
    strand: int,  # in hundredths of percent
    reserve: int,  # for each thousandth of a CPU
    wanted: int,  # see ``stranding``
    loss: Ints,  # [rows, 2], see ``_block``
    value: Ints,
    device: Ints,
) -> None:
    """The terms of ``fgd_plus``."""
    for i in range(len(rows)):
        row = rows[i]
        cpu = cpu_left[row] - ask_cpu
        fullness = UNIT - UNIT * cpu // (2 * largest_cpu) - UNIT * after[i] // (2 * largest_gpu)
        node = full * fullness - scarce * ask_total * scarcity[model[row]] // 100
        more = _stranded(int(cpu), int(after[i]), wanted)
        more -= _stranded(int(cpu_left[row]), int(after[i]) + ask_total, wanted)
        node -= strand * more // 10_000
        if reserve:
            gpus = int(devices[row]) * WHOLE_GPU
            lack = _reserved(int(cpu), int(after[i]), gpus, wanted)
            lack -= _reserved(int(cpu_left[row]), int(after[i]) + ask_total, gpus, wanted)
            node -= reserve * lack
        best = NEVER
        chosen = -1
        for d in range(fall.shape[1]):
            if fall[i, d] == NEVER:
                continue
            score = int(fall[i, d]) * UNIT // total + node
            opens = 1
            if shares:
                g = gpu_left[row, d]
                score -= cut * 10 * (worth[g] - worth[g - ask_total])
                opens = 1 if g >= WHOLE_GPU else 0
            score -= block * loss[i, opens]
            if score > best:
                best = score
                chosen = d if shares else -1
        value[row] = best
        device[row] = chosen


def fragments(cpu_left: Ints, gpu_left: Ints, model: Ints, expected: Forecast) -> Ints:
    """``fragmentation.fragments``."""
    return _fragments(cpu_left, gpu_left, model, *_mix(expected))


def paper(view: View, rows: Ints, ask: TaskDemand, scoring: ScoringContext, scores: Scores) -> None:
    """``fgd_paper.score`` with ``feasible``, written into the rows of ``scores``."""
    fall, _ = _all_falls(view, rows, ask, scoring)
    _paper(rows, fall, scoring.expected.steps, ask.shares, scores.value, scores.device)


def plus(view: View, rows: Ints, ask: TaskDemand, scoring: ScoringContext, scores: Scores) -> None:
    """``fgd_plus`` with its usual weights, likewise."""
    fall, after = _all_falls(view, rows, ask, scoring)
    weights, largest = weights_for(scoring), scoring.largest
    _plus(
        rows, fall, after, scoring.expected.total, view.cpu_left, view.gpu_left, view.gpus, view.model,
        ask.cpu, ask.total, ask.shares, scoring.prices.value, scoring.scarcity,
        largest.cpu, largest.gpu, weights.full, weights.cut, weights.scarce, weights.block,
        weights.strand * scoring.beside.weight, weights.reserve * 10 * scoring.beside.weight,
        scoring.beside.wanted,
        _losses(view, rows, ask, scoring.blocks), scores.value, scores.device,
    )  # fmt: skip


def _losses(view: View, rows: Ints, ask: TaskDemand, blocks: Blocks | None) -> Ints:
    loss = np.zeros((len(rows), 2), np.int64)
    if blocks is not None:
        _block(
            rows, view.cpu_left, view.gpu_left, view.gpus, view.cpu, view.model, ask.cpu, ask.gpus,
            blocks.gpus, blocks.cpu, blocks.worth, blocks.access, blocks.fade, loss,
        )  # fmt: skip
    return loss


_RESCORE: dict[str, Rescore] = {"fgd-paper": paper, "fgd-plus": plus, **compiled_nodes.RESCORE}


def compiled(name: str, policy: Policy) -> Policy:
    """The policy with its compiled form, if there is one."""
    rescore = _RESCORE.get(name)
    return policy if rescore is None else msgspec.structs.replace(policy, rescore=rescore)


def _all_falls(view: View, rows: Ints, ask: TaskDemand, scoring: ScoringContext) -> tuple[Ints, Ints]:
    fall = np.empty((len(rows), view.gpu_left.shape[1]), np.int64)
    after = np.empty(len(rows), np.int64)
    accepted = np.array([not ask.models or m in ask.models for m in view.models], np.bool_)
    _falls(
        rows, view.cpu_left, view.gpu_left, view.model, accepted,
        ask.cpu, ask.gpus, ask.milli, *_mix(scoring.expected), fall, after,
    )  # fmt: skip
    return fall, after


def _mix(e: Forecast) -> tuple[Flags, Ints, Ints, Ints, Ints, Ints]:
    return e.access, e.cpu, e.gpus, e.size, e.sizes, e.weight
