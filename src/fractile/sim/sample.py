"""A policy to which kube-scheduler shows only some of the nodes.

kube-scheduler goes through the nodes in a circle, from where it last stopped, until it has found enough that fit by its
own sums: ``percentageOfNodesToScore`` of all nodes, or, if that is not set, 50 - nodes/125 percent, at least 5; and at
least 100 nodes (evidence/kube-scheduler.md#sample-of-nodes). Its sums do not cover single cards, so none of these nodes
may have room. The pod is then retried, and the search goes on from there: here until all nodes have been shown once.
"""

import re

import numpy as np

from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.view import Flags, TaskDemand, View, roomy, total_left

ADAPTIVE = 0
_LEAST_NODES = 100
_LEAST_PERCENT = 5
_TEXT = re.compile(r"[0-9]{1,3}", re.ASCII)


def percent_of(text: str) -> int | None:
    """``adaptive`` or a percentage, 1 to 100; None when it is neither."""
    if text == "adaptive":
        return ADAPTIVE
    return int(text) if _TEXT.fullmatch(text) and 1 <= int(text) <= 100 else None


def text_of(percent: int) -> str:
    """The inverse of ``percent_of``."""
    return str(percent) if percent else "adaptive"


def enough(nodes: int, percent: int) -> int:
    """How many feasible nodes kube-scheduler looks for."""
    if nodes < _LEAST_NODES or percent >= 100:
        return nodes
    share = percent or max(_LEAST_PERCENT, 50 - nodes // 125)
    return max(_LEAST_NODES, nodes * share // 100)


class Sampled:
    """A score cache of which kube-scheduler shows a part; its nodes are in the order of the view's rows."""

    def __init__(self, score_cache: ScoreCache, view: View, percent: int) -> None:
        self._score_cache = score_cache
        self._view = view
        self._enough = enough(len(view.number), percent)
        self._start = 0
        self._models: dict[tuple[str, ...], Flags] = {}

    def changed(self, row: int) -> None:
        """Record that a node has changed."""
        self._score_cache.changed(row)

    def best(self, ask: TaskDemand, draw: int) -> Choice | None:
        """The best of the nodes shown."""
        fits = self._fits(ask)
        looked = 0
        while looked < len(fits):
            shown, seen = self._look(fits, len(fits) - looked)
            looked += seen
            choice = self._score_cache.best(ask, draw, shown=shown)
            if choice is not None:
                return choice
        return None

    def _look(self, fits: Flags, most: int) -> tuple[Flags, int]:
        """The nodes shown by one search, and how many nodes it passed, at most ``most``."""
        nodes = len(fits)
        circle = (self._start + np.arange(most)) % nodes
        found = np.cumsum(fits[circle])
        seen = min(most, int(np.searchsorted(found, self._enough)) + 1)
        shown = np.zeros(nodes, np.bool_)
        shown[circle[:seen]] = fits[circle[:seen]]
        self._start = (self._start + seen) % nodes
        return shown, seen

    def _fits(self, ask: TaskDemand) -> Flags:
        """The nodes that fit by their sums (CPU, memory, pods, GPUs) and by labels for models."""
        view = self._view
        fits = (view.cpu_left >= ask.cpu) & roomy(view, ask)
        if not ask.gpus:
            return fits
        return fits & (total_left(view) >= ask.total) & self._accepted(ask)

    def _accepted(self, ask: TaskDemand) -> Flags:
        if ask.models not in self._models:
            names = np.array([not ask.models or name in ask.models for name in self._view.models], np.bool_)
            self._models[ask.models] = names[self._view.model]
        return self._models[ask.models]
