"""The one sentence that says why a pod waits, or the state of a placed pod. Pure.

It is the first of these that holds: the pod has a node, has finished or is being deleted; scheduling gates hold it
back; its request is invalid; its class or its quota refuses it; nothing shows that a control plane leads;
kube-scheduler cannot call the extender; no scheduler has tried it; it is nominated to a node; kube-scheduler refuses it
for a reason that Fractile does not check; some node fits; no node fits.
"""

from collections.abc import Sequence
from datetime import datetime

from fractile.model.refusal import Refusal
from fractile.reports.why import eviction
from fractile.reports.why.cluster import ClusterView
from fractile.reports.why.last_call import closed
from fractile.reports.why.leader import leaderless
from fractile.reports.why.read import Read
from fractile.reports.why.times import since_deletion, span
from fractile.reports.why.unjudged import refused_by_scheduler
from fractile.wire.kubernetes.queued import GATE, nominated_by_us
from fractile.wire.output.why import RefusingNodes, Why

_PATIENCE = 30.0  # seconds within which any scheduler has tried a new pod


def verdict(why: Why, cluster: ClusterView, read: Read, now: datetime) -> str:
    """The verdict. ``why``: the report without it."""
    if why.state != "pending":
        return _placed(why, read, now)
    told = why.scheduling
    if list(told.gates) == [GATE]:
        return (
            f"held back until Fractile has chosen its node ({GATE}); if no replica chooses nodes, any replica removes "
            "the gate"
        )
    if told.gates:
        return (
            f"held back by scheduling gates ({', '.join(told.gates)}); no scheduler considers it until they are removed"
        )
    if isinstance(cluster.request, Refusal):
        return cluster.request.message
    if why.quota.refusal:
        return why.quota.refusal
    if nobody_leads := leaderless(read, why.groups, now):
        return nobody_leads
    if door := closed(read):
        return door
    if not told.seen and why.age >= _PATIENCE:
        return f"no scheduler named {told.scheduler} has tried to place it{_served(read)}"
    if told.nominated and told.nominated == nominated_by_us(read.pod):
        return (
            f"nominated to {told.nominated}, which Fractile chose over all nodes; kube-scheduler checks that node first"
        )
    if told.nominated:
        return f"nominated to {told.nominated}: other pods leave to make room, or it is about to be bound there"
    if why.fits and (beyond := refused_by_scheduler(read)):
        return (
            f"kube-scheduler refused it at its last attempt for a reason that Fractile does not check: {beyond}; as "
            f"far as Fractile can tell, {_some(why.fits)} would take it"
        )
    if why.fits:
        more = "" if told.seen else "; the scheduler has not tried to place it yet"
        return f"{_some(why.fits)} would take it now, as far as Fractile can tell{more}"
    if not why.groups:
        return "the cluster has no nodes"
    return f"none of {sum(len(g.nodes) for g in why.groups)} nodes takes it{_first(why.groups)}"


def _served(read: Read) -> str:
    """What to check; depends on whether any other pod with that scheduler name is bound."""
    name = read.pod.spec.scheduler_name or "default-scheduler"
    pods = (n.pod for n in read.objects.pods)
    if any(p.spec.node_name and p.spec.scheduler_name == name for p in pods):
        return ", although other pods with that scheduler name run; check whether it runs, and read its log"
    return "; check spec.schedulerName and the profiles of kube-scheduler"


def _first(groups: Sequence[RefusingNodes]) -> str:
    """The reasons of the first group that waiting can help, else of the largest group."""
    best = next((g for g in groups if g.waiting_helps), groups[0])
    of = f"; {len(best.nodes)} of them" if len(groups) > 1 else ""
    return f"{of}: {'; '.join(best.reasons)}"


def _some(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes ({', '.join(nodes[:3])}{', ...' * (len(nodes) > 3)})"


def _placed(why: Why, read: Read, now: datetime) -> str:
    pod = read.pod
    where = f" on {why.node}" if why.node else ""
    if why.state == "finished":
        said = f": {pod.status.reason}: {pod.status.message}" if pod.status.reason else ""
        return f"it has ended ({pod.status.phase}{said}) and holds nothing"
    if why.state == "leaving":
        keeps = "; it keeps its cards until it is gone" if why.holds else ""
        asked = since_deletion(pod.metadata, now)
        since = f", requested {span(asked)} ago" if asked is not None else ""
        return f"it is being deleted{where}{since}{keeps}{eviction.evicted(read)}"
    if why.state == "running":
        return f"runs{where}{eviction.announcement(read, now)}"
    return f"bound to {why.node}, not running yet" + (f": {why.containers[0]}" if why.containers else "")
