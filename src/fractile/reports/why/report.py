"""The report on one pod, from everything that was read. Pure: objects and the time in, report out."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from fractile.admission.hints import hints
from fractile.admission.validate import blind
from fractile.dialects import table
from fractile.dialects.near import misspelt
from fractile.errors import SetupError
from fractile.extender.policies import valid
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.reports.classes import ClassObjects, Picture
from fractile.reports.inspect import asked
from fractile.reports.quota import QuotaObjects
from fractile.reports.quota import report as quota_report
from fractile.reports.why import departed, eviction, nodes
from fractile.reports.why.cluster import ClusterView, quotas_in_force
from fractile.reports.why.holds import containers, holdings
from fractile.reports.why.leader import left_lease
from fractile.reports.why.nodes import NodeFindings
from fractile.reports.why.read import Read
from fractile.reports.why.times import age
from fractile.reports.why.unjudged import refused_by_scheduler
from fractile.reports.why.verdict import verdict
from fractile.sim.snapshot.build import NamedPod, snapshot_of
from fractile.sim.snapshot.cluster_snapshot import Snapshot
from fractile.wire.fractile import isolation
from fractile.wire.fractile.resource_class import class_of
from fractile.wire.kubernetes.why_objects import Event, ObservedPod
from fractile.wire.output.why import (
    ClassState,
    PodEvent,
    QuotaLimitReport,
    QuotaState,
    ResourceLimit,
    Scheduling,
    State,
    Why,
)

_EVENTS = 10


def report(read: Read, now: datetime, *, source: str) -> Why:
    """The report on the pod. SetupError if it neither asks for Fractile's resources nor uses a card."""
    pod = read.pod
    # 1. The cluster as the filter would see it, and what the pod asks for.
    quotas, problem = quotas_in_force(read, source)
    cluster = ClusterView(read)
    cluster.limit(quotas, problem if problem and not quotas else "")
    if cluster.parsed is None and not eviction.concerned(read):
        raise SetupError(_nothing_asked(read, cluster))
    # 2. Where the pod could go, if it is still pending.
    state = state_of(pod)
    notes: list[str] = [*read.unread, *_not_looked_at(pod)]
    answer = NodeFindings()
    if state == "pending" and isinstance(cluster.request, PodRequest):
        names = [n.metadata.name for _, n in read.objects.nodes]
        answer = _unless_refused(read, nodes.judge(cluster, pod, _alone(read, notes), names, quotas, problem))
    # 3. Everything that is known about it.
    request = cluster.parsed
    found = Why(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        uid=pod.metadata.uid,
        state=state,
        verdict="",
        age=age(pod.metadata.creation_timestamp or "", now),
        node=pod.spec.node_name,
        families=_families(request),
        asks=tuple(asked(c) for c in request.containers) if isinstance(request, PodRequest) else (),
        scheduling=_scheduling(pod),
        quota=_quota(read, cluster, source),
        classes=tuple(_classes(read, request)),
        fits=answer.fits,
        groups=answer.groups,
        changes=answer.changes,
        holds=tuple(holdings(read, cluster.ledger)),
        containers=tuple(containers(pod)),
        events=_events(read.events, now),
        notes=(
            *notes,
            *answer.notes,
            *(departed.notes(r for _, r in read.objects.cards) if state == "pending" else ()),
            *_unseeing(pod, request),
            *(hints(pod, request, valid) if state == "pending" else ()),
            *_placement_warnings(read, cluster),
            *eviction.notes(read, now),
            *_lease(read, answer, now),
        ),
    )
    return msgspec.structs.replace(found, verdict=verdict(found, cluster, read, now))


def state_of(pod: ObservedPod) -> State:
    """The stage of the pod's life."""
    if pod.finished:
        return "finished"
    if pod.metadata.deletion_timestamp:
        return "leaving"
    if not pod.spec.node_name:
        return "pending"
    return "running" if pod.status.phase == "Running" else "starting"


def _nothing_asked(read: Read, cluster: ClusterView) -> str:
    pod = read.pod
    key = f"{pod.metadata.namespace}/{pod.metadata.name}"
    others = table.parse_pod(pod, cluster.unit)
    if isinstance(others, PodRequest):
        return (
            f"pod {key} asks by the names of family {others.dialect}, which no agent of this cluster serves; the "
            f"system that serves them must place it (kubectl describe pod -n {pod.metadata.namespace} "
            f"{pod.metadata.name})"
        )
    if wrong := next(misspelt(pod), ""):
        return f"pod {key} asks for nothing of Fractile, and {wrong}"
    return (
        f"pod {key} asks for no GPU or other device of Fractile, so Fractile does not decide where it runs; see "
        f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name}"
    )


def _alone(read: Read, notes: list[str]) -> Snapshot:
    """The running pods, and this one as the only waiting pod: changes are judged by the cluster as it is."""
    meta = read.pod.metadata
    who = f"pod {meta.namespace}/{meta.name}"
    running = [n for n in read.objects.pods if n.pod.spec.node_name]
    objects = msgspec.structs.replace(read.objects, pods=[*running, NamedPod(who, read.pod)])

    def wrong(about: str, reason: str) -> None:
        if about == who or about.startswith("node "):
            notes.append(f"{about}: {reason}")

    return snapshot_of(objects, wrong)


