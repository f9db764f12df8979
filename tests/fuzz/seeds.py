"""Valid examples for decoders that no golden file fits. A decoder without any begins with all of the golden files."""

import contextlib
import json
from pathlib import Path
from typing import Any

_GOLDEN = Path(__file__).parents[1] / "wire" / "golden"

POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "team",
        "uid": "u-1",
        "annotations": {"nvidia.com/use-gputype": "A100,V100", "tencent.com/vcuda-core-limit": "60"},
    },
    "spec": {
        "nodeName": "n1",
        "initContainers": [
            {"name": "i", "restartPolicy": "Always", "resources": {"limits": {"aliyun.com/gpu-mem": "1024"}}}
        ],
        "containers": [
            {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3k", "cpu": "500m"}}},
            {"name": "b", "resources": {"limits": {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}}},
            {"name": "c", "resources": {"limits": {"class.fractile.dev/small": "2", "fractile.dev/gpu": "2"}}},
        ],
        "overhead": {"cpu": "10m", "memory": "4Mi"},
    },
    "status": {"phase": "Running", "nominatedNodeName": ""},
}
CLASS = json.loads((_GOLDEN / "resource-class.json").read_bytes())
CARD = json.loads((_GOLDEN / "extended-resource.json").read_bytes())
BUDGET = {
    "metadata": {"name": "b", "namespace": "team"},
    "spec": {"selector": {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}},
    "status": {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}},
}
SHAPE = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
WEIGHTS = [{"name": "nvidia.com/gpu", "weight": 5}]
FIT = {
    "scoringStrategy": {
        "type": "RequestedToCapacityRatio",
        "resources": WEIGHTS,
        "requestedToCapacityRatio": {"shape": SHAPE},
    }
}
POLICY = {
    "priorities": [
        {"name": "x", "argument": {"requestedToCapacityRatioArguments": {"shape": SHAPE, "resources": WEIGHTS}}}
    ]
}
CONFIGURATION = {
    "profiles": [{"schedulerName": "s", "pluginConfig": [{"name": "NodeResourcesFit", "args": FIT}]}],
}
_NODE = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "4"}}}
_QUOTA = '{"team-a": {"pool": ["public"], "quota": {"M40": 2, "A100": 0.5}}}'
_DEVICES = """version: 1
devices:
  - {id: mlx5_0, type: infiniband, shares: 4, properties: {rate: 400Gb/s, sriov: true},
     deviceNodes: [/dev/infiniband/uverbs0, {host: /dev/rdma_cm, permissions: rwm}],
     mounts: [{host: /etc/a, container: /etc/b}], environment: {A: b}, healthy: false, reason: Hot}
"""
_SHARING = "version: 1\ndefault: {maxSlices: 4, fractions: [1/4, 1]}\npools:\n  a: {fractions: [1]}\nmodels: {T4: {}}\n"
_SLICE_USE = {
    "podUid": "u", "namespace": "n", "pod": "p", "container": "c", "enforced": True,
    "cards": [{"uuid": "GPU-a", "memoryBytes": 1, "contextBytes": 1, "unaccountedBytes": 0, "cores": 1, "coresLimit": 1,
               "weight": 1, "usedBytes": None, "peakBytes": 1, "refusals": 0, "sharedBytes": 0}],
    "processes": [{"pid": 1, "command": "x", "cards": [{"uuid": "GPU-a", "bytes": 1, "contexts": 1, "gpuNs": 1}]}],
}  # fmt: skip
_CGROUP = (
    "4:devices:/kubepods/burstable/pod0b0c6a8e-3a0e-4f0f-9d2c-3d1f5a6b7c8d/" + "ab" * 32 + "\n"
    "0::/kubepods.slice/kubepods-pod0b0c6a8e_3a0e_4f0f_9d2c_3d1f5a6b7c8d.slice/cri-containerd-" + "cd" * 32 + ".scope\n"
)
_STATUS = {"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "Conflict", "message": "no"}

SEEDS: dict[str, list[Any]] = {
    "agent.node.cgroup.places": [_CGROUP],
    "agent.gpumanager.claim.bus_address": ["/kubepods/besteffort/pod1/abc"],
    "dialects.table.containers_in_order": [POD],
    "dialects.table.owner": ["nvidia.com/gpumem", "class.fractile.dev/small"],
    "dialects.table.parse_pod": [POD],
    "kube.transport.status_error": [json.dumps(_STATUS)],
    "nvml.library.text": ["Tesla V100"],
    "nvml.models.model": ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"],
    "nvml.models.said": ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"],
    "wire.kubernetes.admission.guarded": [POD],
    "wire.kubernetes.admission.pod": [POD],
    "wire.kubernetes.admission.pod_inside": [{"spec": {"template": POD}}],
    "wire.kubernetes.admission.quota": [
        {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
    ],
    "wire.files.cluster_file.parse_cards": ["2x Tesla-V100 16276MiB, 1x A100 40960MiB"],
    "wire.files.device_file.decode": [_DEVICES],
    "wire.fractile.device_ids.card_of": ["GPU-a::7"],
    "wire.fractile.device_ids.from_ranges": ["GPU-a::0-511,600 GPU-b::7"],
    "wire.fractile.device_ids.split": ["GPU-a::7"],
    "wire.kubernetes.disruption.budget": [BUDGET],
    "wire.fractile.extended_resource.to_card": [CARD],
    "wire.kubernetes.extender.node_name": [{"metadata": {"name": "n1"}}],
    "wire.fractile.isolation.reason": ["off: by the label of the node"],
    "wire.foreign.kernel_log.place": ["00000000:05:00.0"],
    "wire.foreign.kernel_log.xid_line": [
        "4,1339,5140900,-;NVRM: Xid (PCI:0000:05:00): 31, pid=1234, name=python, Ch 0000"
    ],
    "wire.measure.measure": ["10GiB", "1.5 GHz", "200Gb/s", "1e3"],
    "wire.fractile.placement.decode": [json.loads((_GOLDEN / "placement-v1.json").read_bytes())],
    "wire.kubernetes.pod_requests.amounts": [{"cpu": "500m", "nvidia.com/gpu": 2, "memory": "1Gi"}],
    "wire.kubernetes.pod_requests.is_extended": ["nvidia.com/gpu"],
    "wire.kubernetes.pod_requests.limits": [POD],
    "wire.kubernetes.pod_requests.requests": [POD],
    "wire.kubernetes.pod_totals.of_node": [{"cpu": "8", "memory": "32Gi", "pods": "110"}],
    "wire.kubernetes.pod_totals.of_pod": [POD],
    "wire.quantity.parse": ["4Gi", "500m", "1e3", "-1.5Ki"],
    "wire.quantity.whole_number": ["4Gi", 3, 2.0],
    "wire.files.quota_file.decode": [{"gpu_quota": _QUOTA}],
    "wire.fractile.resource_class.class_of": ["class.fractile.dev/small"],
    "wire.fractile.resource_class.decode": [CLASS],
    "wire.kubernetes.scheduler_config.minor_of": ["1.36", "v1.28.3"],
    "wire.files.score_file.decode": [json.dumps(_NODE), "kind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n"],
    "wire.kubernetes.scoring.of_configuration": [CONFIGURATION],
    "wire.kubernetes.scoring.of_fit": [FIT],
    "wire.kubernetes.scoring.of_policy": [POLICY],
    "wire.kubernetes.scoring.parse_resources": ["nvidia.com/gpu=5,cpu=1"],
    "wire.kubernetes.scoring.parse_shape": ["0:0,40:2,100:10"],
    "wire.files.sharing_file.decode": [_SHARING],
    "wire.output.slice_use.decode": [json.dumps(_SLICE_USE)],
}


def of(name: str) -> list[Any]:
    """The examples of that decoder; of golden files those that it takes are found by the test."""
    return SEEDS.get(name, [])


def golden() -> list[bytes]:
    return [path.read_bytes() for path in sorted(_GOLDEN.iterdir())]


def golden_objects() -> list[Any]:
    """Those that are objects of JSON."""
    found: list[Any] = []
    for data in golden():
        with contextlib.suppress(ValueError):
            if isinstance(tree := json.loads(data), dict):
                found.append(tree)
    return found
