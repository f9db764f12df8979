"""The usage of one node in the format of gpu-manager's /usage. Pure."""

from collections.abc import Sequence

from fractile.metrics.node import memory_used, utilization
from fractile.wire.foreign.gpu_manager_usage import Device, Devices, GpuManagerUsage, PodStat, Spec
from fractile.wire.output.node_usage import CardUsage, ContainerUsage, NodeUsage, SliceUsage

_MIB = 2**20


def gpu_manager_usage(usage: NodeUsage) -> GpuManagerUsage:
    """The usage by pod UID. ``user`` and ``cluster`` are empty, since nothing fills their sources in gpu-manager."""
    pods: dict[str, list[ContainerUsage]] = {}
    for container in usage.containers:
        pods.setdefault(container.pod_uid, []).append(container)
    return GpuManagerUsage({uid: _pod(containers, usage.cards) for uid, containers in pods.items()})


def _pod(containers: Sequence[ContainerUsage], cards: Sequence[CardUsage]) -> PodStat:
    return PodStat(
        stat={c.container: Devices(tuple(_device(s, cards) for s in c.cards)) for c in containers},
        project=containers[0].namespace,
        spec={
            c.container: Spec(
                gpu=sum(s.cores for s in c.cards) / 100, mem=float(sum(s.limit_bytes for s in c.cards) // _MIB)
            )
            for c in containers
        },
    )


def _device(card: SliceUsage, cards: Sequence[CardUsage]) -> Device:
    of_node = next((c for c in cards if c.uuid == card.uuid), None)
    return Device(
        id=of_node.pci_bus_id if of_node else "",
        card_idx="" if card.index is None else str(card.index),
        gpu=utilization(card),
        mem=float(memory_used(card) // _MIB),
        pids=card.pids,
        device_mem=float(of_node.memory_bytes // _MIB) if of_node else 0.0,
    )