def _unless_refused(read: Read, answer: NodeFindings) -> NodeFindings:
    """Remove the changes if kube-scheduler refuses the pod for another reason, since none would let it in."""
    beyond = refused_by_scheduler(read, ours=False) if answer.changes else ""
    if not beyond:
        return answer
    note = f"no change is named, because kube-scheduler also refuses it for another reason: {beyond}"
    return msgspec.structs.replace(answer, changes=(), notes=(*answer.notes, note))


def _not_looked_at(pod: ObservedPod) -> Iterator[str]:
    affinity = pod.spec.affinity
    if pod.spec.node_name:
        return
    if affinity and any(a and a.required for a in (affinity.pod_affinity, affinity.pod_anti_affinity)):
        yield "its affinity to other pods is not checked here; see kube-scheduler's message"
    if pod.spec.topology_spread_constraints:
        yield "its topology spread is not checked here; see kube-scheduler's message"


def _unseeing(pod: ObservedPod, request: PodRequest | Refusal | None) -> Iterator[str]:
    """The webhook's warning, repeated here: most pods are created by controllers, which do not show warnings."""
    note = blind(request, pod.blind) if isinstance(request, PodRequest) else ""
    if note:
        yield note


def _lease(read: Read, answer: NodeFindings, now: datetime) -> Iterator[str]:
    """The note about a leftover Lease, for a waiting pod."""
    note = "" if read.pod.spec.node_name else left_lease(read, answer.groups, now)
    if note:
        yield note


def _families(request: PodRequest | Refusal | None) -> tuple[str, ...]:
    if not isinstance(request, PodRequest):
        return ()
    owners = (table.owner(c.resource) for c in request.containers)
    return tuple(dict.fromkeys(o.name for o in owners if o is not None))


def _scheduling(pod: ObservedPod) -> Scheduling:
    condition = pod.scheduled
    gates = tuple(g.name for g in pod.spec.scheduling_gates or ())
    return Scheduling(
        scheduler=pod.spec.scheduler_name or "default-scheduler",
        seen=bool(pod.spec.node_name) or (condition is not None and condition.reason != "SchedulingGated"),
        message=condition.message if condition else "",
        gates=gates,
        nominated=pod.status.nominated_node_name,
    )


def _quota(read: Read, cluster: ClusterView, source: str) -> QuotaState:
    namespace = read.pod.metadata.namespace
    objects = QuotaObjects(
        cards=[r for _, r in read.objects.cards],
        nodes=[n for _, n in read.objects.nodes],
        pods=[n.pod for n in read.objects.pods if n.pod.metadata.namespace == namespace],
        config=read.config,
        kept=read.kept,
        resource_quotas=read.resource_quotas,
        config_unread=read.config_unread,
    )
    found = quota_report(objects, source, namespace)
    own = found.namespaces[0]
    return QuotaState(
        state=found.state,
        limits=tuple(
            QuotaLimitReport(model=limit.model, limit_percent=limit.limit_percent, held_percent=limit.held_percent)
            for limit in own.limits
        ),
        pools=own.pools,
        resources=tuple(
            ResourceLimit(name=r.name, resource=r.resource, hard=r.hard, used=r.used) for r in own.resource_quotas
        ),
        refusal="" if read.pod.spec.node_name else cluster.refused_by_quota(),
    )


def _classes(read: Read, request: PodRequest | Refusal | None) -> Iterator[ClassState]:
    names = dict.fromkeys(_class_names(read.pod, request))
    if not names:
        return
    picture = Picture(
        ClassObjects(
            cards=[r for _, r in read.objects.cards],
            classes=read.objects.classes,
            nodes=[n for _, n in read.objects.nodes],
            pods=[n.pod for n in read.objects.pods],
        )
    )
    for name in names:
        found = next(iter(picture.classes(name).classes if name in picture.book.entries else ()), None)
        if found is None:
            yield ClassState(name=name, exists=False, message="there is no class of that name")
            continue
        yield ClassState(
            name=name,
            exists=True,
            devices=found.devices.total,
            units=found.units.total,
            free_units=found.units.free,
            message=found.message,
        )


def _class_names(pod: ObservedPod, request: PodRequest | Refusal | None) -> Iterator[str]:
    if isinstance(request, PodRequest):
        for container in request.containers:
            yield from filter(None, container.request.device_class.split(","))
        return
    for _, container in table.containers_in_order(pod):
        for resource in (container.resources and container.resources.limits) or ():
            name = class_of(resource)
            if name is not None:
                yield name


def _placement_warnings(read: Read, cluster: ClusterView) -> Iterator[str]:
    pod = read.pod
    warning = cluster.placement_warnings.get(PodUID(pod.metadata.uid))
    if warning is not None:
        yield warning
    state = (pod.metadata.annotations or {}).get(isolation.STATE)
    if state is not None and pod.spec.node_name:
        yield f"its limits are not enforced: {isolation.reason(state)}"
    if read.webhook is False and isinstance(cluster.parsed, Refusal) and any(_class_names(pod, cluster.parsed)):
        yield (
            "Fractile's webhook is not registered, so what a class needs is not added to pods (docs/operate/webhook.md)"
        )


def _events(events: Sequence[Event], now: datetime) -> tuple[PodEvent, ...]:
    newest = sorted(events, key=lambda e: (e.last, e.metadata.name), reverse=True)[:_EVENTS]
    return tuple(
        PodEvent(
            age=age(e.last, now),
            count=e.times,
            type=e.type,
            reason=e.reason,
            source=e.reporting_component or e.source.component,
            message=e.message,
        )
        for e in newest
    )
