"""A cluster at the wire that shows everything ``classes`` and ``devices`` have words for."""

from typing import Any

import msgspec

from fractile.kube import paths
from fractile.model.placement import Slice
from fractile.model.units import CardUUID, MiB, Percent
from fractile.wire.fractile import placement
from tests.builders import container, given, pod
from tests.builders import placement as placed
from tests.classes.class_world import class_object, device, gpu, labels, resource, where
from tests.fakes.apiserver import FakeApiServer


def fill(server: FakeApiServer) -> None:
    """A node with two models and an adapter, a node with one model in two sizes of memory; slices, a share, a whole."""
    for name in ("n1", "n2"):
        server.create(paths.nodes(), {"metadata": {"name": name}})
    shared = {"memory": "4096Mi", "cores": 0, "slices": 1}
    for card, status in (
        (gpu("n1", 0, clock="1380MHz"), {"phase": "PartlyBound", "used": shared}),
        (gpu("n1", 1, model="Tesla K80", memory=12_288, clock="875MHz"), {"phase": "Available"}),
        (gpu("n2", 0), {"phase": "Bound"}),
        (gpu("n2", 1, memory=32_768), {"phase": "Unhealthy", "reason": "CardLost", "message": "it fell off the bus"}),
        (device("n1", 0, shares=2), {"phase": "PartlyBound"}),
    ):
        name = card.uuid.lower()
        made: dict[str, Any] = msgspec.to_builtins(resource(card))
        server.create(paths.extended_resources(), made)
        server.merge(f"{paths.extended_resource(name)}/status", {"status": status})
    for made_class in (
        class_object("nvidia.tesla.k80", labels(model="Tesla K80")),
        class_object("nvidia.high.mem", where("memory", "Gt", "13GiB")),
        class_object("slice", labels(model="Tesla V100"), memory="4Gi", cores=20),
        class_object("pair", labels(model="Tesla V100"), count=2),
        class_object("a100", labels(model="A100")),
        class_object("hca", device_type="hca"),
    ):
        body: dict[str, Any] = msgspec.to_builtins(made_class)
        body["metadata"] = {"name": body["metadata"]["name"]}
        server.create(paths.resource_classes(), body)
    submit(server, "part", "aliyun.com/gpu-mem", 4096, "n1", Slice(CardUUID("GPU-n1-0"), MiB(4096)))
    whole = Slice(CardUUID("GPU-n2-0"), MiB(16_384), Percent(100))
    submit(server, "whole", "aliyun.com/gpu-count", 1, "n2", whole)
    share = Slice(CardUUID("hca-0.n1"), MiB(0), shares=1)
    limits = {"class.fractile.dev/hca": "1"}
    submit(server, "net", "fractile.dev/device", 1, "n1", share, limits=limits)


def submit(
    server: FakeApiServer,
    name: str,
    resource: str,
    amount: int,
    node: str,
    part: Slice,
    *,
    limits: dict[str, str] | None = None,
) -> None:
    asked = container(limits={**(limits or {}), resource: str(amount)})
    annotation = placement.encode(placed(given("main", part), node=node))
    made = pod(name, asked, node=node, phase="Running", annotations={placement.ANNOTATION: annotation})
    body: dict[str, Any] = msgspec.to_builtins(made)
    body["metadata"].pop("uid")
    server.create(paths.pods("default"), body)
