"""Whose ids are these? After Allocate kubelet's records say it, and exactly one pod holds any id.

The checkpoint alone is enough if it names one pod, by UID, that the API server now has under this UID: kubelet records
what a container holds before it starts it, and never one set of ids for two pods. If anything is missing or wrong
there, kubelet's list is read as well, which names all pods of the node and costs more the more there are.
"""

from collections.abc import Set

import msgspec

from fractile.agent.kubelet.kubelet_state import KubeletState
from fractile.agent.node.pods import NodePods
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import ContainerName, PodUID
from fractile.wire.kubernetes.pod_mounts import MountingPod


class Denied(msgspec.Struct, frozen=True):
    """Why the container may not start now: one sentence, shown in the pod's events. Kubelet tries again."""

    reason: str


class Owned(msgspec.Struct, frozen=True):
    """The pod that holds the ids, as the API server has it now, and what kubelet gave to each of its containers."""

    pod: MountingPod
    request: PodRequest
    held: dict[tuple[ContainerName, str], Set[str]]  # by container and primary resource

    def ids(self, asked: ContainerRequest) -> Set[str] | None:
        """The ids that kubelet gave for this request; None when its records do not say."""
        return self.held.get((asked.container, asked.resource))

    @property
    def uid(self) -> PodUID:
        return self.request.uid


async def recorded_owner(resource: str, ids: frozenset[str], state: KubeletState, pods: NodePods) -> Owned | None:
    """The owner of exactly these ids by the checkpoint; None: the list is needed, too."""
    uids = {e.uid for e in state.recorded_holders(resource, ids)}
    seen = pods.by_uid(next(iter(uids))) if len(uids) == 1 else None
    if seen is None:
        return None
    pod = await pods.fresh(seen.pod.metadata.namespace, seen.pod.metadata.name)
    if pod is None or pod.metadata.uid not in uids or pod.finished:
        return None
    request = pods.request(pod)
    if request is None:
        return None
    entries = ((c, state.entry(request.uid, c.container, c.resource)) for c in request.containers)
    held = {(c.container, c.resource): entry.ids for c, entry in entries if entry is not None and entry.ids}
    return Owned(pod, request, held) if _holds(held, resource, ids) else None


async def owner(resource: str, ids: frozenset[str], state: KubeletState, pods: NodePods) -> Owned | Denied:
    """The owner of exactly these ids. Raises ApiError or Unreachable as the client does."""
    listed = state.listed_holders(resource, ids)
    uids = {e.uid for e in state.recorded_holders(resource, ids)}
    if listed:
        pod = await pods.fresh(listed[0][0].namespace, listed[0][0].name)
    else:
        pod = await _of_init_container(uids, state, pods)
    if pod is None:
        return Denied("kubelet's records name no pod of the API server that holds these devices")
    if uids and PodUID(pod.metadata.uid) not in uids:
        return Denied(f"the devices belong to an earlier pod of the name {pod.metadata.namespace}/{pod.metadata.name}")
    request = pods.request(pod)
    if request is None:
        return Denied(f"pod {pod.metadata.namespace}/{pod.metadata.name} makes no valid request for {resource}")
    held = {(c.container, c.resource): h for c in request.containers if (h := _held(c, request, state))}
    if not _holds(held, resource, ids):
        return Denied(f"kubelet's records changed while pod {request.key} was looked up")
    return Owned(pod, request, held)


def _holds(held: dict[tuple[ContainerName, str], Set[str]], resource: str, ids: Set[str]) -> bool:
    return any(resource == of and mine == ids for (_, of), mine in held.items())


def _held(container: ContainerRequest, request: PodRequest, state: KubeletState) -> Set[str] | None:
    if container.role is Role.INIT:
        entry = state.entry(request.uid, container.container, container.resource)
        return entry.ids if entry else None
    for listed in state.listed:
        if (listed.namespace, listed.name) == (request.namespace, request.name):
            return listed.held.get(container.container, {}).get(container.resource)
    return None


async def _of_init_container(uids: set[PodUID], state: KubeletState, pods: NodePods) -> MountingPod | None:
    """Only the checkpoint has ordinary init containers, by UID; the name comes from the view or from reading all
    pods."""
    for seen in pods:
        if seen.pod.metadata.uid in uids:
            return await pods.fresh(seen.pod.metadata.namespace, seen.pod.metadata.name)
    for listed in state.listed if uids else ():
        if not pods.by_name(listed.namespace, listed.name):
            pod = await pods.fresh(listed.namespace, listed.name)
            if pod is not None and pod.metadata.uid in uids:
                return pod
    return None
