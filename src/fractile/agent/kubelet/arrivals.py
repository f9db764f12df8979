"""The pods that are on their way to this node: bound, and not yet admitted by kubelet.

Kubelet writes down what a pod's containers hold when it admits the pod, so a pod that its record does not name is still
to come. An agent that lets go of kubelet before that makes kubelet fail the pod for good
(evidence/kubelet.md#no-plugin). Failure rule: a record that cannot be read names nobody to wait for.
"""

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.node.pods import NodePods


async def arriving(kubelet: Kubelet, pods: NodePods) -> list[str]:
    """Who asks for what we serve and was not admitted yet, in the order of names."""
    recorded = (await kubelet.record()).recorded
    if recorded is None:
        return []
    admitted = {entry.uid for entry in recorded}
    return sorted(
        seen.request.key
        for seen in pods
        if seen.request is not None
        and seen.request.uid not in admitted
        and seen.pod.status.phase in ("", "Pending")  # what runs was admitted, though the record be lost since
        and seen.pod.metadata.deletion_timestamp is None
    )
