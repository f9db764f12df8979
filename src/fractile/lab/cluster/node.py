"""A node with a real kubelet: containerd, kubelet and our agent in one mount namespace, configured for any host.

The settings that are not obvious were found on a host with hybrid cgroups, without systemd and without CAP_SYS_RESOURCE
(evidence/local-cluster.md#settings); they also work on a host with cgroup v2 and systemd.
"""

import json
import os
from datetime import datetime
from pathlib import Path

import msgspec
import yaml

from fractile.errors import SetupError
from fractile.lab.cluster.certificates import Identity, KeyPair
from fractile.lab.cluster.component import Component, HttpProbe, SocketProbe
from fractile.lab.cluster.controlplane import AGENTS_GROUP, authority, fractile_program, write_kubeconfig
from fractile.lab.cluster.spec import NodeSpec
from fractile.lab.cluster.state import ClusterState, LabNodeState
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import images, mounts, network, packages
from fractile.lab.machine.programs import Programs
from fractile.wire.files.cluster_file import matrix

KUBELET_PORT = 10250  # the usual ports: each node has its own address
HEALTH_PORT = 10248
METRICS_PORT = 5678
SOCKET = "/run/containerd/containerd.sock"  # path in the node's mount namespace

LABEL_REFRESH = 2  # seconds; a local cluster has few agents, so the API server can answer this often
_NO_DEVICES = '{"version": 1, "devices": []}'
CONTEXT = 256  # MiB that a CUDA context takes on a simulated card

AGENT_LABEL = "fractile.dev/local-agent"  # selects nodes for the chart's agent: all, until a test removes the label

_OVERLAYFS = "overlay"


class NodeFiles(msgspec.Struct, frozen=True):
    """The files given to the programs of a node."""

    containerd: Path
    kubelet: Path
    kubelet_kubeconfig: Path
    agent_kubeconfig: Path
    cards: Path
    devices: Path


def write_files(place: ClusterLayout, state: ClusterState, node: LabNodeState, *, now: datetime) -> NodeFiles:
    """Write all files of the node; unchanged files are left alone."""
    cluster = authority(place, now=now)
    config = place.node(node.index).config
    addresses = (node.address, node.name)
    kubelet = cluster.issue(f"kubelet-{node.index}", Identity(f"system:node:{node.name}", ("system:nodes",), addresses))
    agent = cluster.issue(f"agent-{node.index}", Identity(f"fractile:agent:{node.name}", (AGENTS_GROUP,)))
    kubeconfigs = [
        write_kubeconfig(place, state, cluster.ca, pair, config / f"{name}.kubeconfig")
        for name, pair in (("kubelet", kubelet), ("agent", agent))
    ]
    if not state.hollow:
        place.write(config / "cni" / "10-fractile.conflist", _cni(place, node))
    return NodeFiles(
        containerd=place.write(config / "containerd.toml", "" if state.hollow else _containerd(place, node)),
        kubelet=place.write(config / "kubelet.yaml", _kubelet(place, node, kubelet, cluster.ca)),
        kubelet_kubeconfig=kubeconfigs[0],
        agent_kubeconfig=kubeconfigs[1],
        cards=_write_cards(place, state, node),
        devices=place.write(config / "devices.json", node.spec.devices or _NO_DEVICES),
    )


def containerd(place: ClusterLayout, node: LabNodeState, files: NodeFiles) -> Component:
    return Component(
        f"{node.name}/containerd",
        ("containerd", f"--config={files.containerd}"),
        enter=mounts.enter(place.pin(node.index)),
        probe=SocketProbe(place.node(node.index).run / "containerd.sock"),
    )


def kubelet(place: ClusterLayout, node: LabNodeState, files: NodeFiles, programs: Programs) -> Component:
    argv = (
        programs["kubelet"],
        f"--config={files.kubelet}",
        f"--kubeconfig={files.kubelet_kubeconfig}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--cert-dir={place.node(node.index).config}",
        f"--node-labels={AGENT_LABEL}=true",
    )
    return Component(
        f"{node.name}/kubelet",
        argv,
        enter=mounts.enter(place.pin(node.index)),
        probe=HttpProbe(f"http://{node.address}:{HEALTH_PORT}/healthz"),
        grace=0.0,  # on SIGTERM it would wait for its pods' volumes; tests kill it anyway
    )


def agent(place: ClusterLayout, state: ClusterState, node: LabNodeState, files: NodeFiles) -> Component:
    hollow = place.shortcut(node.index)
    folders = (
        (f"--device-plugin-dir={hollow}/device-plugins", f"--pod-resources-socket={hollow}/pod-resources/kubelet.sock")
        if state.hollow
        else ()
    )
    simgpu = place.node(node.index).simgpu
    cards = (
        (f"--library-dir={state.native}", f"--simgpu-dir={simgpu}", f"--context-memory={CONTEXT}")
        if state.native
        else ("--no-library", f"--simulated-cards={files.cards}")
    )
    argv = (
        *fractile_program(),
        "agent",
        f"--node-name={node.name}",
        f"--kubeconfig={files.agent_kubeconfig}",
        f"--memory-unit={state.spec.unit.name}",
        f"--state-dir={place.node(node.index).agent}",
        "--outside-ledger=evict",
        f"--label-refresh={LABEL_REFRESH}",
        f"--devices={files.devices}",
        # Hollow nodes do not have their own address.
        f"--metrics-address={'' if state.hollow else f'{node.address}:{METRICS_PORT}'}",
        *cards,
        *folders,
    )
    enter = () if state.hollow else mounts.enter(place.pin(node.index))
    # On SIGTERM the agent waits for Bindings in progress: 12 s at most (agent/devices/availability.py).
    return Component(f"{node.name}/agent", argv, enter=enter, env=simulated_driver(place, state, node), grace=15.0)


