"""The control plane's figures for Prometheus: a snapshot of ledger and quotas, made on request."""

import asyncio
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from fractile import __version__
from fractile.door.seldom import HANDSHAKES
from fractile.ledger.ledger import Ledger
from fractile.ledger.usage import LedgerUsage
from fractile.metrics.control_plane import ControlPlaneFigures, Limited, NamespaceHold, PlacementFigures
from fractile.policy.quota import under
from fractile.watch.waiting_pods import WaitingPods

_STATM = Path("/proc/self/statm")
_FDS = Path("/proc/self/fd")


def figures(
    ledger: Ledger,
    waiting: WaitingPods,
    *,
    ready: bool,
    quota_problem: str,
    placement: PlacementFigures | None = None,
    insecure_open: bool = False,
    faults: Mapping[str, int] | None = None,
    certified: bool | None = None,
    statm: Path = _STATM,
) -> ControlPlaneFigures:
    """``quota_problem``: what is wrong with the current ConfigMap of quotas, "" for nothing. ``certified``: whether the
    webhook holds a certificate; None: there is no webhook."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    known = ledger.statistics()
    return ControlPlaneFigures(
        version=__version__,
        ready=ready,
        insecure_open=insecure_open,
        certified=certified,
        failed_handshakes=HANDSHAKES.total,
        nodes=known.nodes,
        cards=known.cards,
        assumed=known.assumed,
        bound=known.bound,
        conflicts=known.conflicts,
        drifted=known.drifted,
        faults=faults or {},
        waiting=len(waiting),
        quota_read=not quota_problem,
        quota_namespaces=len(ledger.usage.quota.namespaces),
        cpu=spent.ru_utime + spent.ru_stime,
        resident=_resident(statm),
        descriptors=_descriptors(),
        tasks=_tasks(),
        placement=placement,
        limits=list(limits(ledger.usage)),
        held=[
            NamespaceHold(key.namespace, key.device_class, key.label or key.model, key.pool, percent)
            for key, percent in sorted(ledger.usage.rows())
        ],
    )


def limits(usage: LedgerUsage) -> Iterator[Limited]:
    """Every limit of the quotas in force, and what is held of it."""
    for namespace, own in sorted(usage.quota.namespaces.items()):
        held = usage.held(namespace)
        for limit in own.limits or ():
            yield Limited(namespace, limit.name, limit.percent, under(limit, held))


def _resident(statm: Path) -> int | None:
    try:
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def _descriptors() -> int | None:
    try:
        return len(os.listdir(_FDS)) - 1  # without the one that lists them
    except OSError:
        return None


def _tasks() -> int | None:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # called outside the event loop
        return None
