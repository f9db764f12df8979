"""The namespaces whose GPU pods may name their node: those with the label ``fractile.dev/visible-devices=allow``.

The policy node-name.fractile.dev uses the same label. A namespace that is not known yet counts as unlabelled.
"""

from fractile.wire.kubernetes.objects import Namespace


class NodeNames:
    """The namespaces that administrators have labelled."""

    def __init__(self) -> None:
        self._allowed: set[str] = set()

    def allowed(self, namespace: str) -> bool:
        return namespace in self._allowed

    def changed(self, namespace: Namespace) -> None:
        if namespace.names_devices:
            self._allowed.add(namespace.metadata.name)
        else:
            self._allowed.discard(namespace.metadata.name)

    def gone(self, name: str) -> None:
        self._allowed.discard(name)
