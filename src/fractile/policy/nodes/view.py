"""The inputs of a score: the nodes as columns, and the request."""

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

WHOLE_GPU = 1000  # thousandths
NO_DEVICE = -1
NEVER = -(2**62)  # the value of a node that cannot take the pod
KINDS = 9  # index 0: a part of a GPU; 1..8: that many whole ones (8 also stands for more)


class TaskDemand(msgspec.Struct, frozen=True):
    """What a pod asks for. ``milli`` is per GPU: below 1000 for a part of one, else 1000."""

    cpu: int  # thousandths of a CPU
    memory: int  # MiB
    gpus: int = 0
    milli: int = 0
    models: tuple[str, ...] = ()  # accepted ones; empty: any

    @property
    def shares(self) -> bool:
        """Whether it asks for a part of one GPU."""
        return self.gpus == 1 and self.milli < WHOLE_GPU

    @property
    def total(self) -> int:
        """The sum over all its GPUs, in thousandths."""
        return self.gpus * self.milli

    @property
    def kind(self) -> int | None:
        """Column of ``View.kinds``; None for a pod without a GPU."""
        if self.gpus == 0:
            return None
        return 0 if self.shares else min(self.gpus, KINDS - 1)


class View(msgspec.Struct, frozen=True):
    """Nodes in the order in which ties are broken. Shape [N] unless stated; missing devices are -1."""

    number: Ints  # identifies the node; kept when rows are taken out
    cpu: Ints  # capacity
    cpu_left: Ints
    memory: Ints  # capacity, MiB
    memory_left: Ints
    gpus: Ints  # how many devices
    gpu_left: Ints  # [N, D], thousandths of each device
    model: Ints  # index into ``models``
    kinds: Ints  # [N, KINDS], pods that hold GPUs, by kind
    slots_left: Ints  # pods that kubelet would still accept
    models: tuple[str, ...]

    def take(self, rows: Ints) -> "View":
        """Copies of some rows."""
        return View(
            self.number[rows],
            self.cpu[rows],
            self.cpu_left[rows],
            self.memory[rows],
            self.memory_left[rows],
            self.gpus[rows],
            self.gpu_left[rows],
            self.model[rows],
            self.kinds[rows],
            self.slots_left[rows],
            self.models,
        )


class Scores(msgspec.Struct, frozen=True):
    """Per node: the score, the larger the better, and the device for a part of a GPU (-1 where none has room)."""

    value: Ints
    device: Ints


class Largest(msgspec.Struct, frozen=True):
    """The divisors of a node's CPU and GPUs where scores compare the two. The paper's: 128 CPUs and 8 GPUs."""

    cpu: int = 128_000
    gpu: int = 8_000


PAPER_LARGEST = Largest()


def total_left(view: View) -> Ints:
    """Thousandths of GPUs left on each node."""
    return np.maximum(view.gpu_left, 0).sum(axis=1)


def feasible(view: View, ask: TaskDemand) -> Flags:
    """Mask of nodes whose CPUs, GPUs and model allow the pod. Memory and pod slots: ``roomy``."""
    ok = view.cpu_left >= ask.cpu
    if ask.gpus:
        ok = ok & (_copies(view.gpu_left, ask.milli) >= ask.gpus) & _accessible(view, ask)
    return ok


def roomy(view: View, ask: TaskDemand) -> Flags:
    """Mask of nodes whose memory and number of pods allow the pod; no score depends on the latter."""
    return (view.memory_left >= ask.memory) & (view.slots_left > 0)


def _copies(gpu_left: Ints, milli: int) -> Ints:
    """How many parts of ``milli`` each device has room for, as the paper fills devices one after the other."""
    return np.where(gpu_left >= 0, gpu_left // milli, 0).sum(axis=1)


def _accessible(view: View, ask: TaskDemand) -> Flags:
    allowed = np.array([not ask.models or name in ask.models for name in view.models], np.bool_)
    return allowed[view.model]


def largest_of(view: View) -> Largest:
    """The cluster's own largest node, for scores that do not use the paper's constants."""
    return Largest(cpu=max(1, int(view.cpu.max(initial=1))), gpu=max(1, int(view.gpus.max(initial=1))) * WHOLE_GPU)
