"""Whose node is chosen over all nodes: by annotation of the pod, else of its namespace, else of the whole cluster."""

from collections.abc import Mapping

import msgspec

from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import ANNOTATION

_SAID = {"true": True, "false": False}


class GlobalPlacement(msgspec.Struct, frozen=True):
    """What the command line says. ``everybody``: also those who say nothing; ``nobody``: not even those who ask for it.
    ``gate``: the webhook holds them back until they are nominated."""

    everybody: bool = False
    nobody: bool = False
    gate: bool = False


SCHEDULERS = GlobalPlacement()  # nodes are kube-scheduler's choice, where nobody says otherwise


class OptIn:
    """``namespaces``: what those say that say something. Other words than true and false say nothing."""

    def __init__(self, namespaces: Mapping[str, str], *, everybody: bool, nobody: bool = False) -> None:
        self._namespaces = namespaces
        self._everybody = everybody
        self._nobody = nobody

    def of(self, pod: Pod, namespace: str = "") -> bool:
        """``namespace``: where the pod itself does not name it yet."""
        if self._nobody:
            return False
        meta = pod.metadata
        said = (meta.annotations or {}).get(ANNOTATION, ""), self._namespaces.get(namespace or meta.namespace, "")
        return next((_SAID[word] for word in said if word in _SAID), self._everybody)
