"""Choose a node's device for a part of a GPU, where the score does not. Ties: the lowest index."""

from collections.abc import Callable

import numpy as np

from fractile.policy.nodes.noise import noise
from fractile.policy.nodes.view import NO_DEVICE, WHOLE_GPU, Ints, TaskDemand, View

Choice = Callable[[View, TaskDemand, int], Ints]  # the number is the decision's, for random choices

_NEVER = np.int64(2**62)


def tightest(view: View, ask: TaskDemand, draw: int) -> Ints:
    """The device with room that has least left."""
    return _smallest(view, ask, view.gpu_left)


def widest(view: View, ask: TaskDemand, draw: int) -> Ints:
    """The device with room that has most left."""
    return _smallest(view, ask, -view.gpu_left)


def first(view: View, ask: TaskDemand, draw: int) -> Ints:
    """The device with room that has the lowest index."""
    return _smallest(view, ask, np.zeros_like(view.gpu_left))


def lots(view: View, ask: TaskDemand, draw: int) -> Ints:
    """A random device with room, all equally likely."""
    devices = np.arange(view.gpu_left.shape[1], dtype=np.int64)
    return _smallest(view, ask, noise(draw, view.number[:, None] * 64 + devices + (1 << 40)))


def untouched(view: View, ask: TaskDemand, draw: int) -> Ints:
    """The first unused device."""
    return _smallest(view, ask, np.where(view.gpu_left == WHOLE_GPU, 0, _NEVER))


CHOICES: dict[str, Choice] = {
    "tightest": tightest,
    "widest": widest,
    "first": first,
    "spread": widest,
    "exclusive": untouched,
    "random": lots,
}


def _smallest(view: View, ask: TaskDemand, key: Ints) -> Ints:
    if not ask.shares:
        return np.full(len(view.number), NO_DEVICE, np.int64)
    room = (view.gpu_left >= ask.milli) & (key < _NEVER)
    device = np.where(room, key, _NEVER).argmin(axis=1)
    return np.where(room.any(axis=1), device, NO_DEVICE)
