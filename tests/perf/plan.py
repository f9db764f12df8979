"""What ``fractile plan`` costs as a person runs it: the command from its start to its last line, on 10,000 nodes.

1. What if 1,000 pods came to an empty cluster: nodes in the short form, pods as Deployments.
2. The same on a cluster in use: 30,000 pods run there, in the form in which ``kubectl get -o json`` prints them.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from fractile.wire.output.plan import decode
from tests.main.process import PROGRAM
from tests.perf.measuring.report import Row
from tests.perf.simulator import PODS, SHAPES

NODES = 10_000
COMING = 1_000
RUNNING = 30_000
BAR = 5.0  # seconds
TIMES = 2
CARD = 32_768  # MiB

Manifest = dict[str, object]


def measure() -> list[Row]:
    """Both, the better of two runs."""
    random = Random(7)
    with tempfile.TemporaryDirectory() as folder:
        empty, full, coming = (Path(folder, name) for name in ("empty.json", "full.json", "coming.json"))
        nodes = _nodes()
        empty.write_text(json.dumps({"nodes": nodes}))
        running = [_pod(f"r{i}", random, on=name) for i, name in enumerate(_homes(nodes, random))]
        items = [*_node_objects(nodes), *running]
        full.write_text(json.dumps({"kind": "List", "items": items}))
        coming.write_text(json.dumps({"kind": "List", "items": [_pod(f"w{i}", random) for i in range(COMING)]}))
        return [
            _row("what if 1,000 pods came, 10,000 nodes, the whole command", empty, coming, BAR),
            _row("the same where 30,000 pods run", full, coming, None),
        ]


def _row(what: str, nodes: Path, pods: Path, bar: float | None) -> Row:
    seconds: list[float] = []
    note = ""
    for _ in range(TIMES):
        argv = [sys.executable, "-c", PROGRAM, "plan", "--nodes", str(nodes), "--pods", str(pods), "-o", "json"]
        begin = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, check=True, timeout=300)
        seconds.append(time.perf_counter() - begin)
        report = decode(done.stdout)
        note = f"{report.nodes} nodes, {report.gpus} GPUs, {report.now.placed} of {report.now.pods} pods fit"
    return Row(what, min(seconds), "s", bar, note)


def _nodes() -> list[Manifest]:
    total = sum(shape[0] for shape in SHAPES)
    return [
        {
            "name": model.lower() + str(gpus),
            "count": -(-number * NODES // total),
            "cpu": cpu,
            "memory": f"{memory}Gi",
            "gpus": gpus,
            "model": model,
            "card_memory": f"{CARD}Mi",
        }
        for number, gpus, cpu, memory, model in SHAPES
    ]


def _node_objects(nodes: list[Manifest]) -> list[Manifest]:
    found: list[Manifest] = []
    for kind in nodes:
        labels = {"nvidia.com/gpu.product": kind["model"], "nvidia.com/gpu.memory": str(CARD)}
        amounts = {
            "cpu": str(kind["cpu"]),
            "memory": kind["memory"],
            "pods": "110",
            "nvidia.com/gpu": str(kind["gpus"]),
        }
        for number in range(int(str(kind["count"]))):
            meta = {"name": f"{kind['name']}-{number}", "labels": labels}
            found.append({"kind": "Node", "metadata": meta, "status": {"allocatable": amounts}})
    return found


def _homes(nodes: list[Manifest], random: Random) -> list[str]:
    """A node for each running pod, by how many GPUs it has."""
    names = [f"{k['name']}-{i}" for k in nodes for i in range(int(str(k["count"])))]
    weights = [int(str(k["gpus"])) for k in nodes for _ in range(int(str(k["count"])))]
    return random.choices(names, weights, k=RUNNING)


def _pod(name: str, random: Random, on: str = "") -> Manifest:
    (row,) = random.choices(PODS, [row[0] for row in PODS])
    _, cpu, gpus, milli = row
    limits: dict[str, str] = {}
    if gpus and milli == 1000:
        limits = {"aliyun.com/gpu-count": "1" if on else str(gpus)}
    elif gpus:
        limits = {"tencent.com/vcuda-core": str(milli // 10), "tencent.com/vcuda-memory": str(milli * CARD // 256_000)}
    container = {"name": "main", "resources": {"requests": {"cpu": str(cpu), "memory": "8Gi"}, "limits": limits}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": on, "containers": [container]}}
