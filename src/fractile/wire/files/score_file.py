"""The file of ``fractile score``: Kubernetes manifests of nodes and pods, and kube-scheduler's configuration.

YAML or JSON, several documents or a List, as ``kubectl get nodes,pods -A -o yaml`` prints it. People write it by hand
too, so every error names the file, the document and the field.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import msgspec
import yaml

from fractile.errors import WireError
from fractile.wire.kubernetes import scoring
from fractile.wire.kubernetes.pod_requests import CountedNode, CountedPod
from fractile.wire.kubernetes.scoring import Strategy

T = TypeVar("T")

_CONFIGURATION = "KubeSchedulerConfiguration"
_FIT = "NodeResourcesFitArgs"
_POLICY = "Policy"
_KINDS = ("Node", "Pod", "List", _CONFIGURATION, _FIT, _POLICY)
_NAMELESS = "it has no metadata.name"


class ScoreFile(msgspec.Struct, frozen=True):
    """``configuration``: kube-scheduler's document of any kind, if there is one."""

    source: str
    nodes: tuple[CountedNode, ...]
    pods: tuple[CountedPod, ...]
    configuration: Mapping[str, Any] | None = None

    def strategy(self, scheduler_name: str) -> Strategy | None:
        """The strategy for pods of that scheduler; None if the file has no configuration. WireError if it is
        invalid."""
        if self.configuration is None:
            return None
        try:
            if self.configuration["kind"] == _FIT:
                return scoring.of_fit(self.configuration)
            if self.configuration["kind"] == _POLICY:
                return scoring.of_policy(self.configuration)
            return scoring.of_configuration(self.configuration, scheduler_name)
        except WireError as e:
            raise WireError(f"{self.source}: {e}") from None


def decode(text: str | bytes, *, source: str) -> ScoreFile:
    """Decode the whole file; WireError in one sentence."""
    nodes: dict[str, CountedNode] = {}
    pods: dict[tuple[str, str], CountedPod] = {}
    configuration: Mapping[str, Any] | None = None
    for where, document in _documents(text, source):
        kind = document.get("kind")
        if kind == "Node":
            node = _converted(document, CountedNode, where)
            _once(node.metadata.name, nodes, f"{where}: node {node.metadata.name!r}")
            nodes[node.metadata.name] = node
        elif kind == "Pod":
            pod = _converted(document, CountedPod, where)
            key = pod.metadata.namespace or "default", pod.metadata.name
            _once(key, pods, f"{where}: pod {'/'.join(key)!r}")
            pods[key] = pod
        elif kind in (_CONFIGURATION, _FIT, _POLICY):
            if configuration is not None:
                raise WireError(f"{where}: a second configuration of kube-scheduler; remove one")
            configuration = document
        else:
            raise WireError(f"{where}: kind {str(kind)[:60]!r} is not one of {', '.join(_KINDS)}; remove it")
    return ScoreFile(source, tuple(nodes.values()), tuple(pods.values()), configuration)


def _documents(text: str | bytes, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        documents: list[object] = list(yaml.load_all(text, _loader()))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        raise WireError(f"{source}:{line} this is not YAML ({getattr(e, 'problem', None) or e})") from None
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        yield from _flat(document, f"{source}: document {number}")


def _flat(document: object, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict):
        raise WireError(f"{where} is a {type(document).__name__}, and not a manifest with apiVersion and kind")
    found = cast(dict[str, Any], document)
    items: object = found.get("items")
    if not str(found.get("kind")).endswith("List"):
        yield where, found
    elif isinstance(items, list):
        for number, item in enumerate(cast(list[object], items), 1):
            yield from _flat(item, f"{where}, item {number}")
    else:
        raise WireError(f"{where}: a List without items")


def _loader() -> Any:
    """The loader of libyaml if present: otherwise a List of thousands of pods takes seconds."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _converted(document: dict[str, Any], type: type[T], where: str) -> T:
    try:
        found = msgspec.convert(document, type)
    except (msgspec.ValidationError, RecursionError) as e:
        raise WireError(f"{where}: {e}") from None
    if not cast(Any, found).metadata.name:
        raise WireError(f"{where}: {_NAMELESS}")
    return found


def _once(key: object, known: Mapping[Any, object], what: str) -> None:
    if key in known:
        raise WireError(f"{what} appears twice")