def simulated_driver(place: ClusterLayout, state: ClusterState, node: LabNodeState) -> dict[str, str]:
    """The environment in which CUDA and NVML find the node's simulated cards; empty without the library."""
    if not state.native:
        return {}
    return {"LD_LIBRARY_PATH": f"{state.native}/simgpu", "SIMGPU_DIR": str(place.node(node.index).simgpu)}


def hollow_node(place: ClusterLayout, node: LabNodeState, files: NodeFiles) -> Component:
    argv = (
        *fractile_program(),
        "hollow-node",
        f"--node-name={node.name}",
        f"--kubeconfig={files.kubelet_kubeconfig}",
        f"--root={place.shortcut(node.index)}",
    )
    socket = place.shortcut(node.index) / "device-plugins" / "kubelet.sock"
    return Component(f"{node.name}/hollow-node", argv, probe=SocketProbe(socket))


def cni_folder() -> Path:
    """The folder of the CNI plugins; SetupError if there is none."""
    found = next((Path(f) for f in packages.CNI_FOLDERS if os.access(f"{f}/bridge", os.X_OK)), None)
    if found is None:
        raise SetupError("the CNI plugins are missing; install the package containernetworking-plugins")
    return found


def _containerd(place: ClusterLayout, node: LabNodeState) -> str:
    # JSON strings are TOML strings.
    root, plugins = json.dumps(str(place.node(node.index).containerd)), json.dumps(str(cni_folder()))
    cni_config = json.dumps(str(place.node(node.index).config / "cni"))
    # overlayfs does not work on overlayfs, which is the file system in a container.
    snapshotter = "native" if _file_system(place.root) == _OVERLAYFS else "overlayfs"
    return f"""# Written by fractile up.
version = 2
root = {root}
state = "/run/containerd"
oom_score = 0

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = {json.dumps(str(place.node(node.index).root / "opt"))}

[plugins."io.containerd.grpc.v1.cri"]
# Without CAP_SYS_RESOURCE a score cannot be lowered, and every sandbox would fail.
restrict_oom_score_adj = true
# kubelet's flag was removed in 1.35; the image is imported, there is no registry.
sandbox_image = "{images.PAUSE}"
# Ends with the node's mount namespace.
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins}
conf_dir = {cni_config}

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def _cni(place: ClusterLayout, node: LabNodeState) -> str:
    bridge = {
        "type": "bridge",
        "bridge": network.bridge_name(place.name, node.index),
        # The bridge already has its address; with isGateway the plugin would enable forwarding for all interfaces.
        "isGateway": False,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.subnet, "gateway": node.address}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "fractile", "plugins": [bridge]}, indent=1)


def _kubelet(place: ClusterLayout, node: LabNodeState, pair: KeyPair, ca: Path) -> str:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": KUBELET_PORT,
        "healthzBindAddress": node.address,
        "healthzPort": HEALTH_PORT,
        "readOnlyPort": 0,
        "tlsCertFile": str(pair.cert),
        "tlsPrivateKeyFile": str(pair.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        # These work with and without systemd, on cgroups v1, v2 and hybrid.
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        # With these features, kubelet compares each device of a plugin that registers again with every id that pods
        # hold, under the lock that admission needs: 32,552 ids with 14,000 held took kubelet 1.36.3 two minutes
        # (docs/results/performance.md).
        "featureGates": {"ResourceHealthStatus": False, "ResourceHealthStatusMessage": False},
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "protectKernelDefaults": False,
        # Images are imported from files, so kubelet must not remove them, and a full disk must not empty the node.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "10Mi"},
        # This cluster has no DNS; without an address kubelet would complain about every pod.
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        # The amounts of new devices appear in the node object with its next status update, by default every 10 s.
        "nodeStatusUpdateFrequency": "1s",
        "nodeLeaseDurationSeconds": 20,  # renewed every 5 s: the node is lost after four missed renewals in a row
        "volumePluginDir": str(place.node(node.index).root / "volume-plugins"),
        "registerWithTaints": [],
        # As many as the node's /24 has addresses for; kubelet's default of 110 is low for 8 shared cards.
        "maxPods": 250,
        "serializeImagePulls": False,
        "logging": {"verbosity": 2},
    }
    return yaml.safe_dump(config, sort_keys=False)


def cards_file(node: NodeSpec) -> str:
    """The file of simulated cards, in the form that ``nvml.simulated`` and simgpu share."""
    rows = matrix(len(node.cards), node.links)
    cards = [
        {
            "uuid": c.uuid,
            "index": c.index,
            "model": c.model,
            "memoryMiB": c.memory,
            "pciBusID": c.pci_bus_id,
            "contextMiB": CONTEXT,
            **({"topology": rows[c.index]} if node.links else {}),
        }
        for c in node.cards
    ]
    return json.dumps(cards, indent=1)


def _write_cards(place: ClusterLayout, state: ClusterState, node: LabNodeState) -> Path:
    """Write the cards where simgpu reads them, readable by containers of any user; or to a file for the agent."""
    if state.native:
        return place.write(place.node(node.index).simgpu / "cards.json", cards_file(node.spec), mode=0o644)
    return place.write(place.node(node.index).config / "cards.json", cards_file(node.spec))


def _file_system(path: Path) -> str:
    """The type of the file system that ``path`` is on."""
    best = ("", "")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        point = left.split()[4]
        if (str(path) + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best[1]
