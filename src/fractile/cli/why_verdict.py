"""The one sentence that says why a pod waits, or how it is with one that is placed. Pure.

It is the first of these that holds: the pod is over or leaving, somebody gates it, its request makes no sense, its
class or its quota gives nothing, no control plane leads, nobody schedules it, room is being made for it, no node fits,
some node fits.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from fractile.cli.why_cluster import Cluster
from fractile.cli.why_read import Read
from fractile.model.refusal import Refusal
from fractile.wire.objects import LeaseSpec
from fractile.wire.queued import GATE, nominated_by_us
from fractile.wire.why import NodeGroup, Why
from fractile.wire.why_objects import ObservedPod

_PATIENCE = 30.0  # seconds in which any scheduler has looked at a new pod
_SKEW = 10.0  # seconds that clocks of machines may be apart


def verdict(why: Why, cluster: Cluster, read: Read, now: datetime) -> str:
    """``why``: the report without it."""
    if why.state != "pending":
        return _placed(why, read.pod)
    told = why.scheduling
    if list(told.gates) == [GATE]:
        return f"held back until Fractile has chosen its node ({GATE}); where nobody does, any replica lets it go"
    if told.gates:
        return f"held back by scheduling gates ({', '.join(told.gates)}); nobody schedules it before they are removed"
    if isinstance(cluster.request, Refusal):
        return cluster.request.message
    if why.quota.refusal:
        return why.quota.refusal
    if _leaderless(read, now):
        return "no control plane of Fractile leads, and without it nobody places pods that ask for its devices"
    if not told.seen and why.age >= _PATIENCE:
        return f"no scheduler called {told.scheduler} has looked at it{_served(read)}"
    if told.nominated and told.nominated == nominated_by_us(read.pod):
        return (
            f"nominated to {told.nominated}, which Fractile chose over all nodes; kube-scheduler checks that node first"
        )
    if told.nominated:
        return f"nominated to {told.nominated}: other pods leave to make room, or it is about to be bound there"
    if why.fits:
        more = "" if told.seen else "; the scheduler has not looked at it yet"
        return f"{_some(why.fits)} would take it now by what Fractile knows{more}"
    if not why.groups:
        return "the cluster has no nodes"
    return f"none of {sum(len(g.nodes) for g in why.groups)} nodes takes it{_first(why.groups)}"


def _served(read: Read) -> str:
    """Whether any pod was ever bound through that scheduler name."""
    name = read.pod.spec.scheduler_name or "default-scheduler"
    pods = (n.pod for n in read.objects.pods)
    if any(p.spec.node_name and p.spec.scheduler_name == name for p in pods):
        return ", though other pods with that name run; see whether it runs and what its log says"
    return "; check spec.schedulerName and the profiles of kube-scheduler"


def _first(groups: Sequence[NodeGroup]) -> str:
    """The most hopeful group's reasons: what waiting can cure, else those of most nodes."""
    best = next((g for g in groups if g.waiting_helps), groups[0])
    of = f"; {len(best.nodes)} of them" if len(groups) > 1 else ""
    return f"{of}: {'; '.join(best.reasons)}"


def _some(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes ({', '.join(nodes[:3])}{', ...' * (len(nodes) > 3)})"


def _placed(why: Why, pod: ObservedPod) -> str:
    where = f" on {why.node}" if why.node else ""
    if why.state == "finished":
        said = f": {pod.status.reason}: {pod.status.message}" if pod.status.reason else ""
        return f"it is over ({pod.status.phase}{said}) and holds nothing"
    if why.state == "leaving":
        return f"it is being deleted{where}" + ("; until it is gone it keeps its cards" if why.holds else "")
    if why.state == "running":
        return f"runs{where}"
    return f"bound to {why.node}, not running yet" + (f": {why.containers[0]}" if why.containers else "")


def _leaderless(read: Read, now: datetime) -> bool:
    """Whether the Lease of the control plane ran out or was given back. One that is missing, or that nobody has ever
    held, says nothing: the manifests create it empty, and a control plane without ``--lease`` leaves it so."""
    spec = read.lease.spec if read.lease is not None else LeaseSpec()
    if not spec.renew_time:
        return False
    return not spec.holder_identity or age(spec.renew_time, now) > (spec.lease_duration_seconds or 0) + _SKEW


def age(since: str, now: datetime) -> float:
    """Seconds; 0 for a time that nobody can read, and for one that another machine's clock puts into the future."""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return 0.0
    aware = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, round((now - aware).total_seconds(), 1))
