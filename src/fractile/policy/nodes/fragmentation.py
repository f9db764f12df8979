"""How much of a node's GPUs the expected pods could not use (FGD, USENIX ATC'23; packing facts: the artefact's code).

For a class m of the mix, a node's fragment is all that is left on its GPUs if m could not run there (no GPU requested,
wrong model, too few devices with room, too little CPU), else what is left on devices that are too small for m. F is the
sum over the classes, each weighted by its expected number. F stays an integer: thousandths of a GPU times the number of
expected pods.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import Flags, Ints, TaskDemand, View

_STEEPNESS = 1000.0  # thousandths of a GPU
_PIECE = 4096  # rows at a time, so that the intermediate arrays stay in the processor's cache


class Forecast(msgspec.Struct, frozen=True):
    """A mix as columns, for the models of one cluster. Shape [M] unless stated."""

    cpu: Ints
    gpus: Ints
    size: Ints  # index into ``sizes``
    sizes: Ints  # different amounts of a GPU that classes ask for
    weight: Ints
    total: int
    access: Flags  # [models, M]: the class asks for GPUs and takes this model
    steps: Ints  # [99], see ``_steps``


def forecast(mix: Mix, models: Sequence[str]) -> Forecast:
    """Lay out a mix as columns; ``models`` are the names that ``View.model`` indexes."""
    sizes = sorted({a.milli for a in mix.asks if a.gpus}) or [1]
    place = {s: i for i, s in enumerate(sizes)}
    return Forecast(
        cpu=_column([a.cpu for a in mix.asks]),
        gpus=_column([a.gpus for a in mix.asks]),
        size=_column([place.get(a.milli, 0) for a in mix.asks]),
        sizes=_column(sizes),
        weight=_column(mix.counts),
        total=max(1, mix.total),
        access=np.array([[_takes(a, m) for a in mix.asks] for m in models], np.bool_).reshape(
            len(models), len(mix.asks)
        ),
        steps=_steps(max(1, mix.total)),
    )


def _steps(total: int) -> Ints:
    """The least fall of F, in thousandths times ``total``, that gets a score of 1..99 in the paper's code, which
    truncates 100 x sigmoid(fall / 1000 thousandths). The sigmoid is inverted once, so that decisions compare
    integers."""
    return np.array([math.ceil(_STEEPNESS * total * math.log(s / (100 - s))) for s in range(1, 100)], np.int64)


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def _takes(ask: TaskDemand, model: str) -> bool:
    return ask.gpus > 0 and (not ask.models or model in ask.models)


def fragments(cpu_left: Ints, gpu_left: Ints, model: Ints, expected: Forecast) -> Ints:
    """F of each row: ``cpu_left`` and ``model`` [R], ``gpu_left`` [R, D]. In thousandths times ``expected.total``."""
    if len(cpu_left) > _PIECE:
        pieces = range(0, len(cpu_left), _PIECE)
        cut = [slice(i, i + _PIECE) for i in pieces]
        return np.concatenate([fragments(cpu_left[c], gpu_left[c], model[c], expected) for c in cut])
    left = np.maximum(gpu_left, 0)
    total = left.sum(axis=1)
    served, small = _served(cpu_left, gpu_left, model, expected)
    useful = np.where(served, total[:, None] - small, 0)
    return total * expected.total - useful @ expected.weight


def _served(cpu_left: Ints, gpu_left: Ints, model: Ints, expected: Forecast) -> tuple[Flags, Ints]:
    """[R, M]: whether the class could run there, and what is left on devices too small for it."""
    fits = gpu_left[:, :, None] >= expected.sizes
    enough = fits.sum(axis=1)
    small = np.where(fits, 0, np.maximum(gpu_left, 0)[:, :, None]).sum(axis=1)
    served = (
        (enough[:, expected.size] >= expected.gpus)
        & (cpu_left[:, None] >= expected.cpu)
        & expected.access[model]
    )  # fmt: skip
    return served, small[:, expected.size]


class Causes(msgspec.Struct, frozen=True):
    """F of all nodes by cause, in the unit of ``fragments``; the sum of all is F."""

    no_gpu_asked: int  # for classes that want CPU only, every GPU is a fragment
    wrong_model: int
    lack_gpu: int  # too few devices with room
    lack_cpu: int
    sharing_remainder: int  # the class could run there, but not on these devices


def causes(view: View, expected: Forecast) -> Causes:
    """Why the remaining GPUs cannot be used. A class that lacks both GPUs and CPU counts as lacking GPUs."""
    total = np.maximum(view.gpu_left, 0).sum(axis=1)[:, None]
    served, small = _served(view.cpu_left, view.gpu_left, view.model, expected)
    asks = expected.gpus > 0
    access = expected.access[view.model]
    enough = (view.gpu_left[:, :, None] >= expected.sizes).sum(axis=1)[:, expected.size] >= expected.gpus

    def sum_of(where: Flags, amount: Ints) -> int:
        return int((np.where(where, amount, 0).sum(axis=0) * expected.weight).sum())

    return Causes(
        no_gpu_asked=sum_of(np.broadcast_to(~asks, served.shape), total),
        wrong_model=sum_of(asks & ~access, total),
        lack_gpu=sum_of(access & ~enough, total),
        lack_cpu=sum_of(access & enough & ~served, total),
        sharing_remainder=sum_of(served, small),
    )
