"""PodDisruptionBudgets: which pods may be away, and how many at a time (``k8s.io/kubernetes`` disruption
controller)."""

from collections.abc import Sequence
from fractions import Fraction

from fractile.errors import WireError
from fractile.policy.nodes.where import selects
from fractile.sim.snapshot.cluster_snapshot import SnapshotBudget, Task
from fractile.wire.kubernetes.manifests import DisruptionBudget


def budget_of(written: DisruptionBudget, bound: Sequence[Task], pending: Sequence[Task]) -> SnapshotBudget:
    """The budget as the controller reports it, or would if all running pods are healthy and the waiting ones expected.

    WireError when neither is known.
    """
    meta, spec = written.metadata, written.spec
    namespace = meta.namespace or "default"
    mine = [t for t in bound if t.namespace == namespace and selects(spec.selector, t.labels)]
    name = f"{namespace}/{meta.name}"
    if written.status is not None:
        return SnapshotBudget(name, frozenset(t.key for t in mine), max(0, written.status.disruptions_allowed))
    expected = len(mine) + sum(t.namespace == namespace and selects(spec.selector, t.labels) for t in pending)
    if spec.min_available is not None:
        desired = _scaled(spec.min_available, expected, "spec.minAvailable")
    else:
        away = 0 if spec.max_unavailable is None else spec.max_unavailable
        desired = expected - _scaled(away, expected, "spec.maxUnavailable")
    return SnapshotBudget(name, frozenset(t.key for t in mine), max(0, len(mine) - max(0, desired)))


def _scaled(value: int | str, of: int, field: str) -> int:
    """A number, or a percentage of ``of``, which the controller rounds up."""
    if isinstance(value, int):
        found = Fraction(value)
    elif value.endswith("%") and value[:-1].isdigit() and len(value) < 6:
        found = Fraction(int(value[:-1]) * of, 100)
    else:
        raise WireError(f"{field} is {value[:40]!r}; write a number or a percentage such as 50%")
    if found < 0:
        raise WireError(f"{field} is negative")
    return -int(-found // 1)
