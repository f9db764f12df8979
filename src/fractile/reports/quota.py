"""A report on quotas and their use, from the API server's objects. Pure: objects in, report out.

The control plane need not run: the same code that feeds its ledger feeds a ledger here. While the ConfigMap is
malformed, the control plane applies the quotas that it kept, and so does the report.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from fractile.dialects.agents import memory_unit
from fractile.errors import WireError
from fractile.ledger.ledger import Ledger
from fractile.ledger.usage import LedgerUsage
from fractile.model.card import Card
from fractile.model.quota import NamespaceQuota
from fractile.model.units import NodeName
from fractile.policy.quota import matches, under
from fractile.watch.event_handlers import PodHandlers
from fractile.watch.quotas import place_of
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.files import quota_file
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import ConfigMap, Node, Pod, ResourceQuota
from fractile.wire.output.quota_report import (
    HeldReport,
    LimitReport,
    NamespaceReport,
    QuotaReport,
    ResourceQuotaReport,
    State,
)

_OURS = ("class.fractile.dev/", "fractile.dev/", "aliyun.com/gpu-", "tencent.com/vcuda-", "nvidia.com/gpu")


class QuotaObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the API server. ``config``: None when there is no ConfigMap. ``kept``: the quotas that the
    control plane keeps, None when there are none. ``unread`` says what could not be read, and why."""

    cards: Sequence[ExtendedResource]
    nodes: Sequence[Node]
    pods: Sequence[Pod]
    config: ConfigMap | None = None
    kept: ConfigMap | None = None
    resource_quotas: Sequence[ResourceQuota] = ()
    unread: tuple[str, ...] = ()
    config_unread: bool = False


def report(objects: QuotaObjects, source: str, namespace: str = "") -> QuotaReport:
    """The report on one namespace, or on all that have a quota or hold something."""
    usage = _usage(objects)
    state, quotas, problems = _quotas(objects, source)
    held = _held(usage)
    resources = _resources(objects.resource_quotas)
    names = {namespace} if namespace else quotas.keys() | held.keys() | resources.keys()
    shown = {name: own for name, own in quotas.items() if name in names}
    return QuotaReport(
        source=source,
        state=state,
        namespaces=tuple(
            _namespace(name, quotas.get(name), usage, held.get(name, ()), resources.get(name, ()))
            for name in sorted(names)
        ),
        problems=(*objects.unread, *problems, *_pointless(shown, usage, objects.nodes)),
    )


def _usage(objects: QuotaObjects) -> LedgerUsage:
    cards = list(_cards(objects.cards))
    ledger = Ledger(lambda: 0.0)
    for node in objects.nodes:
        ledger.usage.put_place(NodeName(node.metadata.name), place_of(node.metadata))
    for node, card in cards:
        ledger.put_card(node, card)
    handlers = PodHandlers(
        ledger=ledger,
        waiting=WaitingPods(),
        unit=memory_unit(objects.nodes, cards),
        warn=lambda pod, reason, message: None,
        freed=lambda node: None,
        needs_repair=lambda pod: None,
    )
    for pod in objects.pods:
        handlers.changed(pod)
    return ledger.usage


def _cards(resources: Iterable[ExtendedResource]) -> Iterator[tuple[NodeName, Card]]:
    for resource in resources:
        try:
            yield extended_resource.to_card(resource)
        except WireError:
            continue  # ``fractile inspect`` reports those


def _quotas(objects: QuotaObjects, source: str) -> tuple[State, dict[str, NamespaceQuota], tuple[str, ...]]:
    if objects.config_unread:
        return "unreadable", {}, ()
    if objects.config is None:
        return "absent", {}, ()
    try:
        return "read", quota_file.decode(objects.config.data or {}, f"quota ConfigMap {source}"), ()
    except WireError as e:
        kept = _kept(objects.kept)
        if kept is None:
            return "malformed", {}, (f"{e}; the previous quotas were not kept, so no pod may be given a card",)
        return "malformed", kept, (f"{e}; the quotas that were read before it stay in force, and are shown here",)


def _kept(config: ConfigMap | None) -> dict[str, NamespaceQuota] | None:
    if config is None or not config.data:
        return None
    try:
        return quota_file.decode(config.data, "kept quotas")
    except WireError:
        return None


def _held(usage: LedgerUsage) -> dict[str, list[HeldReport]]:
    found: dict[str, list[HeldReport]] = {}
    for key, percent in sorted(usage.rows()):
        row = HeldReport(device_class=key.device_class, model=key.model, pool=key.pool, held_percent=percent)
        found.setdefault(key.namespace, []).append(row)
    return found


def _resources(quotas: Iterable[ResourceQuota]) -> dict[str, list[ResourceQuotaReport]]:
    """The quotas on Fractile's resources, by namespace."""
    found: dict[str, list[ResourceQuotaReport]] = {}
    for quota in sorted(quotas, key=lambda q: (q.metadata.namespace, q.metadata.name)):
        used = quota.status.used or {}
        for resource, hard in sorted((quota.status.hard or {}).items()):
            if resource.removeprefix("requests.").removeprefix("limits.").startswith(_OURS):
                row = ResourceQuotaReport(
                    name=quota.metadata.name, resource=resource, hard=str(hard), used=str(used.get(resource, "0"))
                )
                found.setdefault(quota.metadata.namespace, []).append(row)
    return found


def _namespace(
    name: str,
    own: NamespaceQuota | None,
    usage: LedgerUsage,
    held: Sequence[HeldReport],
    resources: Sequence[ResourceQuotaReport],
) -> NamespaceReport:
    limits = (own.limits if own else None) or ()
    return NamespaceReport(
        namespace=name,
        named=own is not None,
        pools=(own.pools if own else None) or (),
        limited=own is not None and own.limits is not None,
        limits=tuple(
            LimitReport(model=limit.name, limit_percent=limit.percent, held_percent=under(limit, usage.held(name)))
            for limit in limits
        ),
        held=tuple(held),
        resource_quotas=tuple(resources),
    )


def _pointless(quotas: dict[str, NamespaceQuota], usage: LedgerUsage, nodes: Iterable[Node]) -> Iterator[str]:
    """Pools and models that match nothing in the cluster: misspelled, or not there yet."""
    pools = {place_of(node.metadata).pool for node in nodes}
    kinds = list(usage.kinds())
    for namespace, own in sorted(quotas.items()):
        for pool in own.pools or ():
            if pool not in pools:
                yield f"namespace {namespace} may use pool {pool}, but no node is in that pool"
        for limit in own.limits or ():
            if limit.percent and not any(matches(limit.name, *kind.named) for kind in kinds):
                yield f"namespace {namespace} may hold {limit.name}, but the cluster has no such card"
