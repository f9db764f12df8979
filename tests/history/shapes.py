"""What the pods of the model ask for: all families of names and roles, several cards, classes, other devices."""

import time
from typing import Any

from tests.history.store import Object

GPU_SIZE = 8  # GiB: the tencent family counts blocks of 256 MiB
CLASS = "half"
DEVICES = "nics"

Resources = dict[str, int]


def _one(**roles: Any) -> list[tuple[str, str, Resources]]:
    return [(name, role, resources) for name, (role, resources) in roles.items()]


MIB = "aliyun.com/gpu-mem"
SHAPES: list[list[tuple[str, str, Resources]]] = [
    _one(main=("app", {MIB: 4096})),
    _one(main=("app", {MIB: 3000})),
    _one(main=("app", {MIB: 8192})),
    _one(main=("app", {MIB: 1024})),
    _one(main=("app", {"aliyun.com/gpu-count": 1})),
    _one(main=("app", {"aliyun.com/gpu-count": 2})),
    _one(main=("app", {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 12})),
    _one(main=("app", {"tencent.com/vcuda-core": 60, "tencent.com/vcuda-memory": 4})),
    _one(main=("app", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 40})),
    _one(main=("app", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 2000})),
    _one(warm=("init", {MIB: 6000}), main=("app", {MIB: 2000})),
    _one(log=("sidecar", {MIB: 1000}), warm=("init", {MIB: 4000}), main=("app", {MIB: 2500})),
    _one(main=("app", {MIB: 3000}), more=("app", {MIB: 3000})),
    _one(main=("app", {f"class.fractile.dev/{CLASS}": 1, "fractile.dev/gpu": 1})),
    _one(main=("app", {f"class.fractile.dev/{CLASS}": 2, "fractile.dev/gpu": 2})),
    _one(main=("app", {f"class.fractile.dev/{DEVICES}": 1, "fractile.dev/device": 1})),
    _one(main=("app", {f"class.fractile.dev/{DEVICES}": 1, "fractile.dev/device": 1, MIB: 2000})),
]


def pod(name: str, uid: str, shape: int, created: float) -> Object:
    containers: list[Object] = []
    first: list[Object] = []
    for container, role, resources in SHAPES[shape % len(SHAPES)]:
        one: Object = {"name": container, "resources": {"limits": {k: str(v) for k, v in resources.items()}}}
        if role == "sidecar":
            one["restartPolicy"] = "Always"
        (containers if role == "app" else first).append(one)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_767_225_600 + created)),
            "annotations": {},
        },
        "spec": {"containers": containers, "initContainers": first},
        "status": {"phase": "Pending"},
    }


def card(uuid: str, node: str, index: int, *, uid: str = "") -> Object:
    name = uuid.lower()
    if uuid.startswith("GPU"):
        spec: Object = {
            "nodeName": node,
            "deviceID": uuid,
            "index": index,
            "model": "m",
            "memory": f"{GPU_SIZE * 1024}Mi",
        }
    else:
        spec = {"nodeName": node, "deviceID": uuid, "index": index, "model": "nic", "type": "infiniband", "shares": 2}
    return {"metadata": {"name": name, "uid": uid or name}, "spec": spec, "status": {"phase": "Available"}}


def classes() -> list[Object]:
    return [
        {"metadata": {"name": CLASS, "uid": CLASS}, "spec": {"memory": f"{GPU_SIZE // 2}Gi", "cores": 50}},
        {"metadata": {"name": DEVICES, "uid": DEVICES}, "spec": {"deviceType": "infiniband"}},
    ]
