"""Devices, classes and nodes as the API shows them, for the tests of the class controllers."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from fractile.classes.nodes import ConditionedNodeStatus, NodeCondition, NodeWithTaints
from fractile.ledger.ledger import Ledger
from fractile.model.card import GPU, Card
from fractile.model.properties import shared
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.fractile.extended_resource import (
    ExtendedResource,
    ExtendedResourceSpec,
    ExtendedResourceStatus,
    object_name,
)
from fractile.wire.fractile.resource_class import (
    ClassMeta,
    DeviceSelector,
    MatchExpression,
    ResourceClass,
    ResourceClassSpec,
    resource_name,
)
from fractile.wire.kubernetes.objects import ObjectMeta


def gpu(node: str = "n1", index: int = 0, *, model: str = "Tesla V100", memory: int = 16384, **said: str) -> Card:
    return Card(
        uuid=CardUUID(f"GPU-{node}-{index}"),
        index=index,
        model=model,
        memory=MiB(memory),
        properties=shared(said),
        node=NodeName(node),
    )


def device(node: str = "n1", index: int = 0, *, type: str = "hca", model: str = "ConnectX", shares: int = 4) -> Card:
    return Card(
        uuid=CardUUID(f"{type}-{index}.{node}"),
        index=index,
        model=model,
        memory=MiB(0),
        type=type,
        shares=shares,
        node=NodeName(node),
    )


def resource(card: Card, *, phase: str = "Available", **status: Any) -> ExtendedResource:
    """The object that the card's agent would have written."""
    return ExtendedResource(
        metadata=ObjectMeta(name=object_name(card.uuid)),
        spec=ExtendedResourceSpec(
            node_name=card.node,
            device_id=card.uuid,
            index=card.index,
            model=card.model,
            memory=f"{card.memory}Mi" if card.type == GPU else "",
            type=card.type,
            shares=card.shares,
            properties=dict(card.properties) or None,
        ),
        status=ExtendedResourceStatus(phase=phase, **status),
    )


def put(ledger: Ledger, card: Card, *, healthy: bool = True) -> Card:
    """Tell the ledger of the card, as the card handlers do."""
    card = structs.replace(card, healthy=healthy)
    ledger.put_card(card.node, card)
    return card


def labels(**match: str) -> DeviceSelector:
    return DeviceSelector(match_labels=dict(match))


def where(key: str, operator: str, *values: str) -> DeviceSelector:
    return DeviceSelector(match_expressions=[MatchExpression(key, operator, list(values))])


def class_object(
    name: str, selector: DeviceSelector | None = None, *, metadata: Mapping[str, Any] | None = None, **spec: Any
) -> ResourceClass:
    return ResourceClass(
        metadata=ClassMeta(name=name, uid=f"uid-{name}", resource_version="1", generation=1, **(metadata or {})),
        spec=ResourceClassSpec(selector=selector, **spec),
    )


def node(name: str = "n1", *, ready: str = "True", capacity: Mapping[str, int] | None = None) -> NodeWithTaints:
    """A node that says it has so many units of classes."""
    said: dict[str, str | int] = {resource_name(c): str(n) for c, n in (capacity or {}).items()}
    return NodeWithTaints(
        metadata=ObjectMeta(name=name),
        status=ConditionedNodeStatus(
            capacity=said | {"cpu": "2"},
            allocatable=said | {"cpu": "2"},
            conditions=[NodeCondition("Ready", ready, "2026-11-21T10:00:00Z")],
        ),
    )


def names(cards: Sequence[Card]) -> list[str]:
    return [card.uuid.lower() for card in cards]
