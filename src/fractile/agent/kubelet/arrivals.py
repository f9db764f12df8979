"""The pods that are on their way to this node: bound, and not yet admitted by kubelet.

Kubelet records what a pod's containers hold when it admits the pod, so a pod that its record does not name is still to
come. An agent that disconnects from kubelet before that makes kubelet fail the pod permanently
(evidence/kubelet.md#no-plugin). Failure rule: if the record cannot be read, no pod is waited for.
"""

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.node.pods import NodePods


async def arriving(kubelet: Kubelet, pods: NodePods) -> list[str]:
    """Names of the pods that request what we serve and are not admitted yet, sorted."""
    recorded = (await kubelet.record()).recorded
    if recorded is None:
        return []
    admitted = {entry.uid for entry in recorded}
    return sorted(
        seen.request.key
        for seen in pods
        if seen.request is not None
        and seen.request.uid not in admitted
        and seen.pod.status.phase in ("", "Pending")  # a running pod was admitted, even if the record is lost
        and seen.pod.metadata.deletion_timestamp is None
    )
