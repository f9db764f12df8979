"""The possible states of a node after a pod was placed on it: one for each device that makes a difference."""

import msgspec
import numpy as np

from fractile.policy.nodes.view import NEVER, NO_DEVICE, WHOLE_GPU, Flags, Ints, Scores, TaskDemand, View


class Candidates(msgspec.Struct, frozen=True):
    """Shape [C] unless stated, ordered by row and device. Of devices with equal amounts left, only the lowest index."""

    row: Ints
    device: Ints  # -1 unless a part of a GPU is asked for
    cpu_left: Ints
    gpu_left: Ints  # [C, D]
    model: Ints


def candidates(view: View, ask: TaskDemand) -> Candidates:
    """All ways to place the pod; none for a node whose devices have no room. CPU is not checked."""
    if ask.shares:
        row, device = np.nonzero(_different(view.gpu_left, ask.milli))
        gpu_left = view.gpu_left[row]
        gpu_left[np.arange(len(row)), device] -= ask.milli
    else:
        free = view.gpu_left >= WHOLE_GPU
        row = np.flatnonzero(free.sum(axis=1) >= ask.gpus)
        device = np.full(len(row), NO_DEVICE, np.int64)
        gpu_left = np.where(lowest(free[row], ask.gpus), view.gpu_left[row] - WHOLE_GPU, view.gpu_left[row])
    return Candidates(row, device, view.cpu_left[row] - ask.cpu, gpu_left, view.model[row])


def lowest(free: Flags, count: int) -> Flags:
    """``count`` of the free devices of each row, lowest index first."""
    return free & (free.cumsum(axis=1) <= count)


def best(view: View, found: Candidates, value: Ints) -> Scores:
    """The best candidate of each node; among equals the device with the lowest index."""
    table = np.full(view.gpu_left.shape if view.gpu_left.shape[1] else (len(view.number), 1), NEVER, np.int64)
    table[found.row, np.maximum(found.device, 0)] = value
    device = table.argmax(axis=1)
    top = table[np.arange(len(table)), device]
    given = len(found.device) > 0 and found.device[0] != NO_DEVICE
    return Scores(top, np.where(given & (top > NEVER), device, NO_DEVICE))


def _different(gpu_left: Ints, milli: int) -> Flags:
    """Devices with room for ``milli``, without those that have as much left as an earlier one."""
    different = gpu_left >= milli
    for d in range(1, gpu_left.shape[1]):
        different[:, d] &= (gpu_left[:, :d] != gpu_left[:, d, None]).all(axis=1)
    return different
