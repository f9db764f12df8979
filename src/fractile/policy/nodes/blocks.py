"""Room for pods of several GPUs where pods come and go.

A node with eight free GPUs has a worth to pods that ask for eight. A node that lacks one still has some, since pods
leave it. For each class of pods with several GPUs, a node's worth is

    the class' share of demand x its GPUs x (how many such pods fit, or 0.7^n when none does)

where n is the number of GPUs that it lacks, or of dozens of CPUs, whichever is larger. The price of a placement is what
it takes away from that worth. Small pods then gather on nodes that are useless to large ones, and nearly empty nodes
become empty. If pods stay permanently, no node ever becomes empty, and the term is left out.
"""

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import WHOLE_GPU, Flags, Ints, View

CPUS = 12_000  # thousandths: about what a pod that holds a GPU frees when it leaves
_FADE = 700  # of 1000: the factor on the worth for each missing GPU
_MOST_LACKING = 24  # beyond it the worth is below a thousandth
_CLASSES = 32  # at most, those that ask for most


class Blocks(msgspec.Struct, frozen=True):
    """Shape [B] unless stated. A node on which one such pod fits is worth ``worth`` x 1000 in the unit of
    ``fgd_plus``."""

    gpus: Ints
    cpu: Ints
    worth: Ints
    access: Flags  # [models, B]
    fade: Ints  # [lacking], in thousandths


def blocks_of(mix: Mix, models: tuple[str, ...]) -> Blocks:
    """The blocks of a mix, from all its classes: those with several GPUs are rare, but large."""
    demand = max(1, sum(a.total * c for a, c in zip(mix.asks, mix.counts, strict=True)))
    several = [(a, c) for a, c in zip(mix.asks, mix.counts, strict=True) if a.gpus > 1]
    several = sorted(several, key=lambda ac: -ac[0].total * ac[1])[:_CLASSES]
    access = [[not a.models or m in a.models for a, _ in several] for m in models]
    return Blocks(
        gpus=_column([a.gpus for a, _ in several]),
        cpu=_column([max(1, a.cpu) for a, _ in several]),
        worth=_column([1000 * a.total * (a.total * c) // demand for a, c in several]),
        access=np.array(access, np.bool_).reshape(len(models), len(several)),
        fade=_column([_FADE**n * 1000 // 1000**n for n in range(_MOST_LACKING)]),
    )


def hold(view: View, cpu_left: Ints, gpu_left: Ints, row: Ints, blocks: Blocks) -> Ints:
    """The worth of nodes in a given state: ``cpu_left`` and ``row`` [R], ``gpu_left`` [R, D]; the rest from the
    view."""
    free = (gpu_left >= WHOLE_GPU).sum(axis=1)[:, None]
    fit = np.minimum(free // blocks.gpus, cpu_left[:, None] // blocks.cpu)
    lacking = np.maximum(blocks.gpus - free, -((cpu_left[:, None] - blocks.cpu) // CPUS))
    hope = blocks.fade[np.clip(lacking, 0, _MOST_LACKING - 1)]
    ever = (view.gpus[row][:, None] >= blocks.gpus) & (view.cpu[row][:, None] >= blocks.cpu)
    ever &= blocks.access[view.model[row]]
    return np.where(ever, np.where(fit > 0, fit * 1000, hope), 0) @ blocks.worth


def _column(values: list[int]) -> Ints:
    return np.array(values, np.int64)
