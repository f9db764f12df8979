"""What may never be: more of a card promised than it has, in any revision of the API server.

The judge reads the texts of the store, with the standard library, and shares no code and no idea of the arithmetic with
the product: it plays kubelet's order of containers, moment by moment, and looks how much is held at each moment.
"""

import json
from collections.abc import Iterator
from typing import Any

from tests.history.store import CARDS, PODS, Object

PLACEMENT = "fractile.dev/placement"
Amounts = dict[str, tuple[int, int, int, bool]]  # by card: size (MiB or shares), cores, slots, somebody without cores


class Judge:
    """``violations``: a sentence for each. ``sizes``: of each card that ever was; none changes its size here."""

    def __init__(self, slots: int) -> None:
        self.violations: list[str] = []
        self.sizes: dict[str, int] = {}
        self.gpus: set[str] = set()
        self.holds: dict[str, tuple[str, Amounts]] = {}  # by UID: the node and what is held
        self.most = 0
        self._slots = slots

    def wrote(self, path: str, before: Object | None, after: Object | None) -> None:
        if path == CARDS and after is not None:
            spec = after["spec"]
            size = spec["shares"] if spec.get("type", "gpu") != "gpu" else int(spec["memory"].removesuffix("Mi"))
            self.sizes.setdefault(spec["deviceID"], size)
            if spec.get("type", "gpu") == "gpu":
                self.gpus.add(spec["deviceID"])
        if path != PODS:
            return
        if before is not None and (after is None or after["metadata"]["uid"] != before["metadata"]["uid"]):
            self.holds.pop(before["metadata"]["uid"], None)
        if after is None:
            return
        uid, held = after["metadata"]["uid"], held_by(after)
        was = self.holds.pop(uid, None)
        if held is None:
            return
        self.holds[uid] = held
        self.most = max(self.most, len(self.holds))
        if was is None or was[1] != held[1]:
            for card in held[1]:
                self._look(card, after)

    def use(self, card: str) -> tuple[int, int, int, bool]:
        """The sum of all that is held of the card."""
        size = cores = slots = 0
        starving = False
        for _, amounts in self.holds.values():
            one = amounts.get(card)
            if one is not None:
                size, cores, slots, starving = size + one[0], cores + one[1], slots + one[2], starving or one[3]
        return size, cores, slots, starving

    def _look(self, card: str, pod: Object) -> None:
        size, cores, slots, starving = self.use(card)
        most = self.sizes.get(card, 0)
        if size > most or cores > 100 or slots > self._slots or (starving and cores >= 100):
            owners = sorted(uid for uid, (_, amounts) in self.holds.items() if card in amounts)
            self.violations.append(
                f"overallocated: {card} has {most}, promised are {size}, {cores} % and {slots} slots to {owners} "
                f"in revision {pod['metadata']['resourceVersion']}, after {pod['metadata']['name']} was written"
            )


def held_by(pod: Object) -> tuple[str, Amounts] | None:
    """The node and what the pod holds there; None for one that is not bound, is finished, or holds nothing."""
    node = pod["spec"].get("nodeName")
    notes: dict[str, str] = pod["metadata"].get("annotations") or {}
    status: dict[str, Any] = pod.get("status") or {}
    text = notes.get(PLACEMENT)
    if not node or text is None or status.get("phase") in ("Succeeded", "Failed"):
        return None
    peak: Amounts = {}
    for moment in _moments(list(json.loads(text)["containers"].values())):
        for card, (size, cores, slots, starving) in moment.items():
            one = peak.get(card, (0, 0, 0, False))
            # While most cores are promised, is somebody there who was promised none?
            hungry = max((one[1], one[3]), (cores, starving))
            peak[card] = max(one[0], size), hungry[0], max(one[2], slots), hungry[1]
    return node, peak


def _moments(containers: list[dict[str, Any]]) -> Iterator[Amounts]:
    """What is held while each init container runs, and in the end."""
    stays: list[dict[str, Any]] = []
    for container in containers:
        if container["role"] == "init":
            yield _together([*stays, container])
        else:
            stays.append(container)
            if container["role"] == "sidecar":
                yield _together(stays)
    yield _together(stays)


def _together(containers: list[dict[str, Any]]) -> Amounts:
    sums: Amounts = {}
    for container in containers:
        own: dict[str, int] = {}
        for part in container["slices"]:
            card, shares = part["card"], part.get("shares", 0)
            size, cores, slots, hungry = sums.get(card, (0, 0, 0, False))
            own[card] = own.get(card, 0) + part.get("cores", 0)
            sums[card] = (
                size + part["memoryMiB"] + shares,
                cores + part.get("cores", 0),
                slots + part.get("slots", 0),
                hungry,
            )
            if shares:
                own[card] = 1
        for card, cores in own.items():
            size, sum_cores, slots, hungry = sums[card]
            sums[card] = size, sum_cores, slots, hungry or cores == 0
    return sums
