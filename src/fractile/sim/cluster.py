"""A cluster in arrays on which pods are placed and released. Asserts that no amount goes below zero."""

from collections.abc import Sequence

import msgspec
import numpy as np

from fractile.policy.nodes.candidates import lowest
from fractile.policy.nodes.score_cache import Choice
from fractile.policy.nodes.view import KINDS, NO_DEVICE, WHOLE_GPU, Ints, TaskDemand, View
from fractile.sim.snapshot.trace import NodeRow

POD_SLOTS = 1001  # per node, as in the published experiments


class TaskPlace(msgspec.Struct, frozen=True):
    """Where a pod is: its row and its devices."""

    row: int
    devices: tuple[int, ...]


class Cluster:
    """One cluster. Policies see it through ``view``, which changes with it."""

    def __init__(self, nodes: Sequence[NodeRow], *, pod_slots: int = POD_SLOTS) -> None:
        self.view = _empty(nodes, pod_slots)
        self.capacity = int(self.view.gpus.sum()) * WHOLE_GPU
        self.allocated = 0  # thousandths of GPUs

    def place(self, ask: TaskDemand, choice: Choice) -> TaskPlace:
        """Take the requested amounts on the chosen node."""
        held = TaskPlace(choice.row, self._devices(ask, choice))
        self._change(ask, held, -1)
        return held

    def release(self, ask: TaskDemand, held: TaskPlace) -> None:
        """Give the amounts back."""
        self._change(ask, held, 1)

    def _devices(self, ask: TaskDemand, choice: Choice) -> tuple[int, ...]:
        if ask.gpus == 0:
            return ()
        if ask.shares:
            assert choice.device != NO_DEVICE
            return (choice.device,)
        free = self.view.gpu_left[choice.row : choice.row + 1] == WHOLE_GPU
        return tuple(int(d) for d in np.flatnonzero(lowest(free, ask.gpus)[0]))

    def _change(self, ask: TaskDemand, held: TaskPlace, sign: int) -> None:
        view, row = self.view, held.row
        view.cpu_left[row] += sign * ask.cpu
        view.memory_left[row] += sign * ask.memory
        view.slots_left[row] += sign
        for device in held.devices:
            view.gpu_left[row, device] += sign * ask.milli
            assert 0 <= view.gpu_left[row, device] <= WHOLE_GPU
        if ask.kind is not None:
            view.kinds[row, ask.kind] -= sign
        self.allocated -= sign * ask.total
        assert len(held.devices) == ask.gpus
        assert view.cpu_left[row] >= 0
        assert view.memory_left[row] >= 0


def _empty(nodes: Sequence[NodeRow], pod_slots: int) -> View:
    models = tuple(sorted({n.model for n in nodes}))
    gpus = _column([n.gpus for n in nodes])
    devices = np.arange(max(1, int(gpus.max(initial=0))))
    cpu, memory = _column([n.cpu for n in nodes]), _column([n.memory for n in nodes])
    return View(
        number=np.arange(len(nodes), dtype=np.int64),
        cpu=cpu,
        cpu_left=cpu.copy(),
        memory=memory,
        memory_left=memory.copy(),
        gpus=gpus,
        gpu_left=np.where(devices < gpus[:, None], WHOLE_GPU, -1).astype(np.int64),
        model=_column([models.index(n.model) for n in nodes]),
        kinds=np.zeros((len(nodes), KINDS), np.int64),
        slots_left=np.full(len(nodes), pod_slots, np.int64),
        models=models,
    )


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
