"""Builders: nodes as columns, in the order of their arguments."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fractile.policy.nodes.view import KINDS, Ints, View


class Node(msgspec.Struct, frozen=True):
    """``left``: thousandths of each of its devices."""

    left: tuple[int, ...]
    cpu: int
    cpu_left: int
    memory: int
    memory_left: int
    model: str
    kinds: Mapping[int, int]


def node(
    *left: int,
    cpu: int = 96_000,
    cpu_left: int | None = None,
    memory: int = 393_216,
    memory_left: int | None = None,
    model: str = "T4",
    kinds: Mapping[int, int] | None = None,
) -> Node:
    """One node; what is not said to be left is left whole."""
    return Node(
        left,
        cpu,
        cpu if cpu_left is None else cpu_left,
        memory,
        memory if memory_left is None else memory_left,
        model,
        kinds or {},
    )


def view(*nodes: Node) -> View:
    """All nodes have room for any number of pods."""
    width = max(1, *(len(n.left) for n in nodes))
    models = tuple(sorted({n.model for n in nodes}))
    kinds = np.zeros((len(nodes), KINDS), np.int64)
    for i, n in enumerate(nodes):
        for kind, count in n.kinds.items():
            kinds[i, kind] = count
    return View(
        number=column(range(len(nodes))),
        cpu=column([n.cpu for n in nodes]),
        cpu_left=column([n.cpu_left for n in nodes]),
        memory=column([n.memory for n in nodes]),
        memory_left=column([n.memory_left for n in nodes]),
        gpus=column([len(n.left) for n in nodes]),
        gpu_left=np.array([[*n.left, *[-1] * (width - len(n.left))] for n in nodes], np.int64),
        model=column([models.index(n.model) for n in nodes]),
        kinds=kinds,
        slots_left=np.full(len(nodes), 1000, np.int64),
        models=models,
    )


def column(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
