"""The pods that ask for a GPU and are not bound yet: what bind and wake-up need to know about them."""

import msgspec

from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import PodUID


class WaitingPod(msgspec.Struct, frozen=True):
    """An unbound pod. ``created``: its RFC 3339 creation time, which sorts as text. ``nominated``: the node to which
    kube-scheduler nominated it, "" for none or for a nomination of ours. ``gated``: no scheduler considers it yet."""

    uid: PodUID
    namespace: str
    name: str
    created: str
    request: PodRequest | Refusal
    priority: int = 0
    nominated: str = ""
    gated: bool = False


class WaitingPods:
    """By UID; written by the pod watch only."""

    def __init__(self) -> None:
        self._pods: dict[PodUID, WaitingPod] = {}
        self._nominated: dict[str, dict[PodUID, WaitingPod]] = {}  # by node

    def put(self, pod: WaitingPod) -> None:
        self.discard(pod.uid)
        self._pods[pod.uid] = pod
        if pod.nominated:
            self._nominated.setdefault(pod.nominated, {})[pod.uid] = pod

    def discard(self, uid: PodUID) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.nominated:
            del self._nominated[pod.nominated][uid]
            if not self._nominated[pod.nominated]:
                del self._nominated[pod.nominated]

    def nominating(self) -> list[str]:
        """The nodes to which pods are nominated."""
        return list(self._nominated)

    def nominated_to(self, node: str) -> list[WaitingPod]:
        return list(self._nominated.get(node, {}).values())

    def find(self, uid: PodUID) -> WaitingPod | None:
        return self._pods.get(uid)

    def oldest_first(self) -> list[WaitingPod]:
        return sorted(self._pods.values(), key=lambda p: (p.created, p.uid))

    def __len__(self) -> int:
        return len(self._pods)
