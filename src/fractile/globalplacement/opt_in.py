"""The pods placed over all nodes: by annotation of the pod, else of its namespace, else by the cluster's default."""

from collections.abc import Mapping

import msgspec

from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import ANNOTATION

_SAID = {"true": True, "false": False}


class GlobalPlacement(msgspec.Struct, frozen=True):
    """The command line's settings. ``every_pod``: also pods without an annotation; ``no_pod``: not even pods that ask
    for it. ``gate``: the webhook holds the pods back until they are nominated."""

    every_pod: bool = False
    no_pod: bool = False
    gate: bool = False


SCHEDULERS = GlobalPlacement()  # kube-scheduler chooses nodes unless an annotation says otherwise


class OptIn:
    """``namespaces``: the annotations of namespaces. Values other than true and false are ignored."""

    def __init__(self, namespaces: Mapping[str, str], *, every_pod: bool, no_pod: bool = False) -> None:
        self._namespaces = namespaces
        self._every_pod = every_pod
        self._no_pod = no_pod

    def of(self, pod: Pod, namespace: str = "") -> bool:
        """Whether the pod is placed over all nodes. ``namespace``: needed if the pod does not name its own yet."""
        if self._no_pod:
            return False
        meta = pod.metadata
        said = (meta.annotations or {}).get(ANNOTATION, ""), self._namespaces.get(namespace or meta.namespace, "")
        return next((_SAID[word] for word in said if word in _SAID), self._every_pod)
