"""Room for pods of several GPUs where pods come and go.

A node with eight free GPUs is worth something to the pods that want eight, and a node that lacks one of them still has
hope: pods leave it. For each class of pods with several GPUs a node is worth

    the class' share of demand x its GPUs x (how many such pods fit, or 0.7^n when none does)

where n is how many GPUs it lacks, or dozens of CPUs, whichever is more. What a placement takes away from that worth is
its price. Small pods then gather on nodes that are of no use to large ones, and nodes that are nearly empty become
empty. Where pods stay for ever no node ever becomes empty, and the term is left out.
"""

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import WHOLE_GPU, Flags, Ints, View

CPUS = 12_000  # thousandths: about what leaves with a pod that holds a GPU
_FADE = 700  # of 1000: what is left of the worth for each GPU that is lacking
_MOST_LACKING = 24  # below a thousandth after that
_CLASSES = 32  # at most, those that ask for most


class Blocks(msgspec.Struct, frozen=True):
    """[B] unless said. A node on which one such pod fits is worth ``worth`` x 1000 of the unit of ``fgd_plus``."""

    gpus: Ints
    cpu: Ints
    worth: Ints
    access: Flags  # [models, B]
    fade: Ints  # [lacking], in thousandths


def blocks_of(mix: Mix, models: tuple[str, ...]) -> Blocks:
    """From all classes of the mix: those with several GPUs are rare, and large."""
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
    """The worth of nodes in some state: ``cpu_left`` and ``row`` [R], ``gpu_left`` [R, D]; the rest is the view's."""
    free = (gpu_left >= WHOLE_GPU).sum(axis=1)[:, None]
    fit = np.minimum(free // blocks.gpus, cpu_left[:, None] // blocks.cpu)
    lacking = np.maximum(blocks.gpus - free, -((cpu_left[:, None] - blocks.cpu) // CPUS))
    hope = blocks.fade[np.clip(lacking, 0, _MOST_LACKING - 1)]
    ever = (view.gpus[row][:, None] >= blocks.gpus) & (view.cpu[row][:, None] >= blocks.cpu)
    ever &= blocks.access[view.model[row]]
    return np.where(ever, np.where(fit > 0, fit * 1000, hope), 0) @ blocks.worth


def _column(values: list[int]) -> Ints:
    return np.array(values, np.int64)
