"""How many of the best nodes the filter names, once more fit than kube-scheduler can use.

A node that is named alone is chosen: kube-scheduler then requests no scores, neither ours nor those of its own plugins.
That saves one exchange of three, and its scoring of a hundred nodes. There are two grounds for naming one node.

A *lead*: the best node is better than every other by so many of our ten steps that all other scores together cannot
make up for it, so the decision is the same. kube-scheduler counts a step as ten times the extender's weight, and the
score of a plugin as up to 100 times the plugin's weight (kubernetes: pkg/scheduler/schedule_one.go). The weights are
those of a profile in its configuration, which we cannot read, so leads are given by profile (``clear_lead`` there).

``most``: the administrator limits the number of names. Then kube-scheduler's own preferences decide nothing, except for
pods that have preferences themselves.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from fractile.extender.filter import BEST
from fractile.ledger.arrays import Ints
from fractile.wire.kubernetes.extender import AskedPod, prefers
from fractile.wire.kubernetes.scheduler_config import DEFAULT_PROFILE


class Naming(msgspec.Struct, frozen=True):
    """``most``: names in an answer. ``leads``: by profile of kube-scheduler; pods of other profiles have no lead."""

    most: int = BEST
    leads: Mapping[str, int] = {}

    def concerns(self, pod: AskedPod) -> bool:
        """Whether an answer for the pod could have fewer names than ``BEST``."""
        return self._lead(pod) > 0 or self._most(pod) < BEST

    def chosen(self, pod: AskedPod, names: list[str], scores: Ints) -> list[str]:
        """The names of the answer; the best first if some are left out."""
        order = np.argsort(-scores, kind="stable")
        most, lead = self._most(pod), self._lead(pod)
        if lead and len(names) > 1 and int(scores[order[0]]) - int(scores[order[1]]) >= lead:
            most = 1
        return names if most >= len(names) else [names[i] for i in order[:most].tolist()]

    def _lead(self, pod: AskedPod) -> int:
        return self.leads.get(pod.spec.scheduler_name or DEFAULT_PROFILE, 0) if self.leads else 0

    def _most(self, pod: AskedPod) -> int:
        return self.most if self.most < BEST and not prefers(pod) else BEST
