"""Read nodes and pods from YAML or JSON files: manifests, in several documents or a List; or a short list of nodes.

Objects of other kinds are ignored. Errors name file, line, object and field; the line is that of the document, or of
the field itself if it has the wrong type.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import msgspec
import yaml

from fractile.errors import SetupError, WireError
from fractile.model.properties import shared
from fractile.sim.snapshot.build import NamedPod, SnapshotObjects, generic_cards
from fractile.sim.snapshot.cluster_snapshot import Machine
from fractile.sim.snapshot.demand import mebibytes, milli
from fractile.sim.snapshot.yaml_lines import Loader, line_of, too_deep
from fractile.wire.fractile import extended_resource, resource_class
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from fractile.wire.kubernetes.manifests import (
    DisruptionBudget,
    ManifestNodes,
    NodesOfAKind,
    PlannedNode,
    PlannedPod,
    Workload,
)

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
WORKLOADS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "Job"})
_MOST_REPLICAS = 100_000
_MOST_NODES = 100_000
_MOST_CARDS = 64
_MOST_CPU = 10_000_000
_MOST_MEMORY = 1 << 30

T = TypeVar("T")


class Doc(msgspec.Struct, frozen=True):
    """One object: ``body`` as Python data, ``node`` as parsed from YAML, None for JSON."""

    path: Path
    number: int
    body: Mapping[str, Any]
    node: yaml.Node | None

    @property
    def kind(self) -> str:
        found = self.body.get("kind")
        return found if isinstance(found, str) else ""

    @property
    def who(self) -> str:
        meta: object = self.body.get("metadata")
        name = cast(Mapping[str, object], meta).get("name") if isinstance(meta, dict) else None
        return f"{self._place(())}, {self.kind or 'object'} {name or 'without a name'}"

    def wrong(self, why: str, field: tuple[str | int, ...] = ()) -> WireError:
        return WireError(f"{self._place(field)}: {why}")

    def read(self, kind: type[T]) -> T:
        try:
            return msgspec.convert(self.body, kind)
        except msgspec.ValidationError as e:
            why, _, path = str(e).partition(" - at `")
            field = tuple(_steps(path.rstrip("`")))
            shown = ".".join(map(str, field)) or "the object"
            raise self.wrong(f"{self.kind or 'object'} field {shown}: {why[:1].lower()}{why[1:]}", field) from None

    def _place(self, field: tuple[str | int, ...]) -> str:
        if self.node is None:
            return f"{self.path} object {self.number}"
        return f"{self.path} line {line_of(self.node, field)}"


def read_objects(path: Path) -> SnapshotObjects:
    """All objects that the planner uses. WireError for invalid ones, SetupError for a file that cannot be read."""
    found: dict[str, list[Any]] = {"nodes": [], "cards": [], "classes": [], "pods": [], "budgets": [], "machines": []}
    seen: set[tuple[str, str, str]] = set()
    for doc in _documents(path):
        _once(doc, seen)
        _sort(doc, found)
    return SnapshotObjects(**found, source=str(path))


def told(who: str, why: str) -> NoReturn:
    """Raise for any invalid object: all of a file must be valid."""
    raise WireError(f"{who}: {why}")


def _sort(doc: Doc, found: dict[str, list[Any]]) -> None:
    """Sort an object by its kind; a document without a kind is the short form."""
    if doc.kind == "Node":
        found["nodes"].append((doc.who, doc.read(PlannedNode)))
    elif doc.kind == "Pod":
        found["pods"].append(NamedPod(doc.who, doc.read(PlannedPod)))
    elif doc.kind in WORKLOADS:
        found["pods"].append(_workload(doc))
    elif doc.kind == "PodDisruptionBudget":
        found["budgets"].append((doc.who, doc.read(DisruptionBudget)))
    elif doc.kind == extended_resource.KIND:
        found["cards"].append((doc.who, doc.read(ExtendedResource)))
    elif doc.kind == resource_class.KIND:
        found["classes"].append(doc.read(ResourceClass))
    elif not doc.kind:
        found["machines"] += _short_form(doc)


def _once(doc: Doc, seen: set[tuple[str, str, str]]) -> None:
    meta: object = doc.body.get("metadata")
    if not (doc.kind and isinstance(meta, dict)):
        return
    named = cast(Mapping[str, object], meta)
    key = doc.kind, str(named.get("namespace") or ""), str(named.get("name") or "")
    if not key[2]:
        raise doc.wrong(f"{doc.kind} field metadata.name: it is empty")
    if key in seen:
        raise doc.wrong(f"{doc.kind} field metadata.name: {key[2]} appears twice")
    seen.add(key)


def _workload(doc: Doc) -> NamedPod:
    found = doc.read(Workload)
    spec = found.spec
    wanted = spec.parallelism if doc.kind == "Job" else spec.replicas
    replicas = 1 if wanted is None else wanted
    if not 0 <= replicas <= _MOST_REPLICAS:
        field = "parallelism" if doc.kind == "Job" else "replicas"
        raise doc.wrong(
            f"{doc.kind} field spec.{field}: {replicas} is not within 0 and {_MOST_REPLICAS}", ("spec", field)
        )
    template = spec.template
    meta = msgspec.structs.replace(
        template.metadata, name=found.metadata.name, namespace=found.metadata.namespace or template.metadata.namespace
    )
    return NamedPod(doc.who, PlannedPod(metadata=meta, spec=template.spec), replicas)


# ── the short form ───────────────────────────────────────────────────────────────────────────────────────────────────


def _short_form(doc: Doc) -> list[Machine]:
    if "nodes" not in doc.body:
        raise doc.wrong("this is neither a Kubernetes object (it has no kind) nor a list of nodes")
    machines: list[Machine] = []
    for number, kind in enumerate(doc.read(ManifestNodes).nodes):
        machines += _of_a_kind(doc, number, kind)
    return machines


def _of_a_kind(doc: Doc, number: int, kind: NodesOfAKind) -> list[Machine]:
    def bounded(field: str, value: int, least: int, most: int) -> int:
        if not least <= value <= most:
            raise wrong(field, f"{value} is not within {least} and {most}")
        return value

    def wrong(field: str, why: str) -> WireError:
        return doc.wrong(f"field nodes[{number}].{field}: {why}", ("nodes", number, field))

    try:
        cpu, memory = milli(kind.cpu, "cpu"), mebibytes(kind.memory, "memory")
        card = mebibytes(kind.card_memory, "card_memory")
    except WireError as e:
        field, _, why = str(e).partition(": ")
        raise wrong(field, why) from None
    gpus = bounded("gpus", kind.gpus, 0, _MOST_CARDS)
    if gpus and not kind.model:
        raise wrong("model", f"it is empty on a node with {gpus} GPUs")
    many = bounded("count", kind.count, 1, _MOST_NODES)
    bounded("cpu", cpu, 1, _MOST_CPU)
    bounded("memory", memory, 1, _MOST_MEMORY)
    bounded("card_memory", card, 0, _MOST_MEMORY)
    if not kind.name:
        raise wrong("name", "it is empty")
    labels = shared(kind.labels or {})
    names = [kind.name] if many == 1 else [f"{kind.name}-{i}" for i in range(many)]
    return [
        Machine(n, cpu, memory, generic_cards(n, gpus, model=kind.model, memory=card), labels=labels) for n in names
    ]


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _documents(path: Path) -> Iterator[Doc]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise WireError(f"{path} is not UTF-8: {e.reason} at byte {e.start}") from None
    except OSError as e:
        raise SetupError(f"{path} cannot be read: {e.strerror}") from None
    number = 0
    for body, node in _json(text) or _yaml(path, text):
        for inner, at in _items(body, node):
            number += 1
            if not isinstance(inner, dict):
                where = f"object {number}" if at is None else f"line {line_of(at, ())}"
                raise WireError(f"{path} {where}: a {type(inner).__name__} is not a Kubernetes object")
            yield Doc(path, number, cast(Mapping[str, Any], inner), at)


def _json(text: str) -> list[tuple[object, yaml.Node | None]]:
    """Parse the output of ``kubectl get -o json``, a hundred times as fast as YAML; other texts are left to YAML."""
    if not text.lstrip().startswith("{"):
        return []
    try:
        return [(msgspec.json.decode(text), None)]
    except (msgspec.DecodeError, RecursionError):
        return []


def _yaml(path: Path, text: str) -> Iterator[tuple[object, yaml.Node | None]]:
    if too_deep(text):
        raise WireError(f"{path} nests deeper than any manifest")
    loader = Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                body: object = loader.construct_document(node)
                if body is not None:
                    yield body, node
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise WireError(f"{path} line {line}: this is not YAML: {e.problem or e.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise WireError(f"{path} is not YAML: {' '.join(str(e).split())[:200]}") from None
    finally:
        loader.dispose()


def _items(body: object, node: yaml.Node | None) -> Iterator[tuple[object, yaml.Node | None]]:
    """The items of a List, else the document itself."""
    if not (isinstance(body, dict) and str(cast(dict[str, Any], body).get("kind", "")).endswith("List")):
        yield body, node
        return
    items: object = cast(dict[str, Any], body).get("items")
    children = _children(node)
    for number, item in enumerate(cast(list[object], items) if isinstance(items, list) else []):
        yield item, children[number] if children else None


def _children(node: yaml.Node | None) -> list[yaml.Node]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "items" and isinstance(value, yaml.SequenceNode):
            return list(value.value)
    return []


def _steps(path: str) -> Iterator[str | int]:
    """``$.spec.containers[0].name`` as steps. msgspec writes ``[...]`` for a key of a mapping."""
    for part in path.removeprefix("$").replace("[", ".[").split("."):
        if part.startswith("["):
            inner = part[1:-1]
            if inner.isdigit():
                yield int(inner)
        elif part:
            yield part
