"""Which scheduler the GPU pods of a namespace get, by its label ``fractile.dev/scheduler``."""

from fractile.wire.kubernetes.objects import Namespace

LABEL = "fractile.dev/scheduler"


class Schedulers:
    """The scheduler of each namespace. ``default``: for namespaces without the label; "" changes nothing."""

    def __init__(self, default: str = "") -> None:
        self._default = default
        self._labelled: dict[str, str] = {}

    def of(self, namespace: str) -> str:
        return self._labelled.get(namespace, self._default)

    def changed(self, namespace: Namespace) -> None:
        label = (namespace.metadata.labels or {}).get(LABEL)
        if label is None:
            self._labelled.pop(namespace.metadata.name, None)
        else:
            self._labelled[namespace.metadata.name] = label

    def gone(self, name: str) -> None:
        self._labelled.pop(name, None)
