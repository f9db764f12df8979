"""Which container is this GetPreferredAllocation for? Kubelet never says (evidence/kubelet.md#who-asks); its records
do.

Kubelet admits pods one at a time, and adds a pod to its list directly before it admits it
(evidence/kubelet.md#admission-order). So exactly one listed pod has a container that requests this resource and holds
none of it; in that pod it is the first such container in kubelet's order, which is the order of ``PodRequest``.

    listed pods ──> by the view, does one of its containers wait for the resource? ──> GET each of these ──> exactly one

The view only rules pods out, and if it has ruled out all of them the others are read too: a pod that was deleted and
recreated under its name may request something else than the view remembers.
"""

from collections.abc import Sequence

import msgspec

from fractile.agent.kubelet.kubelet_state import KubeletState, ListedPod
from fractile.agent.node.pods import NodePods
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.wire.kubernetes.objects import Pod


class AdmittedContainer(msgspec.Struct, frozen=True):
    """The container that kubelet is admitting, and its pod as the API server has it now."""

    pod: Pod
    request: PodRequest
    container: ContainerRequest


class Unknown(msgspec.Struct, frozen=True):
    """Why no container could be identified; for the log."""

    reason: str


async def who_asks(resource: str, state: KubeletState, pods: NodePods) -> AdmittedContainer | Unknown:
    """The one container that waits for this resource. Raises ApiError or Unreachable when the API server is needed."""
    likely, unlikely = list[ListedPod](), list[ListedPod]()
    for listed in state.listed:
        (likely if _could_ask(listed, resource, state, pods) else unlikely).append(listed)
    found = await _asking(likely, resource, state, pods) or await _asking(unlikely, resource, state, pods)
    if len(found) == 1:
        return found[0]
    names = ", ".join(a.request.key for a in found[:5])
    return Unknown(f"{len(found)} pods wait for {resource}: {names}" if found else f"no pod waits for {resource}")


def next_container(
    request: PodRequest, resource: str, state: KubeletState, listed: ListedPod
) -> ContainerRequest | None:
    """The first container in kubelet's order that requests the resource and holds none."""
    for container in request.containers:
        if container.amount_of(resource) and not _holds(container, request, resource, state, listed):
            return container
    return None


def _could_ask(listed: ListedPod, resource: str, state: KubeletState, pods: NodePods) -> bool:
    """Whether, by the view, the pod may be the one; a pod that the view does not know yet may be."""
    seen = pods.by_name(listed.namespace, listed.name)
    return not seen or any(s.request and next_container(s.request, resource, state, listed) for s in seen)


def _holds(
    container: ContainerRequest, request: PodRequest, resource: str, state: KubeletState, listed: ListedPod
) -> bool:
    if container.role is Role.INIT:
        return state.entry(request.uid, container.container, resource) is not None
    return bool(listed.held.get(container.container, {}).get(resource))


async def _asking(
    candidates: Sequence[ListedPod], resource: str, state: KubeletState, pods: NodePods
) -> list[AdmittedContainer]:
    return [asking for c in candidates if (asking := await _ask(c, resource, state, pods)) is not None]


async def _ask(listed: ListedPod, resource: str, state: KubeletState, pods: NodePods) -> AdmittedContainer | None:
    pod = await pods.fresh(listed.namespace, listed.name)
    if pod is None or pod.finished or pod.spec.node_name != pods.node:
        return None
    request = pods.request(pod)
    if request is None:
        return None
    container = next_container(request, resource, state, listed)
    return None if container is None else AdmittedContainer(pod, request, container)
