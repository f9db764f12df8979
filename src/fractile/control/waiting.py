"""The pods that ask for a GPU and are not bound yet: what bind and wake-up need to know of them."""

import msgspec

from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import PodUID


class WaitingPod(msgspec.Struct, frozen=True):
    """An unbound pod. ``created`` is its RFC 3339 creation time, which sorts as text."""

    uid: PodUID
    namespace: str
    name: str
    created: str
    request: PodRequest | Refusal


class WaitingPods:
    """By UID; written by the pod watch only."""

    def __init__(self) -> None:
        self._pods: dict[PodUID, WaitingPod] = {}

    def put(self, pod: WaitingPod) -> None:
        self._pods[pod.uid] = pod

    def discard(self, uid: PodUID) -> None:
        self._pods.pop(uid, None)

    def find(self, uid: PodUID) -> WaitingPod | None:
        return self._pods.get(uid)

    def oldest_first(self) -> list[WaitingPod]:
        return sorted(self._pods.values(), key=lambda p: (p.created, p.uid))

    def __len__(self) -> int:
        return len(self._pods)
