"""The cluster on which the demonstrations and the end-to-end tests run."""

from fractile.lab.cluster.interrupted import interrupted
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import ClusterSpec, from_file
from fractile.lab.demos.demos import CARD
from fractile.wire.files.cluster_file import CardGroup, ClusterFile, Link, NodeGroup

_MODEL = "Tesla-V100"
_JOINED = (Link(between=(1, 3), type="NV2"),)


def demo_spec(cluster: str) -> ClusterSpec:
    """n1, n2 and n3 have two equal cards each. n4 has four cards of different size, together below 60,000 MiB; NVLink
    connects the second and the last."""
    two = (CardGroup(model=_MODEL, memory=CARD, count=2),)
    mixed = tuple(CardGroup(model=_MODEL, memory=size) for size in (12_207, 8138, 4069, CARD))
    nodes = [NodeGroup(name=f"n{i}", cards=two) for i in (1, 2, 3)]
    joined = NodeGroup(name="n4", cards=mixed, interconnect=_JOINED)
    return from_file(cluster, ClusterFile(version=1, nodes=(*nodes, joined)))


class LocalStage:
    """A local cluster as a ``demos.DemoCluster``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return self._cluster.kubectl(*args, stdin=stdin)

    def kubelet_record(self, node: str) -> dict[tuple[str, str, str], dict[str, list[str]]]:
        return self._cluster.kubelet_record(node)

    def restart_kubelet(self, node: str) -> None:
        self._cluster.restart_kubelet(node)

    def restart_control_plane(self, *, crash_at: str = "") -> None:
        self._cluster.restart("control-plane", program=interrupted("kill", crash_at) if crash_at else ())

    def control_plane_runs(self) -> bool:
        return self._cluster.process("control-plane") is not None
