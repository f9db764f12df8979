"""Fragmentation, fullness, the price of a cut and the scarcity of a model in one unit: millionths of a thousandth of
a GPU.

    (F before - F after) + 60 x B - 2 x 1000 x O - 0.45 x requested thousandths x rho - 0.1 x S

``B`` (0..1): how full the node is after the pod, CPU and GPUs weighted equally; F alone does not prefer nodes in use.
``O``: what the device loses in worth to pods that share GPUs (``prices``). ``rho``: how much others need this model
(``scarcity``). ``S``: how much more of the node's GPUs will be left over for lack of CPU (``stranding``). Where pods
come and go, rho has the weight 1.5 and S the weight 0, and two more terms are subtracted: 15 times what the node loses
in worth to pods of several GPUs (``blocks``), and a thousandth of a GPU for each further CPU that its GPUs lack
(``reserve``). The weights are in ``Weights``; they suit all clusters.
"""

import msgspec
import numpy as np

from fractile.policy.nodes.blocks import hold
from fractile.policy.nodes.candidates import Candidates, best, candidates
from fractile.policy.nodes.fragmentation import fragments
from fractile.policy.nodes.policy import Policy, Score, ScoringContext
from fractile.policy.nodes.reserve import reserved
from fractile.policy.nodes.stranding import stranded
from fractile.policy.nodes.view import WHOLE_GPU, Ints, Scores, TaskDemand, View, total_left

UNIT = 1_000_000  # in one thousandth of a GPU


class Weights(msgspec.Struct, frozen=True):
    """``full``: worth of a full node in thousandths of a GPU; ``cut``, ``scarce`` and ``strand``: percent; ``block``: a
    factor; ``reserve``: worth of a CPU in thousandths of a GPU."""

    full: int = 60
    cut: int = 200
    scarce: int = 45
    block: int = 0  # counts only where pods leave
    strand: int = 10  # counts only where they stay
    reserve: int = 0  # counts only where pods leave


STAYING = Weights()
LEAVING = Weights(scarce=150, block=15, strand=0, reserve=1)


def weights_for(scoring: ScoringContext) -> Weights:
    """The weights, depending on whether pods leave."""
    return STAYING if scoring.blocks is None else LEAVING


def gain(view: View, found: Candidates, scoring: ScoringContext) -> Ints:
    """The fall of F, in millionths of a thousandth."""
    expected = scoring.expected
    before = fragments(view.cpu_left, view.gpu_left, view.model, expected)
    after = fragments(found.cpu_left, found.gpu_left, found.model, expected)
    return (before[found.row] - after) * UNIT // expected.total


def fullness(found: Candidates, scoring: ScoringContext) -> Ints:
    """B in millionths: 1 when CPU and GPUs are used up, 0 for the largest node when it is empty."""
    largest = scoring.largest
    gpu_left = np.maximum(found.gpu_left, 0).sum(axis=1)
    return UNIT - UNIT * found.cpu_left // (2 * largest.cpu) - UNIT * gpu_left // (2 * largest.gpu)


def cut(view: View, ask: TaskDemand, found: Candidates, scoring: ScoringContext) -> Ints:
    """O in millionths of a GPU; nothing for whole GPUs."""
    if not ask.shares:
        return np.zeros(len(found.row), np.int64)
    value = scoring.prices.value
    after = found.gpu_left[np.arange(len(found.row)), found.device]
    return value[after + ask.milli] - value[after]


def strand(view: View, ask: TaskDemand, found: Candidates, scoring: ScoringContext) -> Ints:
    """How much more of each node's GPUs will be left over for lack of CPU."""
    left = total_left(view)
    before = stranded(view.cpu_left, left, scoring.beside.wanted)
    return stranded(found.cpu_left, left[found.row] - ask.total, scoring.beside.wanted) - before[found.row]


def block(view: View, found: Candidates, scoring: ScoringContext) -> Ints:
    """What each node loses in worth to pods of several GPUs."""
    if scoring.blocks is None:
        return np.zeros(len(found.row), np.int64)
    before = hold(view, view.cpu_left, view.gpu_left, np.arange(len(view.number)), scoring.blocks)
    return before[found.row] - hold(view, found.cpu_left, found.gpu_left, found.row, scoring.blocks)


def reserve(view: View, ask: TaskDemand, found: Candidates, scoring: ScoringContext) -> Ints:
    """How much more CPU each node's GPUs lack, those in use included; in thousandths."""
    wanted, left, gpus = scoring.beside.wanted, total_left(view), view.gpus * WHOLE_GPU
    before = reserved(view.cpu_left, left, gpus, wanted)
    return reserved(found.cpu_left, left[found.row] - ask.total, gpus[found.row], wanted) - before[found.row]


def with_weights(chosen: Weights | None = None) -> Score:
    """The score; other weights are for studies."""

    def score(view: View, ask: TaskDemand, scoring: ScoringContext) -> Scores:
        weights = weights_for(scoring) if chosen is None else chosen
        found = candidates(view, ask)
        value = gain(view, found, scoring)
        value += weights.full * fullness(found, scoring)
        value -= weights.cut * 10 * cut(view, ask, found, scoring)
        if weights.strand * scoring.beside.weight:
            value -= weights.strand * scoring.beside.weight * strand(view, ask, found, scoring) // 10_000
        if weights.reserve * scoring.beside.weight:
            value -= weights.reserve * 10 * scoring.beside.weight * reserve(view, ask, found, scoring)
        value -= weights.block * block(view, found, scoring)
        value -= weights.scarce * ask.total * scoring.scarcity[found.model] // 100
        return best(view, found, value)

    return score


POLICY = Policy(with_weights(), unit=1)
