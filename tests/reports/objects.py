"""Builders of API objects for inspect, as the API server returns them."""

from typing import Any

from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import Role
from fractile.model.units import CardUUID, ContainerName, MiB, NodeName, Percent
from fractile.wire.fractile import placement

MODEL = "Tesla-V100"
MEMORY = 16276


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


SICK = {
    "phase": "Unhealthy",
    "reason": "CardLost",
    "message": "it does not answer on the bus",
    "lastTransitionTime": "2026-11-21T05:00:00Z",
}


def card(
    node: str, index: int, *, memory: str = f"{MEMORY}Mi", healthy: bool = True, dialects: str | None = None
) -> dict[str, Any]:
    annotations = {} if dialects is None else {"annotations": {"fractile.dev/dialects": dialects}}
    return {
        "apiVersion": "fractile.dev/v1alpha1",
        "kind": "ExtendedResource",
        "metadata": {"name": uuid(node, index).lower(), "uid": f"uid-{node}-{index}", **annotations},
        "spec": {
            "nodeName": node,
            "deviceID": uuid(node, index),
            "index": index,
            "model": MODEL,
            "memory": memory,
            "pciBusID": f"00000000:00:0{index + 4}.0",
        },
        "status": {"phase": "Available"} if healthy else SICK,
    }


def node(name: str, *, gpu_mem: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"capacity": {"aliyun.com/gpu-mem": str(gpu_mem), "cpu": "2"}}}


def container(
    name: str, amount: int, *, resource: str = "aliyun.com/gpu-mem", more: dict[str, int] | None = None
) -> dict[str, Any]:
    amounts = {r: str(n) for r, n in {resource: amount, **(more or {})}.items()}
    return {"name": name, "resources": {"limits": amounts, "requests": dict(amounts)}}


def pod(
    name: str,
    *containers: dict[str, Any],
    on: str = "",
    init: tuple[dict[str, Any], ...] = (),
    placed: str | None = None,
    phase: str = "",
) -> dict[str, Any]:
    """A pod; ``placed`` is the text of its placement."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-21T04:00:00Z",
            "annotations": {placement.ANNOTATION: placed} if placed is not None else {},
        },
        "spec": {"nodeName": on, "containers": list(containers), "initContainers": list(init)},
        "status": {"phase": phase or ("Running" if on else "Pending")},
    }


def placed(node: str, **held: tuple[int, int]) -> str:
    """The annotation: container=(card index, MiB)."""
    return placement.encode(
        Placement(
            NodeName(node),
            tuple(
                ContainerPlacement(
                    ContainerName(name), Role.APP, (Slice(CardUUID(uuid(node, index)), MiB(memory), Percent(0)),)
                )
                for name, (index, memory) in held.items()
            ),
        )
    )
